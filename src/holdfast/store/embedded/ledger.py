"""The store of one process: collects operations, commits them as a group, then reports the results.

While one group is written the next one forms, so operations that arrive meanwhile share a commit. The writer is a
thread in lockstep with the loop: the loop hands over a group and stands still while the thread does its puts (a
fraction of a millisecond). Then the fsync overlaps with the loop. If both run freely they fight for the interpreter,
and the same group takes four times as long.

Lack of room is never final. A group that does not fit goes without its new messages, then in smaller groups. If not
even one operation fits, all of them stay here and are tried again every second. Any other failed commit is final: each
`DoneOrFailed` gets the error, `broken` is set, and nothing more is written, since a disk that fails an fsync
can't be trusted.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import trio

from holdfast.clock import Clock
from holdfast.core.errors import CommitFailed, CorruptRecord, StoreError, StoreFull, StoreUnusable
from holdfast.core.message import Entry, Message, MessageId, Place, Standing, next_id
from holdfast.core.store_rules import StoreRules
from holdfast.store.batching import group_size
from holdfast.store.embedded import reads
from holdfast.store.embedded.group import Group
from holdfast.store.embedded.queries import LedgerQueries
from holdfast.store.embedded.tables import META_LATEST, Engine, Table, Transaction
from holdfast.store.embedded.writer import Writer, prepare
from holdfast.store.embedded.writer_thread import CommitGroup, GroupLimit, Turn, WriterThread
from holdfast.store.port import (
    Accept,
    Accepted,
    BulkResult,
    Commit,
    DoneOrFailed,
    LaneChange,
    Operation,
    Retried,
    Shelve,
    lane_changes,
)
from holdfast.store.records import decode_latest
from holdfast.store.waiter import Waiter

TRY_AGAIN = 1.0
"""Seconds between two tries to write what does not fit."""
START_BATCH = 256

_logger = logging.getLogger("holdfast.store")


class Ledger(LedgerQueries):
    """A store on one engine. Call `open`, then `run`, which commits.

    If another process mints ids, it sets `last_id` to its last one.
    """

    unreachable = False
    """A local disk is never unreachable: it has failed."""
    is_swept_here = True

    def __init__(self, engine: Engine, rules: StoreRules, clock: Clock, random_bits: Callable[[int], int]) -> None:
        super().__init__(engine)
        self._rules = rules
        self._clock = clock
        self._random_bits = random_bits
        self._writer = Writer(rules, engine)
        self._pending: list[Operation] = []
        self._under_way = 0
        self._stuck = False
        self._group_limit = GroupLimit()
        self._wake = trio.Event()
        self._group_began = 0.0
        self.last_id = bytes(16)
        self.failed: CommitFailed | None = None
        self.broken = trio.Event()

    def open(self) -> None:
        """Read the last id: new ids grow from it."""
        with self._engine.read() as transaction:
            self.last_id = _last_id(transaction)

    def configure(self, rules: StoreRules) -> None:
        """Takes effect with the next group."""
        self._rules = rules
        self._writer.configure(rules)

    # -- writing ----------------------------------------------------------------------------------------------------

    def mint(self, now: int) -> MessageId:
        self.last_id = next_id(self.last_id, now, self._random_bits(80))
        return self.last_id

    @property
    def pending(self) -> int:
        return len(self._pending) + self._under_way

    @property
    def commit_age(self) -> float:
        """Seconds since the current commit began; 0 if there is none."""
        return trio.current_time() - self._group_began if self._under_way else 0.0

    @property
    def full(self) -> bool:
        """Whether new messages are refused: the store has reached its own size, or its volume is full."""
        return self._writer.full

    def submit(self, operation: Operation) -> None:
        if self.failed is not None and isinstance(operation.done, DoneOrFailed):
            operation.done(self.failed)
            return
        self._pending.append(operation)
        self._wake.set()

    async def perform(self, operation: Operation) -> Any:
        if self.failed is not None:
            raise self.failed
        operation.done = waiter = Waiter()
        self.submit(operation)
        return await trio.lowlevel.wait_task_rescheduled(waiter.abandon)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Commit group after group until cancelled; operations submitted by then are still committed.

        At both ends active messages go to their lanes' queues, so that every message in memory has its place on disk.
        """
        if not self._engine.threaded:
            await self._run(self._commit_inline, task_status)
            return
        thread = WriterThread(self._writer.commit, self._group_limit.took)
        try:
            await self._run(thread.commit, task_status)
        finally:
            thread.end()

    async def _run(self, commit: CommitGroup, task_status: trio.TaskStatus[None]) -> None:
        try:
            try:
                while not await self._shelve_active(commit):
                    await self._wait_for_room()
            finally:
                task_status.started()
            while self.failed is None:
                await self._wake.wait()
                if not await self._commit_pending(commit):
                    await self._wait_for_room()
        except (CommitFailed, StoreUnusable) as error:
            self._give_up(error)
        finally:
            if self.failed is None:
                await self._finish(commit)

    async def _finish(self, commit: CommitGroup) -> None:
        """Outcomes that don't fit are lost here: their messages are sent again after the next start."""
        try:
            with trio.CancelScope(shield=True):
                while self._pending:
                    if not await self._commit_pending(commit):
                        self._refuse_messages()
                        return
                await self._shelve_active(commit)
        except (CommitFailed, StoreUnusable) as error:
            self._give_up(error)

    async def _shelve_active(self, commit: CommitGroup) -> bool:
        """Returns whether there was room."""
        batch = START_BATCH
        while True:
            with self._engine.read() as transaction:
                messages = reads.active(transaction, batch)
            if not messages:
                return True
            if await commit(self._prepare([Shelve(messages)])) is None:
                if batch == 1:
                    return False
                batch //= 2

    async def _commit_pending(self, commit: CommitGroup) -> bool:
        """Commit the next group. Returns False if there is no room even for its first operation."""
        size = group_size(self._pending, self._group_limit.operations)
        operations, self._pending = self._pending[:size], self._pending[size:]
        if not self._pending:
            self._wake = trio.Event()
        if not operations:
            return True
        self._under_way = len(operations)
        self._group_began = trio.current_time()
        group = self._prepare(operations)
        try:
            with trio.CancelScope(shield=True):
                results = await commit(group)
        except CommitFailed:
            self._pending = [*operations, *self._pending]
            raise
        finally:
            self._under_way = 0
        if results is None:
            self._pending = [*operations, *self._pending]
            self._wake.set()
            self._group_limit.did_not_fit(len(operations))
            return len(operations) > 1
        self._stuck = False
        self._group_limit.fitted()
        self._report(operations, results, trio.current_time() - self._group_began)
        return True

    async def _wait_for_room(self) -> None:
        """Nothing can be written: deletes take pages too. Others may make room on the volume."""
        if not self._stuck:
            self._stuck = True
            _logger.error("store_stuck", extra={"fields": {"detail": "no room is left even for outcomes"}})
        self._refuse_messages()
        await trio.sleep(TRY_AGAIN)

    def _refuse_messages(self) -> None:
        full = StoreFull("no room is left in the store, or on its volume")
        accepts = [operation for operation in self._pending if isinstance(operation, Accept)]
        self._pending = [operation for operation in self._pending if not isinstance(operation, Accept)]
        for accept in accepts:
            if accept.done is not None:
                accept.done(full)

    def _prepare(self, operations: Sequence[Operation]) -> Group:
        return prepare(operations, self._rules, self._clock.now(), self.last_id)

    def _report(self, operations: Sequence[Operation], results: Sequence[Any], seconds: float) -> None:
        """Call `done` of each operation, then report the group."""
        self._report_faults(self._writer.faults)
        accepted: list[Message] = []
        arrived: list[Entry] = []
        changed: list[LaneChange] = []
        for operation, result in zip(operations, results, strict=True):
            if type(result) is Accepted and isinstance(operation, Accept):
                message = operation.message
                accepted.append(message)
                standing = Standing.ACTIVE if result.active else Standing.WAITING
                arrived.append(Entry(message, Place(standing, message.born)))
            elif type(result) is BulkResult or type(result) is Retried:
                changed += lane_changes(operation, result)
            if operation.done is not None:
                operation.done(result)
        writer = self._writer
        is_scarce = writer.room.scarce or writer.volume_full
        self.listener.committed(
            Commit(len(operations), seconds, accepted, arrived, changed, writer.earliest_wake, is_scarce)
        )

    def _give_up(self, error: StoreError) -> None:
        """A commit failed, or the file can't be read: the store is not used any more."""
        if self.failed is None:
            self.failed = error if isinstance(error, CommitFailed) else CommitFailed(str(error))
            self.broken.set()
            self.listener.store_failed(self.failed)
        doomed, self._pending = self._pending, []
        for operation in doomed:
            if isinstance(operation.done, DoneOrFailed):
                operation.done(self.failed)

    async def _commit_inline(self, group: Group) -> list[Any] | None:
        results = self._writer.commit(group, Turn())
        await trio.lowlevel.checkpoint()
        return results


def last_time(engine: Engine) -> int:
    """Returns the latest moment that the store has seen: a wall clock behind it is wrong."""
    with engine.read() as transaction:
        latest, last_id = _latest(transaction), _last_id(transaction)
    return latest[0] if latest else int.from_bytes(last_id[:6], "big")


def _last_id(transaction: Transaction) -> MessageId:
    latest = _latest(transaction)
    stored = latest[1] if latest else bytes(16)
    return max(stored, transaction.last(Table.MESSAGES) or b"", transaction.last(Table.DELIVERED) or b"")


def _latest(transaction: Transaction) -> tuple[int, MessageId] | None:
    """Returns the last moment and id as they were written; None if they can't be read."""
    try:
        return decode_latest(transaction.get(Table.META, META_LATEST) or b"")
    except CorruptRecord:
        return None
