"""Applies a group to the tables: new messages, outcomes of attempts; bulk.py and transfer.py have the other operations.

`prepare` encodes on the loop. `Writer.apply` runs on the writer's thread inside one transaction. What a group changes
in memory is kept only after the commit, so a failed group leaves no trace.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.errors import CommitFailed, StoreError, StoreFull
from holdfast.core.lane import Lane
from holdfast.core.message import MessageId, Place, Standing
from holdfast.core.schedule import RetryAt, first_place, place_after_attempt
from holdfast.core.store_rules import StoreRules
from holdfast.store import records
from holdfast.store.embedded import attempt_rows, bulk, idempotency_keys, transfer
from holdfast.store.embedded.group import Group, GroupWork
from holdfast.store.embedded.indexes import summarise
from holdfast.store.embedded.shares import RoomKeeper, claim_of
from holdfast.store.embedded.tables import META_LATEST, Engine, Fault, Table, Transaction
from holdfast.store.embedded.writer_thread import Turn
from holdfast.store.port import (
    NEVER,
    Accept,
    Accepted,
    Conflict,
    Deliver,
    DropDead,
    DropMessages,
    Duplicate,
    EvictLanes,
    Expire,
    Fail,
    Forget,
    HandOver,
    Operation,
    Purge,
    ReplayDead,
    RetryNow,
    ReviewLanes,
    SaveLane,
    Shelve,
)
from holdfast.store.records import lane_key, live_record, numbered, stamp

MARGIN = 1 << 20
"""Room for new messages that a full volume must have again before messages are accepted: no switching to and fro."""

_logger = logging.getLogger("holdfast.store")


def prepare(operations: Sequence[Operation], rules: StoreRules, now: int, last_id: MessageId) -> Group:
    """Encode a group on the loop, so that the writer's thread only puts bytes."""
    lanes: dict[str, Lane] = {}
    prepared: list[Any] = []
    messages = size = 0
    for operation in operations:
        encoded: Any = None
        if isinstance(operation, Accept):
            encoded = operation.encoded or records.encode_message(operation.message)
            messages += 1
            size += len(encoded[0]) + len(operation.message.body)
        elif isinstance(operation, Deliver):
            attempt = operation.attempt
            encoded = records.encode_delivered(operation.entry.message, attempt, attempt.at + attempt.duration)
        elif isinstance(operation, Fail):
            encoded = attempt_rows.prepare(operation.attempt)
        if isinstance(operation, (Deliver, Fail, SaveLane)) and operation.lane is not None:
            lanes[operation.lane.key] = operation.lane
        prepared.append(encoded)
    encoded_lanes = {key: records.encode_lane(live_record(lane, rules.run)) for key, lane in lanes.items()}
    return Group(operations, prepared, encoded_lanes, claim_of(messages, size), now, last_id)


class Writer:
    """Commits groups, on one thread. After each, `earliest_wake` and `faults` are those of that group."""

    def __init__(self, rules: StoreRules, engine: Engine) -> None:
        self._rules = rules
        self._engine = engine
        self.room = RoomKeeper(rules.host_share, engine.room)
        self.volume_full = False
        self.earliest_wake = NEVER
        self.faults: list[Fault] = []

    @property
    def full(self) -> bool:
        return self.room.full or self.volume_full

    def configure(self, rules: StoreRules) -> None:
        self._rules = rules
        self.room.host_share = rules.host_share

    def apply(self, transaction: Transaction, group: Group, *, refuse: StoreFull | None = None) -> list[Any]:
        """Apply a group and return a result for each operation. With `refuse`, new messages get that answer."""
        work = GroupWork(transaction, group, self._rules, self.room)
        self.room.begin(group.claim)
        results = []
        for operation, encoded in zip(group.operations, group.prepared, strict=True):
            if refuse is not None and isinstance(operation, Accept):
                known = _earlier(work, operation)
                results.append(refuse if known is None else known)
            else:
                results.append(_APPLY[type(operation)](work, operation, encoded))
        for key, value in group.lanes.items():
            transaction.put(Table.LANES, lane_key(key), value)
            work.touched.add(key)
        self.earliest_wake = min((summarise(transaction, lane, self._rules) for lane in work.touched), default=NEVER)
        if work.finished:
            transaction.put(Table.FINISHED, stamp(group.now, work.finished[0]), b"".join(work.finished))
        transaction.put(Table.META, META_LATEST, stamp(group.now, group.last_id))
        self.room.finish(transaction)
        return results

    def commit(self, group: Group, puts_done: Turn) -> list[Any] | None:
        """Commit one group in one transaction, on the calling thread. Without room, everything but the new messages.

        Returns None if not even that fits; nothing was written then.
        """
        try:
            refuse = self._extend(group)
            while True:
                try:
                    return self._transact(group, refuse, puts_done)
                except StoreFull as full:
                    if self._engine.grow():
                        continue
                    if refuse is not None or not group.claim:
                        return None
                    refuse = full
        except StoreError:
            raise
        except Exception as error:
            # Nothing of the group is on disk; going on without it would lose outcomes silently.
            _logger.exception("a group could not be written")
            raise CommitFailed(f"a group could not be written: {error!r}") from error
        finally:
            puts_done.release()

    def _extend(self, group: Group) -> StoreFull | None:
        try:
            self._engine.extend(max(group.claim, MARGIN) if self.volume_full else group.claim)
        except StoreFull as full:
            self.volume_full = True
            return full
        self.volume_full = False
        return None

    def _transact(self, group: Group, refuse: StoreFull | None, puts_done: Turn) -> list[Any]:
        writing = self._engine.write()
        with writing as transaction:
            results = self.apply(transaction, group, refuse=refuse)
            self.faults = transaction.faults
            puts_done.release()
            writing.commit()
        self.room.committed()
        return results


