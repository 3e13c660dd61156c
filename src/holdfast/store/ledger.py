"""The one writer: collects operations, commits them as a group, then tells whoever waits. It is the Store of one
process.

While one group is on its way to the disk the next one forms, so a commit is shared by all who came meanwhile. The
writer is one own thread, in lockstep with the loop: the loop hands over a group and stands still while the thread
does its puts (a fraction of a millisecond), then the thread lets go and the fsync overlaps with the loop. Running
freely beside each other the two fight for the interpreter and the same group takes four times as long.

A commit that fails for another reason than room is final: every waiter hears of it, `broken` is set, and nothing is
written any more, since a disk that failed an fsync can't be trusted.
"""

import logging
import threading
from collections.abc import Callable, Container, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

import outcome
import trio

from holdfast.clock import Clock
from holdfast.core.circuit import CircuitState
from holdfast.core.errors import CommitFailed, StoreError, StoreFull
from holdfast.core.message import Message, MessageId, State, next_id
from holdfast.store import choosing, reads
from holdfast.store import stories as story_reads
from holdfast.store.port import (
    Accept,
    Accepted,
    Agenda,
    Ask,
    CircuitView,
    DeadFilter,
    Finished,
    Operation,
    Shelve,
    StoreStatistics,
    Story,
    View,
)
from holdfast.store.records import lane_key, unstamp
from holdfast.store.tables import META_LATEST, Engine, Table, Transaction
from holdfast.store.work import Group, StoreRules
from holdfast.store.writes import Writer, prepare

GROUP_LIMIT = 512
GROUP_BYTES = 4 << 20
"""Bodies in one group: the loop stands still while they are put, 2 ms a megabyte."""
START_BATCH = 1_000
READERS = 4

Result = TypeVar("Result")

_logger = logging.getLogger("holdfast.store")


