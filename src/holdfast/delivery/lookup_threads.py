"""The threads that names are looked up in, and which name may have one.

A call of getaddrinfo can't be taken back: it keeps its thread until the libc gives up, 10 to 30 s for a name whose
servers never answer. So threads are bounded, and shared out by what is known of a name.
- Names that resolved lately have threads that no other name can take.
- All other names share the rest. Of these, names whose last look-up hung get a quarter (those that never resolved one,
  and those that did lately another), and so do the names of one domain: new names that answer get through.
- A look-up that gets no thread in time fails. That is this side's failure, and its attempt has time left to say so.
"""

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any
from weakref import WeakValueDictionary

import trio

from holdfast.core.errors import NameNotResolved

LATELY_THREADS = 32
"""For names that resolved lately."""
THREADS = 256
"""For all other names: about as many as can be asked for at once by default. 256 that hang take 11 MB."""
SHARE = THREADS // 4
STACK = 256 << 10
"""Bytes of a thread's stack. It is address space: what a hanging look-up touches is about 30 kB."""
FOR_A_THREAD = 5.0
"""Seconds that a look-up waits for a thread."""

IDLE_FOR = 10.0
"""Seconds that a thread waits for the next look-up: to start one takes three times as long as to wake one."""

Found = list[Any] | Exception
"""What getaddrinfo returned or raised."""
Ask = Callable[[], list[Any]]
End = Callable[[Found], None]
Job = tuple[Ask, End, trio.lowlevel.TrioToken]


class LookupThreads:
    def __init__(self) -> None:
        self._for_lately = trio.CapacityLimiter(LATELY_THREADS)
        self._for_others = trio.CapacityLimiter(THREADS)
        self._for_hung = {lately: trio.CapacityLimiter(SHARE) for lately in (True, False)}
        """By whether the name resolved lately: when all names hung for a while, these are the first to answer again."""
        self._for_domains: WeakValueDictionary[str, trio.CapacityLimiter] = WeakValueDictionary()
        """Kept alive by those who hold or wait for a part."""
        self._idle: list[SimpleQueue[Job]] = []
        """Of each thread that waits, where it waits for a job. The one that waited least is the next."""

    @asynccontextmanager
    async def place(self, host: str, *, resolved_lately: bool, hung: bool) -> AsyncIterator[None]:
        """The right to one thread, to be held until that has ended. Raises NameNotResolved if none is free for long."""
        if hung:
            shares = [self._for_hung[resolved_lately], self._for_domain(host), self._for_others]
        elif resolved_lately:
            shares = [self._for_lately]
        else:
            shares = [self._for_domain(host), self._for_others]
        async with AsyncExitStack() as held:
            with trio.move_on_after(FOR_A_THREAD) as patience:
                for share in shares:
                    await held.enter_async_context(share)
            if patience.cancelled_caught:
                many = self._for_others.borrowed_tokens + self._for_lately.borrowed_tokens
                raise NameNotResolved(f"{host}: not looked up, since too many look-ups hang ({many})", here=True)
            yield

    def _for_domain(self, host: str) -> trio.CapacityLimiter:
        """Names of one domain have the same servers, and anybody can have a million of them."""
        domain = ".".join(host.rsplit(".", 2)[-2:])
        share = self._for_domains.get(domain)
        if share is None:
            share = self._for_domains[domain] = trio.CapacityLimiter(SHARE)
        return share

    def start(self, ask: Ask, end: End) -> None:
        """Call `ask` in a thread, and `end` with what came of it in trio's, unless trio has ended before. It takes a
        place.
        """
        job = (ask, end, trio.lowlevel.current_trio_token())
        try:
            self._idle.pop().put(job)
        except IndexError:
            jobs: SimpleQueue[Job] = SimpleQueue()
            jobs.put(job)
            self._start_thread(jobs)

    def _start_thread(self, jobs: "SimpleQueue[Job]") -> None:
        """One of our own, since trio's have the stack that the system gives: hundreds of those are gigabytes where
        address space is limited.
        """
        before = threading.stack_size(STACK)
        try:
            threading.Thread(target=_work, args=(jobs, self._idle), name="look-up", daemon=True).start()
        finally:
            threading.stack_size(before)


def _work(jobs: "SimpleQueue[Job]", idle: "list[SimpleQueue[Job]]") -> None:
    """A thread: one job after another, until there is none for a while. Each step on `idle` is atomic."""
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
