"""The threads that resolve names, and which name may have one.

A call of getaddrinfo can't be cancelled. It keeps its thread until libc gives up: 10 to 30 s for a name whose servers
never answer. So threads are bounded, and allotted by what is known of a name.
- Names that resolved recently have threads that no other name can take.
- All other names share the rest. Names whose last look-up hung get at most a quarter of these: one quarter for names
  that never resolved, another for names that did recently. The names of one domain get at most a quarter too. So new
  names that answer always find a thread.
- A look-up that gets no thread in time fails. The failure counts as this side's, and the attempt has time to report it.
"""

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any
from weakref import WeakValueDictionary

import trio

from holdfast.core.errors import NameNotResolved

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
