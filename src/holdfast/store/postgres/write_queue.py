"""Operations on their way to the database: while one group is under way the next one forms, on a connection of its own.

What nobody waits for is written at once if nothing was written lately. Else it is kept back for a moment, so that more
of it shares a transaction: ten outcomes cost hardly more than one. When the database is away a group that records what
happened stays, and is written when it is back. Of any other whoever waits is told at once. Whether it was written then
nobody can tell. A group that failed is the last one: all who wait hear of it.

Rows that a session of someone else has locked hold up only the lanes that they belong to. A group that meets one is
written anew, each lane by itself, and what can't be written waits apart, in its order, with all that follows for its
lane.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile
from typing import Any

import trio

from holdfast.core.errors import CommitFailed, RowsLocked, StoreError, StoreUnreachable
from holdfast.core.message import masked_lane
from holdfast.store.port import Hearing, Operation

Write = Callable[[Sequence[Operation]], Awaitable[list[Any]]]
Size = Callable[[Sequence[Operation]], int]

TRY_AGAIN_AFTER = 0.25
LOCKED_AGAIN_AFTER = 1.0
"""Seconds until a lane that is held up is tried again: each try takes the connection for as long as it waits."""
GATHER = 0.25
"""Seconds between the starts of two groups of what is not urgent, unless there is as much as this."""
GATHERED = 16

_logger = logging.getLogger("holdfast.store")


class WriteQueue:
    """`write` commits a group and returns its results, `size` says how many of the pending ones make the next group,
    `tell` is given each operation with its result. Groups of the kinds that are `patient` wait for the database to come
    back. `is_urgent`: whether an operation starts a group at once. `lane_of` names the lane that an operation is about,
    if it is about one.
    """

    def __init__(
        self,
        write: Write,
        size: Size,
        tell: Callable[[Sequence[Operation], Sequence[Any]], None],
        *,
        patient: tuple[type[Operation], ...] = (),
        is_urgent: Callable[[Operation], bool] = lambda operation: True,
        lane_of: Callable[[Operation], str | None] = lambda operation: None,
    ) -> None:
        self._write = write
        self._size = size
        self._tell = tell
        self._patient = patient
        self._is_urgent = is_urgent
        self._lane_of = lane_of
        self._pending: list[Operation] = []
        self._apart = 0
        """How many of the first of these are written each lane by itself."""
        self._held_up: dict[str, list[Operation]] = {}
        self._again_at = 0.0
        self._tried_again = ""
        self.under_way: Sequence[Operation] = ()
        self._interrupted: Sequence[Operation] = ()
        self._began = float("-inf")
        self._wake = trio.Event()
        self._hurry = trio.Event()
        self.last = 0.0
        """Seconds that the last group took."""

    def __len__(self) -> int:
        return len(self._pending) + len(self.under_way) + sum(map(len, self._held_up.values()))

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
        """Until cancelled; what was put by then is still written if the database is there."""
        try:
            while True:
                if self._held_up:
                    with trio.CancelScope(deadline=self._again_at):
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
        """Write nothing of what only waits, and tell whoever listens to that."""
        _tell_failure(self._empty(), error)

    def refuse(self, error: StoreError) -> None:
        """Tell everyone who waits and listens to that."""
        _tell_failure([*self.under_way, *self._empty()], error)

    def _empty(self) -> list[Operation]:
        """All that waits, which is forgotten here."""
        waiting = [*(each for lane in self._held_up.values() for each in lane), *self._pending]
        self._pending, self._apart, self._held_up = [], 0, {}
        return waiting

    async def _next(self) -> None:
        operations = self.under_way = self._take()
        if not operations:
            return
        self._began = trio.current_time()
        try:
            results = await self._written(operations)
        except RowsLocked:
            self._set_apart(operations)
            return
        except CommitFailed as error:
            self.refuse(error)
            raise
        finally:
            self.under_way = ()
        self.last = trio.current_time() - self._began
        self._tell(operations, results)

    def _take(self) -> Sequence[Operation]:
        """The next group."""
        if self._held_up:
            self._put_behind()
        size = self._size(self._pending)
        if self._apart:
            lane = self._lane_of(self._pending[0])
            alike = takewhile(lambda each: self._lane_of(each) == lane, self._pending[: self._apart])
            size = min(size, sum(1 for _ in alike))
            self._apart -= size
        operations, self._pending = self._pending[:size], self._pending[size:]
        if not self._pending:
            self._wake, self._hurry = trio.Event(), trio.Event()
        return operations

    def _put_behind(self) -> None:
        """What is about a lane that is held up waits behind what is; or one of these is tried once more."""
        if trio.current_time() >= self._again_at:
            self._tried_again = next(iter(self._held_up))
            again = self._held_up.pop(self._tried_again)
            self._pending, self._apart = [*again, *self._pending], len(again) + self._apart
            self._hasten()
        free: list[Operation] = []
        first, self._apart = self._apart, 0
        for number, operation in enumerate(self._pending):
            held_up = self._held_up.get(self._lane_of(operation) or "")
            if held_up is None:
                free.append(operation)
                self._apart += number < first
            else:
                held_up.append(operation)
        self._pending = free

    def _set_apart(self, operations: Sequence[Operation]) -> None:
        lanes = {self._lane_of(each) or "" for each in operations}
        if len(lanes) > 1:
            self._pending = [*sorted(operations, key=lambda each: self._lane_of(each) or ""), *self._pending]
            self._apart += len(operations)
            self._hasten()
            return
        [lane] = lanes
        if not lane:
            _tell_failure(operations, StoreUnreachable("rows of the database are locked by someone else"))
            return
        if lane != self._tried_again:
            _logger.warning("outcomes of %s wait for rows that another session has locked", masked_lane(lane))
        self._held_up[lane] = list(operations)
        self._again_at = trio.current_time() + LOCKED_AGAIN_AFTER

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
            except StoreUnreachable as away:
                if not isinstance(operations[0], self._patient):
                    return [away] * len(operations)
                try:
                    await trio.sleep(TRY_AGAIN_AFTER)
                except trio.Cancelled:
                    self._interrupted = operations
                    raise

    async def _finish(self) -> None:
        """Once more: what can't be written now is found unfinished by whoever takes it over."""
        self._pending = self._empty()
        # The same group again: only so can it be told whether it was written.
        while operations := self._interrupted or self._take():
            self._interrupted = ()
            try:
                self._tell(operations, await self._write(operations))
            except RowsLocked:
                self._set_apart(operations)
            except (StoreUnreachable, CommitFailed) as error:
                self._pending = [*operations, *self._pending]
                # Nothing is tried again after this: whoever waits hears the same of both.
                self.refuse(CommitFailed(str(error)))
                return
        self.refuse(CommitFailed("rows of the database are locked by someone else"))


def _tell_failure(operations: Sequence[Operation], error: StoreError) -> None:
    for operation in operations:
        if isinstance(operation.done, Hearing):
            operation.done(error)
