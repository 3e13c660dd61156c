"""Opens connections to permitted addresses, directly or through the forward proxy.

The guard in egress.py decides which addresses are permitted, and judges the peer of every direct connection again,
including those that bypass the proxy by `no_proxy`. The proxy itself is the operator's choice and is not judged.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address

from holdfast.core.addresses import unmapped
from holdfast.core.errors import NameNotResolved
from holdfast.delivery.egress import HostList
from holdfast.http.codec import best_engine
from holdfast.http.dial import (
    Address,
    Dialled,
    Origin,
    Progress,
    connect,
    dial_first_reachable,
    format_address,
    open_tunnel,
)
from holdfast.http.exceptions import ConnectError, ProxyError

JudgePeer = Callable[[Origin, str], None]
LookUp = Callable[[str, int], Awaitable[Sequence[Address]]]


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """`authorization` is the value of the header `Proxy-Authorization`; `no_proxy` lists what bypasses the proxy."""

    proxy: tuple[str, int] | None = None
    authorization: bytes | None = field(default=None, repr=False)
    no_proxy: tuple[str, ...] = ()


class Dialer:
    """`judge_peer` raises if the peer's address, as ip:port, is not permitted."""

    def __init__(self, settings: ProxySettings, *, judge_peer: JudgePeer, look_up: LookUp) -> None:
        self._judge_peer = judge_peer
        self._look_up = look_up
        self._engine = best_engine()
        self.configure(settings)

    def configure(self, settings: ProxySettings) -> None:
        self._no_proxy = HostList(settings.no_proxy)
        self._proxy = settings.proxy
        self._authorization = settings.authorization

    async def dial(self, origin: Origin, addresses: Sequence[Address], deadline: float, progress: Progress) -> Dialled:
        """Tries the addresses in turn, also through the proxy: it may reach another address if it fails for one."""
        return await dial_first_reachable(addresses, deadline, partial(self._dial_one, origin, progress))

    async def _dial_one(self, origin: Origin, progress: Progress, address: Address, until: float) -> Dialled:
        if self._proxy is None or self._bypasses_proxy(origin.host, address):
            return await self._dial_directly(origin, progress, address, until)
        return await self._dial_through(self._proxy, progress, format_address(address[1]), until)

    def _bypasses_proxy(self, host: str, address: Address) -> bool:
        return self._no_proxy.has_name(host) or self._no_proxy.has_address(unmapped(ip_address(address[1][0])))

    async def _dial_directly(self, origin: Origin, progress: Progress, address: Address, until: float) -> Dialled:
        dialled = await connect([address], until, progress)
        try:
            self._judge_peer(origin, dialled.address)
        except BaseException:
            dialled.wire.close()
            raise
        return dialled

    async def _dial_through(self, proxy: tuple[str, int], progress: Progress, target: str, until: float) -> Dialled:
        # Read together with the proxy: after a reload the old proxy must not get the new credentials.
        authorization = self._authorization
        progress(target, "reach_proxy")
        try:
            dialled = await connect(await self._look_up(*proxy), until, _ignore_stage)
        except NameNotResolved as error:
            raise ProxyError(f"the proxy in delivery.proxy has no address: {error}", target, here=True) from error
        except ConnectError as error:
            name = error.address or format_address(proxy)
            raise ProxyError(f"the proxy {name} can't be reached: {error.detail}", target, here=True) from error
        progress(target, "proxy")
        try:
            return await open_tunnel(dialled, target, authorization, self._engine)
        except ProxyError as error:
            if error.status == 407:
                error.detail += "; see delivery.proxy_credentials_file"
            raise


def _ignore_stage(address: str, stage: str) -> None:
    """The proxy's own addresses are not recorded: an attempt records its target's address."""
