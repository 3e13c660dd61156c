"""The tasks that make attempts, one after another: waking a task is cheaper than starting one for each attempt."""

import trio

from holdfast.core.start_order import Start

WORKERS_KEPT = 64
"""Idle workers that wait for an attempt; further workers end after theirs."""


class Worker:
    """A task that makes attempts. `start` is the next attempt, or None."""

    __slots__ = ("_waiting", "start")

    def __init__(self, start: Start) -> None:
        self.start: Start | None = start
        self._waiting: trio.lowlevel.Task | None = None

    def take(self, start: Start) -> None:
        self.start = start
        if self._waiting is not None:
            trio.lowlevel.reschedule(self._waiting)
            self._waiting = None

    async def wait(self, idle: list["Worker"]) -> None:
        """Wait for the next attempt. `idle` lists this worker; a cancelled worker leaves the list."""

        def abort(_: object) -> trio.lowlevel.Abort:
            idle.remove(self)
            return trio.lowlevel.Abort.SUCCEEDED

        self._waiting = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)
