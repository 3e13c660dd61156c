"""Names to addresses: the system's own getaddrinfo, in threads, so that a name that hangs holds up no other.

One look-up per name at a time, shared by all who wait for it. It belongs to none of them: whoever gives up leaves it to
the others, and one that nobody waits for any more is not begun.

Each new connection asks anew. Two memories, both bounded, are for a resolver that does not answer. The last good answer
of a name is used in place of a failure that is this side's; a name that failed is not asked again for some seconds.
"""

import errno
import os
import socket
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, TypeVar

import trio

from holdfast.core.errors import NameNotResolved
from holdfast.delivery.lookup_threads import Found, LookupThreads
from holdfast.http.connection import Address

TIMEOUT = 10.0
HANGS_AFTER = 1.0
"""Seconds after which a look-up counts as one that hangs, and a last good answer is used in its place."""
SHARE_OF_DEADLINE = 0.9
"""An attempt with less time stops waiting a little before its deadline, while it can still say what it waits for."""
LAST_GOOD_FOR = 3_600.0
"""Seconds that an answer is good for while the resolver is silent."""
NOT_ASKED_AGAIN_FOR = 5.0
"""Seconds after a failure."""
KEPT = 10_000
"""Names in each of the two memories; the one that was asked for longest ago goes first."""

GetAddrInfo = Callable[..., list[Any]]
Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class _Answer:
    addresses: tuple[Address, ...]
    at: float


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a name has no address, and whether that is this side's failure."""

    detail: str
    here: bool


@dataclass(frozen=True, slots=True)
class _Remembered:
    """`hung` tells that the look-up held its thread for long."""

    failure: _Failure
    at: float
    hung: bool


class _LookUp:
    """One question under way. `in_thread` tells that it can't be taken back any more. It is `done` when those who wait
    are answered; a thread that hangs may go on after that.
    """

    __slots__ = ("addresses", "done", "failure", "in_thread", "scope", "waiting")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.addresses: tuple[Address, ...] = ()
        self.failure: _Failure | None = None
        self.in_thread = False
        self.scope = trio.CancelScope()
        self.waiting = 0


