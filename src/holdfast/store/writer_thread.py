"""The ledger's own thread, and the tasks that wait for what it does."""

import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any

import outcome
import trio

from holdfast.core.errors import StoreError
from holdfast.store.embedded.work import Group
from holdfast.store.port import Hearing

Results = list[Any] | None
Commit = Callable[[Group], Awaitable[Results]]


class Waiter(Hearing):
    """The task that awaits an operation, until it is cancelled: made by it, and called with the result or an error."""

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = trio.lowlevel.current_task()

    def __call__(self, result: Any) -> None:
        if self._task is not None:
            answer = outcome.Error(result) if isinstance(result, StoreError) else outcome.Value(result)
            trio.lowlevel.reschedule(self._task, answer)

    def abandon(self, _: Any) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class Turn:
    """Whose turn it is: one thread waits until another lets it go on, which it may do more than once.

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
    """The writer's own thread. LMDB wants a transaction to live and end on the thread that began it.

    `took` hears of each group: how many operations it had, and the seconds for its puts and for the rest.
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
        # The commit can't be called back: the wait for it has to be outlived by its end.
        result: Results = await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        self._took(len(group.operations), put - began, trio.current_time() - put)
        return result

    def end(self) -> None:
        self._groups.put(None)

    def _loop(self) -> None:
        while (item := self._groups.get()) is not None:
            group, puts_done, finish = item
            finish(outcome.capture(self._work, group, puts_done))
