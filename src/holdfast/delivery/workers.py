"""The tasks that make attempts, one after another: waiting for the next one is cheaper than a task for each."""

import trio

from holdfast.core.board import Start

WORKERS_KEPT = 64
"""Tasks that wait for the next attempt; others end with theirs."""


class Worker:
    """A task that makes attempts: `start` is the next one, and None while there is none."""

    __slots__ = ("_waiting", "start")

    def __init__(self, start: Start) -> None:
        self.start: Start | None = start
        self._waiting: trio.lowlevel.Task | None = None

    def take(self, start: Start) -> None:
        self.start = start
        if self._waiting is not None:
            trio.lowlevel.reschedule(self._waiting)
            self._waiting = None

    async def wait(self, free: list["Worker"]) -> None:
        """Until there is a next one."""

        def gone(_: object) -> trio.lowlevel.Abort:
            free.remove(self)
            return trio.lowlevel.Abort.SUCCEEDED

        self._waiting = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(gone)