def accept(work: GroupWork, operation: Accept, encoded: tuple[bytes, list[bytes]]) -> Any:
    message = operation.message
    earlier = _earlier(work, operation)
    if earlier is not None:
        return earlier
    transaction = work.transaction
    refusal = work.room.refusal(transaction, message)
    if refusal is not None:
        return refusal
    if operation.key is not None:
        _remember_key(work, operation)
    work.ensure_lane(message.lane, message.host)
    work.room.hold(message.host, len(message.body))
    record, pieces = encoded
    transaction.put(Table.MESSAGES, message.id, record)
    for number, piece in enumerate(pieces):
        transaction.put(Table.BODIES, numbered(message.id, number), piece)
    key = lane_key(message.lane)
    place = first_place(message, operation.place, behind_others=work.has_queue(message.lane, key))
    if place.standing is Standing.ACTIVE:
        transaction.put(Table.ACTIVE, message.id, key)
        return Accepted(active=True)
    if place.standing is Standing.RETRY:
        work.set_retry(message.id, message.lane, place)
    elif operation.place is None:
        # It waits behind another message, so the lane's wake does not change.
        transaction.add(Table.WAITING, key, stamp(place.born, message.id))
    else:
        work.enqueue(message.id, message.lane, place)
    return Accepted(active=False)


def _earlier(work: GroupWork, operation: Accept) -> Duplicate | Conflict | None:
    """Returns the result for a message whose key was used within its lifetime; None for a new one."""
    key = operation.key
    if key is None:
        return None
    since = _used_at(work, operation) - work.rules.idempotency
    use = idempotency_keys.find(work.transaction, key.digest, since, work.epochs)
    if use is None:
        known = operation.place is not None and transfer.is_here(work.transaction, operation.message.id)
        return Duplicate(operation.message.id) if known else None
    return Duplicate(use.id) if use.body == key.body else Conflict()


def _remember_key(work: GroupWork, operation: Accept) -> None:
    key, message = operation.key, operation.message
    assert key is not None
    use = idempotency_keys.Use(message.id, key.body, _used_at(work, operation))
    idempotency_keys.remember(work.transaction, key.digest, use, work.rules.idempotency, work.epochs)


def _used_at(work: GroupWork, operation: Accept) -> int:
    """The key of a message that is handed over is used now: the message may have been accepted days ago."""
    return operation.message.accepted_at if operation.place is None else work.group.now


def deliver(work: GroupWork, operation: Deliver, encoded: bytes) -> None:
    message, place = operation.entry
    if not work.leave(message.id, message.lane, place):
        moved = work.current_place(message.id, message.lane, place)
        if moved is None:
            return
        work.leave(message.id, message.lane, moved)
        place = moved
    work.erase(message, len(message.body))
    if place.standing is not Standing.ACTIVE or place.attempts:
        work.transaction.delete(Table.PLACES, message.id)
    work.transaction.put(Table.DELIVERED, message.id, encoded)
    work.finished.append(message.id)


def fail(work: GroupWork, operation: Fail, encoded: attempt_rows.EncodedAttempt) -> None:
    message, read_at = operation.entry
    attempt, step = operation.attempt, operation.step
    place = work.current_place(message.id, message.lane, read_at)
    if place is None:
        return
    tried = place_after_attempt(place, attempt, step)
    if step is None:
        work.set_place(message.id, tried)
    else:
        work.leave(message.id, message.lane, place)
        if isinstance(step, RetryAt):
            work.set_retry(message.id, message.lane, tried)
        else:
            work.add_dead(message.id, message.lane, tried, step.reason)
    attempt_rows.record(work.transaction, message.id, encoded)


def shelve(work: GroupWork, operation: Shelve, encoded: None) -> int:
    moved = 0
    for message in operation.messages:
        if not work.transaction.delete(Table.ACTIVE, message.id):
            continue
        work.ensure_lane(message.lane, message.host)
        place = work.place_of(message.id, Place(Standing.ACTIVE, message.born))
        work.enqueue(message.id, message.lane, place._replace(standing=Standing.WAITING))
        moved += 1
    return moved


def _nothing_more(work: GroupWork, operation: SaveLane, encoded: None) -> None:
    """A saved lane is written with the group's other lanes."""


_APPLY: dict[type[Operation], Callable[[GroupWork, Any, Any], Any]] = {
    Accept: accept,
    Deliver: deliver,
    Fail: fail,
    SaveLane: _nothing_more,
    Shelve: shelve,
    HandOver: transfer.hand_over,
    Expire: bulk.expire,
    ReplayDead: bulk.replay_dead,
    DropDead: bulk.drop_dead,
    DropMessages: bulk.drop_messages,
    RetryNow: bulk.retry_now,
    Forget: bulk.forget,
    EvictLanes: bulk.evict_lanes,
    Purge: bulk.purge,
    ReviewLanes: bulk.review_lanes,
}
