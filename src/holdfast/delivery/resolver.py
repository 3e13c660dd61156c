"""Names to addresses, in threads of our own: a resolver that hangs holds up nobody but those who ask for that name.

One look-up per host at a time, shared by all who wait for it, so one hanging name holds one thread however many
attempts ask for it. It belongs to none of them: whoever gives up leaves it to the others. Nothing is kept once it is
over.
"""

import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import trio

from holdfast.core.errors import NameNotResolved
from holdfast.http.connection import Address

THREADS = 64
TIMEOUT = 10.0
SHARE_OF_DEADLINE = 0.9
"""An attempt with less time stops waiting a little before its deadline, while it can still say what it waits for."""

GetAddrInfo = Callable[..., list[Any]]


class _LookUp:
    """One question under way. `in_thread` tells that it can't be taken back any more."""

    __slots__ = ("addresses", "done", "failure", "in_thread", "scope", "waiting")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.addresses: list[Address] = []
        self.failure: NameNotResolved | None = None
        self.in_thread = False
        self.scope = trio.CancelScope()
        self.waiting = 0


class Resolver:
    """`getaddrinfo` is asked in a thread, with a host, no port, and the type of socket."""

    def __init__(self, getaddrinfo: GetAddrInfo = socket.getaddrinfo) -> None:
        self._getaddrinfo = getaddrinfo
        self._limiter = trio.CapacityLimiter(THREADS)
        self._under_way: dict[str, _LookUp] = {}

    async def look_up(self, host: str, port: int) -> list[Address]:
        """All addresses of a host, as the resolver orders them. Raises NameNotResolved."""
        literal = _literal(host, port)
        if literal is not None:
            return [literal]
        look_up = self._join(host)
        left = trio.current_effective_deadline() - trio.current_time()
        look_up.waiting += 1
        try:
            with trio.move_on_after(max(0, min(TIMEOUT, left * SHARE_OF_DEADLINE))):
                await look_up.done.wait()
        finally:
            look_up.waiting -= 1
            if not look_up.waiting and not look_up.in_thread:
                look_up.scope.cancel()
        if not look_up.done.is_set():
            raise NameNotResolved(f"{host}: the resolver did not answer in time", here=True)
        if look_up.failure is not None:
            raise NameNotResolved(str(look_up.failure), here=look_up.failure.here) from look_up.failure
        return [(family, (name[0], port, *name[2:])) for family, name in look_up.addresses]

    def _join(self, host: str) -> _LookUp:
        look_up = self._under_way.get(host)
        if look_up is None or look_up.scope.cancel_called:
            look_up = self._under_way[host] = _LookUp()
            trio.lowlevel.spawn_system_task(self._ask, host, look_up)
        return look_up

    async def _ask(self, host: str, look_up: _LookUp) -> None:
        """A system task: it outlives whoever asked first, and no error may leave it."""

        def in_thread() -> list[Any]:
            look_up.in_thread = True
            return self._getaddrinfo(host, None, type=socket.SOCK_STREAM)

        try:
            with look_up.scope:
                found = await trio.to_thread.run_sync(in_thread, abandon_on_cancel=True, limiter=self._limiter)
                look_up.addresses = [(family, name) for family, _, _, _, name in found]
        except Exception as error:
            look_up.failure = _failure(host, error)
        finally:
            if self._under_way.get(host) is look_up:
                del self._under_way[host]
            look_up.done.set()


def _failure(host: str, error: Exception) -> NameNotResolved:
    match error:
        case socket.gaierror():
            return NameNotResolved(f"{host}: {error.strerror}", here=error.errno == socket.EAI_AGAIN)
        case OSError():
            # The system failed, not the name: out of descriptors glibc leaves any errno behind, EINVAL for one.
            return NameNotResolved(f"{host}: {error}", here=True)
        case UnicodeError():
            return NameNotResolved(f"{host}: not a host name", here=False)
        case _:
            # Most likely no thread could be started.
            return NameNotResolved(f"{host}: the resolver failed: {error}", here=True)


def _literal(host: str, port: int) -> Address | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return (socket.AF_INET if address.version == 4 else socket.AF_INET6), (str(address), port)
