"""Resolves host names with the system's getaddrinfo, in threads, so that a name that hangs delays no other.

There is one look-up per name at a time, shared by all attempts that wait for it. An attempt that gives up leaves it to
the others. A look-up that nobody waits for any more does not start.

Every new connection resolves its name again. Two bounded caches help while the resolver does not answer: the last good
answer of a name replaces a failure on this side, and a name that failed is not looked up again for some seconds.

A call of getaddrinfo can't be cancelled. It keeps its thread until libc gives up: 10 to 30 s for a name whose servers
never answer. So threads are bounded, and allotted by what is known of a name.
- Names that resolved recently have threads that no other name can take.
- All other names share the rest. Names whose last look-up hung get at most a quarter of these: one quarter for names
  that never resolved, another for names that did recently. The names of one domain get at most a quarter too. So new
  names that answer always find a thread.
- A look-up that gets no thread in time fails. The failure counts as this side's, and the attempt has time to report it.
"""

import errno
import os
import socket
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import trio

from holdfast.core.errors import NameNotResolved
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
RECENT_THREADS = 32
"""For names that resolved recently."""
THREADS = 256
"""For all other names: about as many as the default limits can need at once. 256 hung threads take 11 MB."""
SHARE = THREADS // 4
STACK = 256 << 10
"""Bytes of a thread's stack. This is address space: a hung look-up touches about 30 kB."""
FOR_A_THREAD = 5.0
"""Seconds that a look-up waits for a thread."""
IDLE_FOR = 10.0
"""Seconds that a thread waits for its next look-up. Starting a thread takes three times as long as waking one."""

Found = list[Any] | Exception
"""The result of getaddrinfo, or its error."""
Ask = Callable[[], list[Any]]
End = Callable[[Found], None]
Job = tuple[Ask, End, trio.lowlevel.TrioToken]
GetAddrInfo = Callable[..., list[Any]]
Cached = TypeVar("Cached")


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a name has no address. `here` is True if the failure is on this side, `hung` if it held a thread for long."""

    detail: str
    here: bool
    hung: bool = False


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
        self._answers: OrderedDict[str, tuple[float, tuple[Address, ...]]] = OrderedDict()
        self._failures: OrderedDict[str, tuple[float, _Failure]] = OrderedDict()
        """Both with the time of the look-up."""
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
            self._remember_failure(host, look_up.failure)
            look_up.done.set()
            await ended.wait()
        (found,) = result
        if isinstance(found, Exception):
            look_up.failure = replace(_failure(host, found), hung=_age(began) >= HANGS_AFTER)
            if isinstance(found, socket.gaierror):
                self._remember_failure(host, look_up.failure)
        else:
            look_up.addresses = tuple((family, name) for family, _, _, _, name in found)
            self._remember_answer(host, look_up.addresses)

    # -- the caches --------------------------------------------------------------------------------------------------

    def _last_good(self, host: str) -> tuple[Address, ...]:
        at, addresses = self._answers.get(host, (0.0, ()))
        return addresses if addresses and _age(at) < LAST_GOOD_FOR else ()

    def _failed_just_now(self, host: str) -> _Failure | None:
        at, failure = self._failures.get(host, (0.0, None))
        return failure if failure is not None and _age(at) < FAILURE_KEPT_FOR else None

    def _hung(self, host: str) -> bool:
        return host in self._failures and self._failures[host][1].hung

    def _remember_answer(self, host: str, addresses: tuple[Address, ...]) -> None:
        self._failures.pop(host, None)
        _remember(self._answers, host, (trio.current_time(), addresses))

    def _remember_failure(self, host: str, failure: _Failure) -> None:
        _remember(self._failures, host, (trio.current_time(), failure))
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
    return _Failure(f"{host}: the resolver did not answer in time", here=True, hung=True)


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


class LookupThreads:
    def __init__(self) -> None:
        self._for_recent = trio.CapacityLimiter(RECENT_THREADS)
        self._for_others = trio.CapacityLimiter(THREADS)
        self._for_hung = {recent: trio.CapacityLimiter(SHARE) for recent in (True, False)}
        """By whether the name resolved recently: after an outage of all names, these answer first."""
        self._for_domains: WeakValueDictionary[str, trio.CapacityLimiter] = WeakValueDictionary()
        """Kept alive by the look-ups that hold a thread or wait for one."""
        self._idle: list[SimpleQueue[Job]] = []
        """The job queues of idle threads. The thread that became idle last is used first."""

    @asynccontextmanager
    async def place(self, host: str, *, resolved_recently: bool, hung: bool) -> AsyncIterator[None]:
        """The right to one thread, held until that thread ends. Raises NameNotResolved if none gets free in time."""
        if hung:
            shares = [self._for_hung[resolved_recently], self._for_domain(host), self._for_others]
        elif resolved_recently:
            shares = [self._for_recent]
        else:
            shares = [self._for_domain(host), self._for_others]
        async with AsyncExitStack() as held:
            with trio.move_on_after(FOR_A_THREAD) as patience:
                for share in shares:
                    await held.enter_async_context(share)
            if patience.cancelled_caught:
                many = self._for_others.borrowed_tokens + self._for_recent.borrowed_tokens
                raise NameNotResolved(f"{host}: not looked up, since too many look-ups hang ({many})", here=True)
            yield

    def _for_domain(self, host: str) -> trio.CapacityLimiter:
        """Names of one domain have the same servers, and anyone can create a million of them."""
        domain = ".".join(host.rsplit(".", 2)[-2:])
        share = self._for_domains.get(domain)
        if share is None:
            share = self._for_domains[domain] = trio.CapacityLimiter(SHARE)
        return share

    def start(self, ask: Ask, end: End) -> None:
        """Call `ask` in a thread, then `end` with the result on trio's thread unless trio has ended. The caller must
        hold a `place`.
        """
        job = (ask, end, trio.lowlevel.current_trio_token())
        try:
            self._idle.pop().put(job)
        except IndexError:
            jobs: SimpleQueue[Job] = SimpleQueue()
            jobs.put(job)
            self._start_thread(jobs)

    def _start_thread(self, jobs: "SimpleQueue[Job]") -> None:
        """Not one of trio's threads: they have the system's stack size, and hundreds of those take gigabytes of address
        space, which may be limited.
        """
        before = threading.stack_size(STACK)
        try:
            threading.Thread(target=_run_jobs, args=(jobs, self._idle), name="look-up", daemon=True).start()
        finally:
            threading.stack_size(before)


def _run_jobs(jobs: "SimpleQueue[Job]", idle: "list[SimpleQueue[Job]]") -> None:
    """Runs jobs in a thread until none comes for a while. Each operation on `idle` is atomic."""
    while True:
        try:
            ask, end, token = jobs.get(timeout=IDLE_FOR)
        except Empty:
            try:
                idle.remove(jobs)
            except ValueError:
                # It was just given a job.
                continue
            return
        found: Found
        try:
            found = ask()
        except Exception as error:
            found = error
        idle.append(jobs)
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(end, found)
        del ask, end, token, found
