"""The writer's thread, and how large a group it takes at once.

A group holds the operations that arrived while the last group was written, within bounds. The loop stands still while
a group is put, so a group is larger only where an fsync is slow. It is smaller where little room is left: the pages
that a group copies have to fit too.
"""

import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any

import outcome
import trio

from holdfast.store.batching import GROUP_LIMIT
from holdfast.store.embedded.group import Group

LARGEST_GROUP = 4_096
"""Operations in one group after a slow fsync."""
PUTS_TO_SYNC = 4
"""Putting a group takes at most this part of the time that the last fsync took, or GROUP_LIMIT operations."""

Results = list[Any] | None
CommitGroup = Callable[[Group], Awaitable[Results]]


class Turn:
    """One thread waits until another releases it, which may happen more than once.

    A bare lock: a semaphore of the standard library is made of several, and costs ten times as much.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def release(self) -> None:
        if self._lock.locked():
            self._lock.release()

    def wait(self) -> None:
        self._lock.acquire()


class WriterThread:
    """Runs `work` for each group. LMDB requires a transaction to begin and end on one thread.

    After each group `took` is called with its number of operations, and the seconds for its puts and for the rest.
    """

    def __init__(self, work: Callable[[Group, Turn], Results], took: Callable[[int, float, float], None]) -> None:
        self._work = work
        self._took = took
        self._groups: SimpleQueue[tuple[Group, Turn, Callable[[Any], None]] | None] = SimpleQueue()
        threading.Thread(target=self._loop, name="ledger", daemon=True).start()

    async def commit(self, group: Group) -> Results:
        task = trio.lowlevel.current_task()
        token = trio.lowlevel.current_trio_token()
        puts_done = Turn()

        def finish(result: Any) -> None:
            token.run_sync_soon(trio.lowlevel.reschedule, task, result)

        began = trio.current_time()
        self._groups.put((group, puts_done, finish))
        puts_done.wait()
        put = trio.current_time()
        # A commit can't be cancelled, so neither can the wait for it.
        result: Results = await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        self._took(len(group.operations), put - began, trio.current_time() - put)
        return result

    def end(self) -> None:
        self._groups.put(None)

    def _loop(self) -> None:
        while (item := self._groups.get()) is not None:
            group, puts_done, finish = item
            finish(outcome.capture(self._work, group, puts_done))


class GroupLimit:
    """How many operations the next group may have, by how long the last ones took and whether they fitted."""

    def __init__(self) -> None:
        self._by_time = GROUP_LIMIT
        self._by_room = LARGEST_GROUP

    @property
    def operations(self) -> int:
        return min(self._by_time, self._by_room)

    def took(self, operations: int, puts: float, sync: float) -> None:
        """A group took these seconds for its puts, and these from there to the end of the commit."""
        affordable = int(operations * sync / (PUTS_TO_SYNC * puts)) if puts else 0
        self._by_time = min(max(affordable, GROUP_LIMIT), LARGEST_GROUP)

    def fitted(self) -> None:
        self._by_room = min(self._by_room + self._by_room // 8 + 1, LARGEST_GROUP)

    def did_not_fit(self, operations: int) -> None:
        self._by_room = max(1, operations // 2)
