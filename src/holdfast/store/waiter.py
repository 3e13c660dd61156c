"""The task that waits for an operation. Apart from batching.py, because offline commands run without trio."""

from typing import Any

import outcome
import trio

from holdfast.core.errors import StoreError
from holdfast.store.port import DoneOrFailed


class Waiter(DoneOrFailed):
    """Wakes the task that made it with the result of an operation, unless that task was cancelled."""

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = trio.lowlevel.current_task()

    def __call__(self, result: Any) -> None:
        if self._task is not None:
            answer = outcome.Error(result) if isinstance(result, StoreError) else outcome.Value(result)
            trio.lowlevel.reschedule(self._task, answer)

    def abandon(self, _: Any) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