class Resolver:
    """`getaddrinfo` is asked in a thread, with a host, no port, and the type of socket."""

    def __init__(self, getaddrinfo: GetAddrInfo = socket.getaddrinfo) -> None:
        self._getaddrinfo = getaddrinfo
        self._under_way: dict[str, _LookUp] = {}
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self._failures: OrderedDict[str, _Remembered] = OrderedDict()
        self._threads = LookupThreads()

    async def look_up(self, host: str, port: int) -> list[Address]:
        """All addresses of a host, as the resolver orders them. Raises NameNotResolved."""
        literal = _literal(host, port)
        if literal is not None:
            return [literal]
        last_good = self._last_good(host)
        failure = self._failed_just_now(host)
        if failure is None:
            look_up = self._join(host)
            await _wait(look_up, HANGS_AFTER if last_good else TIMEOUT)
            if look_up.done.is_set() and look_up.failure is None:
                return _with_port(look_up.addresses, port)
            failure = look_up.failure or _silence(host)
        if last_good and failure.here:
            return _with_port(last_good, port)
        raise NameNotResolved(failure.detail, here=failure.here)

    # -- one look-up -------------------------------------------------------------------------------------------------

    def _join(self, host: str) -> _LookUp:
        look_up = self._under_way.get(host)
        if look_up is None or look_up.scope.cancel_called:
            look_up = self._under_way[host] = _LookUp()
            trio.lowlevel.spawn_system_task(self._ask, host, look_up)
        return look_up

    async def _ask(self, host: str, look_up: _LookUp) -> None:
        """A system task: it outlives whoever asked first, and no error may leave it."""
        try:
            with look_up.scope:
                lately, hung = bool(self._last_good(host)), self._hung(host)
                async with self._threads.place(host, resolved_lately=lately, hung=hung):
                    look_up.in_thread = True
                    await self._ask_in_thread(host, look_up)
        except Exception as error:
            look_up.failure = _failure(host, error)
        finally:
            if self._under_way.get(host) is look_up:
                del self._under_way[host]
            look_up.done.set()

    async def _ask_in_thread(self, host: str, look_up: _LookUp) -> None:
        """Until the thread has ended, which may be long after those who waited were told that it hangs."""
        result: list[Found] = []
        ended = trio.Event()

        def ask() -> list[Any]:
            return self._getaddrinfo(host, None, type=socket.SOCK_STREAM)

        def end(found: Found) -> None:
            result.append(found)
            ended.set()

        began = trio.current_time()
        self._threads.start(ask, end)
        with trio.move_on_after(TIMEOUT):
            await ended.wait()
        if not result:
            look_up.failure = _silence(host)
            self._remember_failure(host, look_up.failure, hung=True)
            look_up.done.set()
            await ended.wait()
        (found,) = result
        if isinstance(found, Exception):
            look_up.failure = _failure(host, found)
            if isinstance(found, socket.gaierror):
                hung = trio.current_time() - began >= HANGS_AFTER
                self._remember_failure(host, look_up.failure, hung=hung)
        else:
            look_up.addresses = tuple((family, name) for family, _, _, _, name in found)
            self._remember_answer(host, look_up.addresses)

    # -- what is remembered ------------------------------------------------------------------------------------------

    def _last_good(self, host: str) -> tuple[Address, ...]:
        answer = self._answers.get(host)
        return answer.addresses if answer is not None and _age(answer.at) < LAST_GOOD_FOR else ()

    def _failed_just_now(self, host: str) -> _Failure | None:
        failed = self._failures.get(host)
        return failed.failure if failed is not None and _age(failed.at) < NOT_ASKED_AGAIN_FOR else None

    def _hung(self, host: str) -> bool:
        failed = self._failures.get(host)
        return failed is not None and failed.hung

    def _remember_answer(self, host: str, addresses: tuple[Address, ...]) -> None:
        self._failures.pop(host, None)
        _remember(self._answers, host, _Answer(addresses, trio.current_time()))

    def _remember_failure(self, host: str, failure: _Failure, *, hung: bool) -> None:
        _remember(self._failures, host, _Remembered(failure, trio.current_time(), hung))
        if not failure.here:
            # The name's servers say that it has no address, so the last one is no longer good.
            self._answers.pop(host, None)


async def _wait(look_up: _LookUp, patience: float) -> None:
    """Until it is done, for that many seconds at most."""
    left = trio.current_effective_deadline() - trio.current_time()
    look_up.waiting += 1
    try:
        with trio.move_on_after(max(0, min(patience, left * SHARE_OF_DEADLINE))):
            await look_up.done.wait()
    finally:
        look_up.waiting -= 1
        if not look_up.waiting and not look_up.in_thread:
            look_up.scope.cancel()


def _remember(memory: OrderedDict[str, Entry], host: str, entry: Entry) -> None:
    memory[host] = entry
    memory.move_to_end(host)
    if len(memory) > KEPT:
        memory.popitem(last=False)


def _failure(host: str, error: Exception) -> _Failure:
    match error:
        case NameNotResolved():
            return _Failure(str(error), error.here)
        case socket.gaierror():
            return _Failure(f"{host}: {error.strerror}", error.errno == socket.EAI_AGAIN or _no_descriptors())
        case OSError():
            # The system failed, not the name: out of descriptors glibc leaves any errno behind, EINVAL for one.
            return _Failure(f"{host}: {error}", here=True)
        case UnicodeError():
            return _Failure(f"{host}: not a host name", here=False)
        case _:
            # Most likely no thread could be started.
            return _Failure(f"{host}: the resolver failed: {error}", here=True)


def _no_descriptors() -> bool:
    """Whether this process can open nothing now: then the libc may say of any name that it does not exist."""
    try:
        os.close(os.open("/", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False


def _silence(host: str) -> _Failure:
    return _Failure(f"{host}: the resolver did not answer in time", here=True)


def _age(moment: float) -> float:
    return trio.current_time() - moment


def _with_port(addresses: tuple[Address, ...], port: int) -> list[Address]:
    return [(family, (name[0], port, *name[2:])) for family, name in addresses]


def _literal(host: str, port: int) -> Address | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return (socket.AF_INET if address.version == 4 else socket.AF_INET6), (str(address), port)
