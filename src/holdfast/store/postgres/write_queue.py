"""A queue of operations, written in groups: while one transaction runs, the next group forms.

An urgent operation starts a group at once. Others wait up to `GATHER` seconds after the last group, so that more of
them share a transaction: ten outcomes cost hardly more than one.

While the database is unreachable, a group of a `patient` kind stays and is written later. Operations of other groups
fail at once, and nobody knows whether they were written. After a commit that failed the queue writes nothing more.

Rows that another session has locked delay only their own lanes. A group that meets one is written again, each lane by
itself. The lanes that can't be written wait aside in order, with all later operations of theirs.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile
from typing import Any

import trio

from holdfast.core.errors import CommitFailed, RowsLocked, StoreError, StoreUnreachable
from holdfast.core.message import masked_lane
from holdfast.store.port import DoneOrFailed, Operation
from holdfast.store.postgres.state import TRY_AGAIN_AFTER

Write = Callable[[Sequence[Operation]], Awaitable[list[Any]]]
Size = Callable[[Sequence[Operation]], int]

LOCKED_AGAIN_AFTER = 1.0
"""Seconds until a locked lane is tried again: each try occupies the connection until its lock time-out."""
GATHER = 0.25
"""Seconds between the starts of two groups that are not urgent."""
GATHERED = 16
"""Operations that start a group before that."""
LOCKED = "rows of the database are locked by someone else"

_logger = logging.getLogger("holdfast.store")


class WriteQueue:
    """`write` commits a group and returns its results. `size` is the number of pending operations that make the next
    group. `report` gets the operations of a group and their results. `lane_of` is the lane of an operation, if it has
    one.
    """

    def __init__(
        self,
        write: Write,
        size: Size,
        report: Callable[[Sequence[Operation], Sequence[Any]], None],
        *,
        patient: tuple[type[Operation], ...] = (),
        is_urgent: Callable[[Operation], bool] = lambda operation: True,
        lane_of: Callable[[Operation], str | None] = lambda operation: None,
    ) -> None:
        self._write = write
        self._size = size
        self._report = report
        self._patient = patient
        self._is_urgent = is_urgent
        self._lane_of = lane_of
        self._pending: list[Operation] = []
        self._single = 0
        """The first so many of these are written each lane by itself."""
        self._locked: dict[str, list[Operation]] = {}
        """Operations of the lanes that wait for locked rows."""
        self._retry_at = 0.0
        self._retried = ""
        self.under_way: Sequence[Operation] = ()
        self._interrupted: Sequence[Operation] = ()
        self._began = float("-inf")
        self._wake = trio.Event()
        self._hurry = trio.Event()
        self.last = 0.0
        """Seconds that the last group took."""

    def __len__(self) -> int:
        return len(self._pending) + len(self.under_way) + sum(map(len, self._locked.values()))

    @property
    def age(self) -> float:
        """Seconds since the group under way was first tried; 0 when none is."""
        return trio.current_time() - self._began if self.under_way else 0.0

    def put(self, operation: Operation) -> None:
        self._pending.append(operation)
        self._wake.set()
        if len(self._pending) >= GATHERED or self._is_urgent(operation):
            self._hurry.set()

    async def run(self) -> None:
        """Writes until cancelled; then once more all that was put, if the database answers."""
        try:
            while True:
                if self._locked:
                    with trio.CancelScope(deadline=self._retry_at):
                        await self._wake.wait()
                else:
                    await self._wake.wait()
                if not self._hurry.is_set():
                    with trio.move_on_at(self._began + GATHER):
                        await self._hurry.wait()
                await self._next()
        finally:
            with trio.CancelScope(shield=True):
                await self._finish()

    def drop(self, error: StoreError) -> None:
        """Fails all operations that are not under way."""
        _fail(self._empty(), error)

    def refuse(self, error: StoreError) -> None:
        """Fails all operations."""
        _fail([*self.under_way, *self._empty()], error)

    def _empty(self) -> list[Operation]:
        """Removes and returns all that waits."""
        waiting = [*(each for lane in self._locked.values() for each in lane), *self._pending]
        self._pending, self._single, self._locked = [], 0, {}
        return waiting

    async def _next(self) -> None:
        operations = self.under_way = self._take()
        if not operations:
            return
        self._began = trio.current_time()
        try:
            results = await self._written(operations)
        except RowsLocked:
            self._split_or_wait(operations)
            return
        except CommitFailed as error:
            self.refuse(error)
            raise
        finally:
            self.under_way = ()
        self.last = trio.current_time() - self._began
        self._report(operations, results)

    def _take(self) -> Sequence[Operation]:
        """The next group."""
        if self._locked:
            self._part_locked()
        size = self._size(self._pending)
        if self._single:
            lane = self._lane_of(self._pending[0])
            alike = takewhile(lambda each: self._lane_of(each) == lane, self._pending[: self._single])
            size = min(size, sum(1 for _ in alike))
            self._single -= size
        operations, self._pending = self._pending[:size], self._pending[size:]
        if not self._pending:
            self._wake, self._hurry = trio.Event(), trio.Event()
        return operations

    def _part_locked(self) -> None:
        """Operations of a locked lane join those that wait. When it is time, the first locked lane is tried again."""
        if trio.current_time() >= self._retry_at:
            self._retried = next(iter(self._locked))
            again = self._locked.pop(self._retried)
            self._pending, self._single = [*again, *self._pending], len(again) + self._single
            self._hasten()
        free: list[Operation] = []
        first, self._single = self._single, 0
        for number, operation in enumerate(self._pending):
            locked = self._locked.get(self._lane_of(operation) or "")
            if locked is None:
                free.append(operation)
                self._single += number < first
            else:
                locked.append(operation)
        self._pending = free

    def _split_or_wait(self, operations: Sequence[Operation]) -> None:
        """A group met locked rows: write each of its lanes by itself, or let its only lane wait."""
        lanes = {self._lane_of(each) or "" for each in operations}
        if len(lanes) > 1:
            self._pending = [*sorted(operations, key=lambda each: self._lane_of(each) or ""), *self._pending]
            self._single += len(operations)
            self._hasten()
            return
        [lane] = lanes
        if not lane:
            _fail(operations, StoreUnreachable(LOCKED))
            return
        if lane != self._retried:
            _logger.warning("outcomes of %s wait for rows that another session has locked", masked_lane(lane))
        self._locked[lane] = list(operations)
        self._retry_at = trio.current_time() + LOCKED_AGAIN_AFTER

    def _hasten(self) -> None:
        self._wake.set()
        self._hurry.set()

    async def _written(self, operations: Sequence[Operation]) -> list[Any]:
        while True:
            try:
                with trio.CancelScope(shield=True):
                    return await self._write(operations)
            except RowsLocked:
                raise
            except StoreUnreachable as error:
                if not isinstance(operations[0], self._patient):
                    return [error] * len(operations)
                try:
                    await trio.sleep(TRY_AGAIN_AFTER)
                except trio.Cancelled:
                    self._interrupted = operations
                    raise

    async def _finish(self) -> None:
        """Tries once more. The next owner finds the rest unfinished."""
        self._pending = self._empty()
        # The interrupted group again, unchanged: only then can its fence tell whether it was written.
        while operations := self._interrupted or self._take():
            self._interrupted = ()
            try:
                self._report(operations, await self._write(operations))
            except RowsLocked:
                self._split_or_wait(operations)
            except (StoreUnreachable, CommitFailed) as error:
                self._pending = [*operations, *self._pending]
                # Nothing is tried again after this: both mean the same to those who wait.
                self.refuse(CommitFailed(str(error)))
                return
        self.refuse(CommitFailed(LOCKED))


def _fail(operations: Sequence[Operation], error: StoreError) -> None:
    for operation in operations:
        if isinstance(operation.done, DoneOrFailed):
            operation.done(error)
