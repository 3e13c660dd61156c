"""Resolves host names with the system's getaddrinfo, in threads, so that a name that hangs delays no other.

There is one look-up per name at a time, shared by all attempts that wait for it. An attempt that gives up leaves it to
the others. A look-up that nobody waits for any more does not start.

Every new connection resolves its name again. Two bounded caches help while the resolver does not answer: the last good
answer of a name replaces a failure on this side, and a name that failed is not looked up again for some seconds.
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
from holdfast.http.dial import Address

TIMEOUT = 10.0
HANGS_AFTER = 1.0
"""Seconds after which a look-up counts as hung, and the last good answer is used instead."""
SHARE_OF_DEADLINE = 0.9
"""An attempt with less time left waits for this part of it, so that it can still report why it failed."""
LAST_GOOD_FOR = 3_600.0
"""Seconds that an answer may be used while the resolver does not answer."""
FAILURE_KEPT_FOR = 5.0
"""Seconds after a failed look-up in which the name is not looked up again."""
NAMES_KEPT = 10_000
"""Names in each of the two caches; the oldest entry goes first."""

GetAddrInfo = Callable[..., list[Any]]
Cached = TypeVar("Cached")


@dataclass(frozen=True, slots=True)
class _Answer:
    addresses: tuple[Address, ...]
    at: float


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a name has no address. `here` is True if the failure is on this side."""

    detail: str
    here: bool


@dataclass(frozen=True, slots=True)
class _PastFailure:
    """`hung` is True if the look-up held its thread for long."""

    failure: _Failure
    at: float
    hung: bool


class _LookUp:
    """A look-up under way. With `in_thread` it can't be cancelled any more. `done` is set when the waiting attempts
    have their answer; a thread that hangs may run on after that.
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
    """`getaddrinfo` is called in a thread with a host, no port, and the type of socket."""

    def __init__(self, getaddrinfo: GetAddrInfo = socket.getaddrinfo) -> None:
        self._getaddrinfo = getaddrinfo
        self._under_way: dict[str, _LookUp] = {}
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self._failures: OrderedDict[str, _PastFailure] = OrderedDict()
        self._threads = LookupThreads()

    async def look_up(self, host: str, port: int) -> list[Address]:
        """Returns all addresses of a host in the resolver's order. Raises NameNotResolved."""
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
            failure = look_up.failure or _no_answer(host)
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
        """A system task: it outlives the attempt that started it, and must not raise."""
        try:
            with look_up.scope:
                recently, hung = bool(self._last_good(host)), self._hung(host)
                async with self._threads.place(host, resolved_recently=recently, hung=hung):
                    look_up.in_thread = True
                    await self._ask_in_thread(host, look_up)
        except Exception as error:
            look_up.failure = _failure(host, error)
        finally:
            if self._under_way.get(host) is look_up:
                del self._under_way[host]
            look_up.done.set()

    async def _ask_in_thread(self, host: str, look_up: _LookUp) -> None:
        """Returns when the thread has ended, which may be long after the attempts gave up waiting."""
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
            look_up.failure = _no_answer(host)
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

    # -- the caches --------------------------------------------------------------------------------------------------

    def _last_good(self, host: str) -> tuple[Address, ...]:
        answer = self._answers.get(host)
        return answer.addresses if answer is not None and _age(answer.at) < LAST_GOOD_FOR else ()

    def _failed_just_now(self, host: str) -> _Failure | None:
        failed = self._failures.get(host)
        return failed.failure if failed is not None and _age(failed.at) < FAILURE_KEPT_FOR else None

    def _hung(self, host: str) -> bool:
        failed = self._failures.get(host)
        return failed is not None and failed.hung

    def _remember_answer(self, host: str, addresses: tuple[Address, ...]) -> None:
        self._failures.pop(host, None)
        _remember(self._answers, host, _Answer(addresses, trio.current_time()))

    def _remember_failure(self, host: str, failure: _Failure, *, hung: bool) -> None:
        _remember(self._failures, host, _PastFailure(failure, trio.current_time(), hung))
        if not failure.here:
            # The name's servers say that it has no address, so the last answer is no longer good.
            self._answers.pop(host, None)


async def _wait(look_up: _LookUp, patience: float) -> None:
    """Wait until it is done, for `patience` seconds at most."""
    left = trio.current_effective_deadline() - trio.current_time()
    look_up.waiting += 1
    try:
        with trio.move_on_after(max(0, min(patience, left * SHARE_OF_DEADLINE))):
            await look_up.done.wait()
    finally:
        look_up.waiting -= 1
        if not look_up.waiting and not look_up.in_thread:
            look_up.scope.cancel()


def _remember(cache: OrderedDict[str, Cached], host: str, entry: Cached) -> None:
    cache[host] = entry
    cache.move_to_end(host)
    if len(cache) > NAMES_KEPT:
        cache.popitem(last=False)


def _failure(host: str, error: Exception) -> _Failure:
    match error:
        case NameNotResolved():
            return _Failure(str(error), error.here)
        case socket.gaierror():
            return _Failure(f"{host}: {error.strerror}", error.errno == socket.EAI_AGAIN or _no_descriptors())
        case OSError():
            # The system failed, not the name. Without free descriptors glibc leaves any errno, such as EINVAL.
            return _Failure(f"{host}: {error}", here=True)
        case UnicodeError():
            return _Failure(f"{host}: not a host name", here=False)
        case _:
            # Most likely a thread could not be started.
            return _Failure(f"{host}: the resolver failed: {error}", here=True)


def _no_descriptors() -> bool:
    """Whether this process has no free descriptors. Then libc may report any name as nonexistent."""
    try:
        os.close(os.open("/", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False


def _no_answer(host: str) -> _Failure:
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
