"""How a checked address is reached: directly, or through the forward proxy.

Which addresses may be dialled is the guard's to say, and it is asked again about the peer of every direct connection.
The proxy itself was named by the operator and is not judged. What goes past the proxy by `no_proxy` stays guarded.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from ipaddress import ip_address, ip_network

from holdfast.config.hosts import names_among
from holdfast.core.errors import NameNotResolved
from holdfast.http.codec import best_engine
from holdfast.http.connection import Address, Dialled, Origin, Trying, connect, format_address, in_turn
from holdfast.http.errors import ConnectError, ProxyError
from holdfast.http.tunnel import open_tunnel

JudgePeer = Callable[[Origin, str], None]
LookUp = Callable[[str, int], Awaitable[Sequence[Address]]]


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """`authorization` is the whole value of the header; `no_proxy` holds networks, addresses and host patterns."""

    proxy: tuple[str, int] | None = None
    authorization: bytes | None = field(default=None, repr=False)
    no_proxy: tuple[str, ...] = ()


class Dialer:
    """`judge_peer` gets the address of a peer, as ip:port, and raises if it may not be talked to."""

    def __init__(self, settings: ProxySettings, *, judge_peer: JudgePeer, look_up: LookUp) -> None:
        self._judge_peer = judge_peer
        self._look_up = look_up
        self._engine = best_engine()
        self.configure(settings)

    def configure(self, settings: ProxySettings) -> None:
        self._exceptions = _Exceptions(settings.no_proxy)
        self._proxy = settings.proxy
        self._authorization = settings.authorization

    async def dial(self, origin: Origin, addresses: Sequence[Address], deadline: float, trying: Trying) -> Dialled:
        """Through the proxy every address is asked for in turn, as a proxy that fails for one may reach another."""
        dial_one = partial(self._dial_one, origin, trying)
        return await in_turn(addresses, deadline, dial_one)

    async def _dial_one(self, origin: Origin, trying: Trying, address: Address, until: float) -> Dialled:
        if self._proxy is None or self._exceptions.hold(origin.host, address):
            return await self._directly(origin, trying, address, until)
        return await self._through(self._proxy, trying, format_address(address[1]), until)

    async def _directly(self, origin: Origin, trying: Trying, address: Address, until: float) -> Dialled:
        dialled = await connect([address], until, trying)
        try:
            self._judge_peer(origin, dialled.address)
        except BaseException:
            dialled.wire.close()
            raise
        return dialled

    async def _through(self, proxy: tuple[str, int], trying: Trying, target: str, until: float) -> Dialled:
        # Taken together with the proxy: a reload meanwhile must not show new credentials to an old proxy.
        authorization = self._authorization
        trying(target, "reach_proxy")
        try:
            dialled = await connect(await self._look_up(*proxy), until, _untold)
        except NameNotResolved as error:
            raise ProxyError(f"the proxy in delivery.proxy has no address: {error}", target, here=True) from error
        except ConnectError as error:
            name = error.address or format_address(proxy)
            raise ProxyError(f"the proxy {name} can't be reached: {error.detail}", target, here=True) from error
        trying(target, "proxy")
        try:
            return await open_tunnel(dialled, target, authorization, self._engine)
        except ProxyError as error:
            if error.status == 407:
                error.detail += "; see delivery.proxy_credentials_file"
            raise


class _Exceptions:
    """What goes past the proxy."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._patterns = names_among(texts)
        self._networks = [ip_network(text) for text in texts if text not in self._patterns]

    def hold(self, host: str, address: Address) -> bool:
        if any(fnmatchcase(host, pattern) for pattern in self._patterns):
            return True
        plain = ip_address(address[1][0].partition("%")[0])
        plain = getattr(plain, "ipv4_mapped", None) or plain
        return any(plain in network for network in self._networks)


def _untold(address: str, stage: str) -> None:
    """The proxy's own addresses are no news: the target's is what an attempt is recorded with."""
