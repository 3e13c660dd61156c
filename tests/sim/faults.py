"""What is done to a gateway: power cuts at any step or commit, commits that fail, a store without room.

After a power cut nothing reaches the store or a receiver any more, and nobody hears an answer; the tasks are then only
cleared away.
"""

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any

import trio

from holdfast.core.errors import CommitFailed, StoreFull
from holdfast.store.embedded.group import Group
from holdfast.store.embedded.ledger import Ledger
from holdfast.store.embedded.tables import Transaction
from holdfast.store.port import DropMessages, Expire, Operation
from tests.sim.world import WatchedEngine
from tests.store.memory import Session


class Blow(StrEnum):
    """What befalls a commit."""

    LOST = "lost"  # the power goes off before it is on disk
    UNHEARD = "unheard"  # the power goes off when it is, before anyone hears of it
    FAILED = "failed"  # the disk fails, and nothing of it is there
    FAILED_YET_WRITTEN = "failed_yet_written"  # the disk fails, and it is there nevertheless
    FULL = "full"  # there is no room after all


class FaultyEngine(WatchedEngine):
    """`blow` strikes the commit that `countdown` counts down to."""

    def __init__(self, max_size: int) -> None:
        super().__init__(max_size)
        self.powered = True
        self.blow: Blow | None = None
        self.countdown = 0
        self.on_cut: Callable[[], None] = lambda: None
        self.on_written: Callable[[], None] = lambda: None

    def write(self) -> Session:
        return _FaultySession(self)

    def struck(self) -> Blow | None:
        self.countdown -= 1
        return self.blow if self.countdown == 0 else None


class _FaultySession(Session):
    _engine: FaultyEngine

    def commit(self) -> None:
        engine = self._engine
        blow = engine.struck()
        if blow is Blow.LOST:
            engine.on_cut()
        if not engine.powered:
            raise CommitFailed("the power is off")
        if blow is Blow.FULL:
            raise StoreFull("there is no room after all")
        if blow is Blow.FAILED:
            raise CommitFailed("the disk failed")
        super().commit()
        engine.on_written()
        if blow is Blow.UNHEARD:
            engine.on_cut()
        if blow is Blow.FAILED_YET_WRITTEN:
            raise CommitFailed("the disk failed late")


class WatchedLedger(Ledger):
    """Tells what was submitted, and which group is on disk once it is.

    Reads and commits take time, as they do on a thread: what they show or write is settled when they begin.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.latency: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self.on_prepared: Callable[[Group], None] = lambda group: None
        self.on_submitted: Callable[[Operation], None] = lambda operation: None
        self.on_written: Callable[[Group, list[Any]], None] = lambda group, results: None
        self._applied: tuple[Group, list[Any]] | None = None
        apply = self._writer.apply

        def watched(transaction: Any, group: Group, **terms: Any) -> list[Any]:
            results = apply(transaction, group, **terms)
            self._applied = group, results
            return results

        self._writer.apply = watched  # type: ignore[method-assign]

    def submit(self, operation: Operation) -> None:
        self.on_submitted(operation)
        super().submit(operation)

    def _prepare(self, operations: Sequence[Operation]) -> Group:
        for operation in operations:
            if isinstance(operation, (DropMessages, Expire)):
                operation.skip = frozenset(operation.skip)  # type: ignore[call-overload]
        group = super()._prepare(operations)
        self.on_prepared(group)
        return group

    async def _commit_inline(self, group: Group) -> list[Any]:
        await self.latency()
        return await super()._commit_inline(group)

    async def _read(self, ask: Callable[[Transaction], Any]) -> Any:
        seen = await super()._read(ask)
        await self.latency()
        return seen

    def written(self) -> None:
        if self._applied is not None:
            applied, self._applied = self._applied, None
            self.on_written(*applied)


class StepCounter(trio.abc.Instrument):
    """Strikes before the step that `countdown` counts down to, whosever it is."""

    def __init__(self) -> None:
        self.countdown = 0
        self.strike: Callable[[], None] = lambda: None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.countdown -= 1
        if self.countdown == 0:
            self.strike()
