"""Records the ends of attempts: one group, one transaction, behind the fence.

Only the owner of a shard writes here, so its memory decides: the tables get the message's new place, and the lane's
record as the dispatcher has it. Nothing is recorded for a message that was dropped meanwhile.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.lane import Lane
from holdfast.core.message import Attempt, MessageId, Place, Standing
from holdfast.core.ownership import shard_of
from holdfast.core.schedule import Dead, RetryAt, place_after_attempt
from holdfast.core.store_rules import cost_of, first_answer_kept, first_kept, truncated_attempt
from holdfast.store import records
from holdfast.store.port import NEVER, Deliver, Expire, Fail, Forget, LaneRecord, Operation, SaveLane, Shelve
from holdfast.store.postgres.arrivals import ask_shelved, keep_order
from holdfast.store.postgres.lane_rows import TouchedLanes
from holdfast.store.postgres.ownership_tables import FENCE, PASSED, Membership, fence_values, pass_fence
from holdfast.store.postgres.rows import DEAD, NUMBERS, RETRY, Terms, columns, reason_number
from holdfast.store.postgres.shares import ON_TOP
from holdfast.store.postgres.statements import Statement
from holdfast.store.postgres.transactions import Connection, Cursor, beginning, commit_along
from holdfast.store.records import live_record

TOGETHER = (Deliver, Fail, Shelve, SaveLane)
"""Operations that may share a transaction."""

# Adds the group's changes to this connection's rows of `counters`: one row for each lane of the group.
_COUNT = (
    """INSERT INTO counters AS c (host, lane, writer, first, retry, dead, bytes)
    SELECT host, lane, %(writer)s::bigint, {first}, {retry}, {dead}, {bytes} FROM {moved}
    GROUP BY host, lane """
    + ON_TOP
)

# An arrived message with a due time was counted among the retries; see rows.counted_as.
_WAS_RETRY = "(standing = 2 OR standing = 0 AND due > 0)"
# Moves delivered messages from `messages` to `delivered`, by primary key, and takes them off the counters.
_GONE = f"""gone AS (
        DELETE FROM messages m USING unnest(%(ids)s::bytea[], %(tried)s::integer[], %(hosts)s::text[],
            %(lanes)s::text[], %(sizes)s::bigint[], %(records)s::bytea[]) AS v(id, tried, host, lane, size, record)
        WHERE m.id = v.id AND m.attempts = v.tried AND m.standing < 3
        RETURNING m.id, m.standing, m.due, v.host, v.lane, v.size, v.record
    ), kept AS (
        INSERT INTO delivered (id, at, record) SELECT id, %(now)s::bigint, record FROM gone
        ON CONFLICT (id) DO NOTHING
    ), counted AS ({
    _COUNT.format(
        first=f"-count(*) FILTER (WHERE NOT {_WAS_RETRY})",
        retry=f"-count(*) FILTER (WHERE {_WAS_RETRY})",
        dead="0",
        bytes="-sum(size)",
        moved="gone",
    )
})"""
DELIVERED = Statement(f"WITH {FENCE}, {_GONE} {PASSED}")
"""The whole transaction of a group in which every message was delivered and no lane changes."""
# Gives messages whose attempts failed their new places, by primary key, and moves them between the counters.
_TRIED = """WITH v AS (
        SELECT * FROM unnest(%(ids)s::bytea[], %(tried)s::integer[], %(hosts)s::text[], %(lanes)s::text[],
            %(standings)s::smallint[], %(dues)s::bigint[], %(retries)s::smallint[], %(numbers)s::integer[],
            %(helds)s::boolean[], %(reasons)s::smallint[])
            AS v(id, tried, host, lane, to_standing, to_due, to_retry, number, to_held, reason)
    ), moved AS (
        UPDATE messages m SET standing = coalesce(v.to_standing, m.standing), due = coalesce(v.to_due, m.due),
            retry = coalesce(v.to_retry, m.retry), attempts = v.number, held = coalesce(v.to_held, m.held),
            reason = v.reason
        FROM v JOIN messages old ON old.id = v.id
        WHERE m.id = v.id AND m.attempts = v.tried AND m.standing < 3
        RETURNING v.host, v.lane, v.to_standing, old.standing, old.due
    ) """ + _COUNT.format(
    first=f"-count(*) FILTER (WHERE NOT {_WAS_RETRY})",
    retry=f"count(*) FILTER (WHERE to_standing = {RETRY}) - count(*) FILTER (WHERE {_WAS_RETRY})",
    dead=f"count(*) FILTER (WHERE to_standing = {DEAD})",
    bytes="0",
    moved="moved WHERE to_standing IS NOT NULL",
)
_INSERT_ATTEMPTS = """INSERT INTO attempts (id, number, record, answer)
    SELECT * FROM unnest(%s::bytea[], %s::integer[], %s::bytea[], %s::bytea[]) ON CONFLICT (id, number) DO NOTHING"""
# The same, but only for messages that _TRIED has moved.
_INSERT_TRIED = """INSERT INTO attempts (id, number, record, answer)
    SELECT v.* FROM unnest(%s::bytea[], %s::integer[], %s::bytea[], %s::bytea[]) AS v(id, number, record, answer)
    WHERE EXISTS (SELECT 1 FROM messages m WHERE m.id = v.id AND m.attempts = v.number)
    ON CONFLICT (id, number) DO NOTHING"""


_SUPERSEDED = """unnest(%s::bytea[], %s::integer[], %s::integer[]) AS v(id, latest, first_kept)
    JOIN messages m ON m.id = v.id AND m.attempts = v.latest
    WHERE a.id = v.id AND a.number > 1 AND a.number < v.first_kept"""
"""Attempts from the second to the first that is kept, if the latest one was recorded. By primary key."""
_CLEAR_ANSWERS = f"UPDATE attempts a SET answer = NULL FROM {_SUPERSEDED} AND a.answer IS NOT NULL"
_DELETE_ATTEMPTS = f"DELETE FROM attempts a USING {_SUPERSEDED}"
_GONE_COLUMNS = ("ids", "tried", "hosts", "lanes", "sizes", "records")
_TRIED_COLUMNS = ("ids", "tried", "hosts", "lanes", "standings", "dues", "retries", "numbers", "helds", "reasons")


def share_a_transaction(operations: Sequence[Operation]) -> int:
    """How many of the first operations can: up to a second one of the same message, which a statement moves once."""
    met: set[MessageId] = set()
    for count, operation in enumerate(operations):
        ids = _messages_of(operation)
        if not isinstance(operation, TOGETHER) or not met.isdisjoint(ids):
            return count
        met |= ids
    return len(operations)


def lane_of(operation: Operation) -> str | None:
    """The lane whose rows an operation needs, if it is one lane."""
    match operation:
        case Deliver() | Fail():
            return operation.entry.message.lane
        case SaveLane():
            return operation.lane.key
        case Shelve():
            return operation.messages[0].lane if operation.messages else None
        case Expire() | Forget():
            return operation.lane
    return None


def _messages_of(operation: Operation) -> set[MessageId]:
    if isinstance(operation, Shelve):
        return {message.id for message in operation.messages}
    return {operation.entry.message.id} if isinstance(operation, (Deliver, Fail)) else set()


@dataclass(slots=True)
class Group:
    """Outcomes on their way to one transaction. They are encoded on the loop, since the dispatcher goes on changing
    its lanes meanwhile.
    """

    delivered: list[tuple[Any, ...]] = field(default_factory=list)
    failed: list[tuple[Any, ...]] = field(default_factory=list)
    attempts: list[tuple[MessageId, Attempt]] = field(default_factory=list)
    shelved: list[MessageId] = field(default_factory=list)
    younger: Mapping[MessageId, int] = field(default_factory=dict)
    lanes: dict[str, Lane] = field(default_factory=dict)
    encoded: list[tuple[LaneRecord, bytes]] = field(default_factory=list)
    touched: dict[str, str] = field(default_factory=dict)
    shards: set[int] = field(default_factory=set)
    earliest_wake: int = NEVER
    moved: set[MessageId] = field(default_factory=set)
    """The shelved messages that were in no queue."""

    @property
    def is_plain(self) -> bool:
        """Whether DELIVERED writes all of it."""
        return not (self.failed or self.shelved or self.lanes or self.touched)


def prepare(operations: Sequence[Operation], run: int) -> Group:
    group = Group()
    for operation in operations:
        _PREPARE[type(operation)](group, operation)
    for lane in group.lanes.values():
        record = live_record(lane, run)
        # A copy: the dispatcher changes its circuit while this one is written.
        group.encoded.append((record._replace(circuit=copy(record.circuit)), records.encode_lane(record)))
    return group


def _prepare_deliver(group: Group, operation: Deliver) -> None:
    message, place = operation.entry
    attempt = operation.attempt
    record = records.encode_delivered(message, attempt, attempt.at + attempt.duration)
    group.delivered.append((message.id, place.attempts, message.host, message.lane, cost_of(message), record))
    group.shards.add(shard_of(message.host))
    if operation.lane is not None:
        group.lanes[operation.lane.key] = operation.lane
    elif place.standing is not Standing.ACTIVE:
        group.touched[message.lane] = message.host  # Its queue has another head now.


def _prepare_fail(group: Group, operation: Fail) -> None:
    message, place = operation.entry
    attempt = operation.attempt
    to = _place_after(place, attempt, operation.step)
    group.failed.append((message.id, place.attempts, message.host, message.lane, *to))
    group.attempts.append((message.id, attempt))
    group.shards.add(shard_of(message.host))
    group.lanes[operation.lane.key] = operation.lane


def _place_after(place: Place, attempt: Attempt, step: RetryAt | Dead | None) -> tuple[Any, ...]:
    """Standing, due, retry, attempts, held and reason; None leaves a column as it is."""
    if step is None:
        return None, None, None, attempt.number, None, None
    after = place_after_attempt(place, attempt, step)
    reason = reason_number(step.reason) if isinstance(step, Dead) else None
    return NUMBERS[after.standing], after.due, after.retry, after.attempts, after.held, reason


def _prepare_shelve(group: Group, operation: Shelve) -> None:
    for message in operation.messages:
        group.shelved.append(message.id)
        group.touched[message.lane] = message.host
        group.shards.add(shard_of(message.host))


def _prepare_save(group: Group, operation: SaveLane) -> None:
    group.lanes[operation.lane.key] = operation.lane
    group.shards.add(shard_of(operation.lane.host.name))


_PREPARE: dict[type[Operation], Any] = {
    Deliver: _prepare_deliver,
    Fail: _prepare_fail,
    Shelve: _prepare_shelve,
    SaveLane: _prepare_save,
}


def delivered_values(group: Group, membership: Membership, shards: Mapping[int, int], terms: Terms) -> dict[str, Any]:
    return {**fence_values(membership, shards), **_gone_values(group, terms)}


def _gone_values(group: Group, terms: Terms) -> dict[str, Any]:
    gone = dict(zip(_GONE_COLUMNS, columns(group.delivered), strict=True))
    return {**gone, "now": terms.now, "writer": terms.writer}


def write(
    connection: Connection, group: Group, membership: Membership, shards: Mapping[int, int], terms: Terms
) -> None:
    """Writes and commits a group. If the fence refuses, the client raises Fenced."""
    lanes = TouchedLanes(terms)
    for lane, host in group.touched.items():
        lanes.touch(lane, host)
    for record, encoded in group.encoded:
        lanes.put(record, encoded)
    with beginning(connection):
        pass_fence(connection, membership, shards)
        shelved = _move(connection, group, terms)
        if lanes:
            lanes.ask(connection)
        else:
            commit_along(connection)
    if shelved is not None:
        moved = shelved.fetchall()
        keep_order(connection, moved)
        group.moved = {row[0] for row in moved}
    if lanes:
        with connection.pipeline():
            group.earliest_wake = lanes.save(connection)
            commit_along(connection)


def _move(connection: Connection, group: Group, terms: Terms) -> Cursor | None:
    """Returns the cursor of the shelved messages, if there are any."""
    if group.delivered:
        connection.execute(f"WITH {_GONE} SELECT", _gone_values(group, terms))
    if group.failed:
        tried = dict(zip(_TRIED_COLUMNS, columns(group.failed), strict=True))
        connection.execute(_TRIED, {**tried, "writer": terms.writer})
        _keep_attempts(connection, group.attempts)
    return ask_shelved(connection, group.shelved, group.younger) if group.shelved else None


def _keep_attempts(connection: Connection, made: Sequence[tuple[MessageId, Attempt]]) -> None:
    """Keeps the attempts and answers that `core.store_rules` keeps."""
    insert_attempts(connection, made, _INSERT_TRIED)
    for statement, first in ((_CLEAR_ANSWERS, first_answer_kept), (_DELETE_ATTEMPTS, first_kept)):
        superseded = [(id, attempt.number, first(attempt.number)) for id, attempt in made if first(attempt.number) > 2]
        if superseded:
            connection.execute(statement, columns(superseded))


def insert_attempts(
    connection: Connection, made: Sequence[tuple[MessageId, Attempt]], statement: str = _INSERT_ATTEMPTS
) -> None:
    if not made:
        return
    kept = [
        (id, attempt.number, records.encode_attempt(attempt._replace(answer=None)), attempt.answer)
        for id, attempt in ((id, truncated_attempt(attempt)) for id, attempt in made)
    ]
    connection.execute(statement, columns(kept))