class Ledger:
    """A store on one engine. `run` is its writer; `open` has to come before it.

    `on_group` is told of each group that is on disk: how many operations it had, and the seconds that it took.
    """

    def __init__(self, engine: Engine, rules: StoreRules, clock: Clock, random_bits: Callable[[int], int]) -> None:
        self._engine = engine
        self._rules = rules
        self._clock = clock
        self._random_bits = random_bits
        self._writer = Writer(rules, engine.room)
        self._pending: list[Operation] = []
        self._under_way = 0
        self._wake = trio.Event()
        self._group_began = 0.0
        self._last_id = bytes(16)
        self._readers = trio.CapacityLimiter(READERS)
        self.on_accepted: Callable[[Message, bool], None] = lambda message, active: None
        self.on_commit: Callable[[int], None] = lambda earliest_wake: None
        self.on_scarce: Callable[[], None] = lambda: None
        self.on_group: Callable[[int, float], None] = lambda operations, seconds: None
        self.failed: CommitFailed | None = None
        self.broken = trio.Event()

    def open(self) -> None:
        """Go on from what is on disk: ids grow from the last one."""
        with self._engine.read() as transaction:
            self._last_id = _last_id(transaction)

    def configure(self, rules: StoreRules) -> None:
        """Other numbers from the next group on."""
        self._rules = rules
        self._writer.configure(rules)

    # -- writing ----------------------------------------------------------------------------------------------------

    def mint(self, now: int) -> MessageId:
        self._last_id = next_id(self._last_id, now, self._random_bits(80))
        return self._last_id

    @property
    def pending(self) -> int:
        return len(self._pending) + self._under_way

    @property
    def commit_age(self) -> float:
        """Seconds since the commit under way began; 0 when none is."""
        return trio.current_time() - self._group_began if self._under_way else 0.0

    @property
    def full(self) -> bool:
        return self._writer.room.full

    def submit(self, operation: Operation) -> None:
        self._pending.append(operation)
        self._wake.set()

    async def perform(self, operation: Operation) -> Any:
        if self.failed is not None:
            raise self.failed
        task: trio.lowlevel.Task | None = trio.lowlevel.current_task()

        def wake(result: Any) -> None:
            if task is not None:
                trio.lowlevel.reschedule(
                    task, outcome.Error(result) if isinstance(result, StoreError) else outcome.Value(result)
                )

        def abandon(_: Any) -> trio.lowlevel.Abort:
            nonlocal task
            task = None
            return trio.lowlevel.Abort.SUCCEEDED

        operation.done = wake
        self.submit(operation)
        return await trio.lowlevel.wait_task_rescheduled(abandon)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Commit group after group until cancelled; what was submitted by then is still committed.

        At both ends active messages go to their lanes' queues: whatever is in memory then is on disk in its place.
        """
        if not self._engine.threaded:
            await self._run(self._commit_inline, task_status)
            return
        thread = _Thread(self._commit)
        try:
            await self._run(thread.commit, task_status)
        finally:
            thread.end()

    async def _run(self, commit: "Commit", task_status: trio.TaskStatus[None]) -> None:
        try:
            try:
                await self._shelve_active(commit)
            finally:
                task_status.started()
            while True:
                await self._wake.wait()
                await self._commit_pending(commit)
        except CommitFailed as error:
            self._give_up(error)
        finally:
            if self.failed is None:
                with trio.CancelScope(shield=True):
                    while self._pending:
                        await self._commit_pending(commit)
                    await self._shelve_active(commit)
                    self._flush()

    async def _shelve_active(self, commit: "Commit") -> None:
        while True:
            with self._engine.read() as transaction:
                messages = reads.active(transaction, START_BATCH)
            if not messages:
                return
            await commit(self._prepare([Shelve(messages)]))

    async def _commit_pending(self, commit: "Commit") -> None:
        size = _group_size(self._pending)
        operations, self._pending = self._pending[:size], self._pending[size:]
        if not self._pending:
            self._wake = trio.Event()
        if not operations:
            return
        self._under_way = len(operations)
        self._group_began = trio.current_time()
        group = self._prepare(operations)
        try:
            with trio.CancelScope(shield=True):
                results = await commit(group)
        except CommitFailed as error:
            self._give_up(error, operations)
            raise
        finally:
            self._under_way = 0
        self.on_group(len(operations), trio.current_time() - self._group_began)
        self._tell(operations, results)
        self.on_commit(self._writer.earliest_wake)
        if self._writer.room.scarce:
            self.on_scarce()

    def _prepare(self, operations: Sequence[Operation]) -> Group:
        return prepare(operations, self._rules, self._clock.now(), self._last_id)

    def _tell(self, operations: Sequence[Operation], results: Sequence[Any]) -> None:
        for operation, result in zip(operations, results, strict=True):
            if isinstance(operation, Accept) and isinstance(result, Accepted):
                self.on_accepted(operation.message, result.active)
            if operation.done is not None:
                operation.done(result)

    def _give_up(self, error: CommitFailed, operations: Sequence[Operation] = ()) -> None:
        self.failed = error
        self.broken.set()
        doomed, self._pending = [*operations, *self._pending], []
        for operation in doomed:
            if operation.done is not None:
                operation.done(error)

    def _commit(self, group: Group, puts_done: threading.Semaphore) -> list[Any]:
        """One group in one transaction, on the calling thread. Without room, everything but the new messages."""
        try:
            try:
                self._engine.extend(group.size)
                return self._transact(group, None, puts_done)
            except StoreFull as full:
                return self._transact(group, full, puts_done)
        except StoreFull as full:
            raise CommitFailed(f"there is no room even for outcomes: {full}") from full
        except StoreError:
            raise
        except Exception as error:
            # Nothing of the group is on disk; going on without it would lose outcomes silently.
            _logger.exception("a group could not be written")
            raise CommitFailed(f"a group could not be written: {error!r}") from error
        finally:
            puts_done.release()

    def _transact(self, group: Group, refuse: StoreFull | None, puts_done: threading.Semaphore) -> list[Any]:
        writing = self._engine.write()
        with writing as transaction:
            results = self._writer.apply(transaction, group, refuse=refuse)
            puts_done.release()
            writing.commit()
        self._writer.committed()
        return results

    async def _commit_inline(self, group: Group) -> list[Any]:
        results = self._commit(group, threading.Semaphore(0))
        await trio.lowlevel.checkpoint()
        return results

    def _flush(self) -> None:
        writing = self._engine.write()
        with writing as transaction:
            self._writer.room.flush(transaction)
            writing.commit()

    # -- reading ----------------------------------------------------------------------------------------------------

    async def _read(self, ask: Callable[[Transaction], Result]) -> Result:
        def read() -> Result:
            with self._engine.read() as transaction:
                return ask(transaction)

        if not self._engine.threaded:
            await trio.lowlevel.checkpoint()
            return read()
        return await trio.to_thread.run_sync(read, limiter=self._readers)

    async def survey(self, asks: Sequence[Ask]) -> list[View]:
        return await self._read(lambda transaction: [reads.survey(transaction, ask) for ask in asks])

    async def agenda(self, now: int, limit: int, skip: Container[str]) -> Agenda:
        return await self._read(lambda transaction: reads.agenda(transaction, now, limit, skip))

    async def oldest_finished(self) -> Finished:
        lifetime = self._rules.idempotency
        return await self._read(lambda transaction: reads.oldest_finished(transaction, lifetime))

    async def story(self, id: MessageId) -> Story | None:
        return await self._read(lambda transaction: story_reads.story(transaction, id))

    async def stories(
        self, state: State | None, lane: str | None, after: MessageId | None, limit: int
    ) -> tuple[list[Story], MessageId | None]:
        return await self._read(lambda transaction: story_reads.stories(transaction, state, lane, after, limit))

    async def dead(self, select: DeadFilter, limit: int) -> tuple[list[Story], bytes | None]:
        return await self._read(lambda transaction: choosing.dead_stories(transaction, select, limit))

    async def circuit(self, key: str) -> CircuitView | None:
        return await self._read(lambda transaction: reads.circuit(transaction, lane_key(key)))

    async def circuits(
        self, state: CircuitState | None, after: str | None, limit: int
    ) -> tuple[list[CircuitView], str | None]:
        return await self._read(lambda transaction: reads.circuits(transaction, state, after, limit))

    async def statistics(self) -> StoreStatistics:
        full = self._writer.room.full
        return await self._read(
            lambda transaction: reads.statistics(transaction, self._engine.path, self._engine.room(), full)
        )


Commit = Callable[[Group], Any]


class _Thread:
    """The writer's own thread. LMDB wants a transaction to live and end on the thread that began it."""

    def __init__(self, work: Callable[[Group, threading.Semaphore], list[Any]]) -> None:
        self._work = work
        self._groups: SimpleQueue[tuple[Group, threading.Semaphore, Callable[[Any], None]] | None] = SimpleQueue()
        threading.Thread(target=self._loop, name="ledger", daemon=True).start()

    async def commit(self, group: Group) -> list[Any]:
        task = trio.lowlevel.current_task()
        token = trio.lowlevel.current_trio_token()
        puts_done = threading.Semaphore(0)

        def finish(result: Any) -> None:
            token.run_sync_soon(trio.lowlevel.reschedule, task, result)

        self._groups.put((group, puts_done, finish))
        puts_done.acquire()
        # The commit can't be called back: the wait for it has to be outlived by its end.
        result: list[Any] = await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        return result

    def end(self) -> None:
        self._groups.put(None)

    def _loop(self) -> None:
        while (item := self._groups.get()) is not None:
            group, puts_done, finish = item
            finish(outcome.capture(self._work, group, puts_done))


def _group_size(operations: Sequence[Operation]) -> int:
    """How many of the operations make the next group."""
    held = 0
    for count, operation in enumerate(operations[:GROUP_LIMIT]):
        if isinstance(operation, Accept):
            held += len(operation.message.body)
        if held > GROUP_BYTES and count:
            return count
    return GROUP_LIMIT


def last_time(engine: Engine) -> int:
    """The latest moment that the store has seen: a wall clock behind it is not believed."""
    with engine.read() as transaction:
        value = transaction.get(Table.META, META_LATEST)
    return 0 if value is None else unstamp(value)[0]


def _last_id(transaction: Transaction) -> MessageId:
    value = transaction.get(Table.META, META_LATEST)
    stored = bytes(16) if value is None else unstamp(value)[1]
    return max(stored, transaction.last(Table.MESSAGES) or b"", transaction.last(Table.DELIVERED) or b"")
