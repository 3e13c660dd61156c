"""Operations on their way to the database: while one group is under way the next one forms, on a connection of its own.

When the database is away a group stays, and is written when it is back; or, where whoever waits had better hear of it
at once, everyone in it is told. Whether it was written then nobody can tell. A group that failed is the last one: all
who wait hear of it.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio

from holdfast.core.errors import CommitFailed, StoreAway, StoreError
from holdfast.store.port import Hearing, Operation

Write = Callable[[Sequence[Operation]], Awaitable[list[Any]]]
Size = Callable[[Sequence[Operation]], int]

TRY_AGAIN_AFTER = 0.25


class Channel:
    """`write` commits a group and returns its results, `size` says how many of the pending ones make the next group,
    `tell` is given each operation with its result. `patient`: a group waits for the database to come back.
    """

    def __init__(
        self, write: Write, size: Size, tell: Callable[[Sequence[Operation], Sequence[Any]], None], *, patient: bool
    ) -> None:
        self._write = write
        self._size = size
        self._tell = tell
        self._patient = patient
        self._pending: list[Operation] = []
        self._under_way: Sequence[Operation] = ()
        self._began = 0.0
        self._wake = trio.Event()
        self.last = 0.0
        """Seconds that the last group took."""

    def __len__(self) -> int:
        return len(self._pending) + len(self._under_way)

    @property
    def age(self) -> float:
        """Seconds since the group under way was first tried; 0 when none is."""
        return trio.current_time() - self._began if self._under_way else 0.0

    def put(self, operation: Operation) -> None:
        self._pending.append(operation)
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled; what was put by then is still written if the database is there."""
        try:
            while True:
                await self._wake.wait()
                await self._next()
        finally:
            with trio.CancelScope(shield=True):
                await self._finish()

    def refuse(self, error: StoreError) -> None:
        """Tell everyone who waits and listens to that."""
        doomed, self._pending = [*self._under_way, *self._pending], []
        for operation in doomed:
            if isinstance(operation.done, Hearing):
                operation.done(error)

    async def _next(self) -> None:
        size = self._size(self._pending)
        self._under_way, self._pending = self._pending[:size], self._pending[size:]
        if not self._pending:
            self._wake = trio.Event()
        if not self._under_way:
            return
        self._began = trio.current_time()
        try:
            results = await self._written(self._under_way)
        except CommitFailed as error:
            self.refuse(error)
            raise
        finally:
            operations, self._under_way = self._under_way, ()
        self.last = trio.current_time() - self._began
        self._tell(operations, results)

    async def _written(self, operations: Sequence[Operation]) -> list[Any]:
        while True:
            try:
                with trio.CancelScope(shield=True):
                    return await self._write(operations)
            except StoreAway as away:
                if not self._patient:
                    return [away] * len(operations)
                try:
                    await trio.sleep(TRY_AGAIN_AFTER)
                except trio.Cancelled:
                    self._pending = [*operations, *self._pending]
                    raise

    async def _finish(self) -> None:
        """Once more: what can't be written now is found unfinished by whoever takes it over."""
        while self._pending:
            size = self._size(self._pending)
            operations, self._pending = self._pending[:size], self._pending[size:]
            try:
                self._tell(operations, await self._write(operations))
            except (StoreAway, CommitFailed) as error:
                self._pending = [*operations, *self._pending]
                # Nothing is tried again after this: whoever waits hears the same of both.
                self.refuse(CommitFailed(str(error)))
                return
