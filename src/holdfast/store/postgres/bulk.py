"""Operations that change many messages, in bounded steps: expiry, replay, drops, forgetting lanes, retention.

The cost of each depends on how much it removes or moves. Messages are locked first, in the order of their ids, then
their lanes. They are chosen without a lock, and judged again once they are locked.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from holdfast.core.circuit import CircuitState
from holdfast.core.errors import Fenced
from holdfast.core.idempotency import handoff_digest
from holdfast.core.message import DeadReason, MessageId, MessageState, Place, Standing
from holdfast.core.ownership import shard_of
from holdfast.core.schedule import dead_place, due_at_once, replayed_place, state_of
from holdfast.store import records
from holdfast.store.port import (
    BulkResult,
    DropDead,
    DropMessages,
    Evicted,
    EvictLanes,
    Expire,
    Forget,
    HandOver,
    Operation,
    Purge,
    ReplayDead,
    Retried,
    RetryNow,
    ReviewLanes,
)
from holdfast.store.postgres import lane_rows, queries, rows
from holdfast.store.postgres.arrivals import notify
from holdfast.store.postgres.rows import (
    ACTIVE,
    DEAD,
    NUMBERS,
    RETRY,
    STATE_NUMBERS,
    STATES,
    WAITING,
    Terms,
    columns,
    counted_as,
)
from holdfast.store.postgres.shares import Counts, Sums, of_lanes
from holdfast.store.postgres.transactions import Connection

ENABLED = STATE_NUMBERS[CircuitState.ENABLED]

_MESSAGES = f"""SELECT m.id, m.lane, m.size, m.record, l.host, coalesce(l.state, 0), {rows.PLACE}
    FROM messages m LEFT JOIN lanes l ON l.lane = m.lane WHERE"""
# The next three lock the messages that they find. This one goes by primary key.
_CHOSEN = f"{_MESSAGES} m.id = ANY(%s::bytea[]) ORDER BY m.id FOR UPDATE OF m"
# By the index on (lane, born, id) of the standing.
_OLDEST = f"""{_MESSAGES} m.lane = %s AND m.standing = {{standing}} AND m.born < %s
    AND (m.born, m.id) > (%s, %s) ORDER BY m.born, m.id LIMIT %s FOR UPDATE OF m"""
# By the index on (due, id) of the dead. What another replica is removing is skipped.
_LONG_DEAD = f"""{_MESSAGES} m.standing = {DEAD} AND m.due < %s ORDER BY m.due, m.id LIMIT %s
    FOR UPDATE OF m SKIP LOCKED"""
_MOVE = f"""UPDATE messages m SET standing = v.standing, born = v.born, due = v.due, retry = v.retry, held = v.held,
    reason = %s, shard = v.shard, arrival = coalesce(v.arrival, m.arrival)
    FROM (SELECT *, CASE standing WHEN {ACTIVE} THEN nextval('arrivals') END AS arrival FROM unnest(%s::bytea[],
            %s::smallint[], %s::bigint[], %s::bigint[], %s::smallint[], %s::boolean[], %s::smallint[])
        AS u(id, standing, born, due, retry, held, shard)) AS v WHERE m.id = v.id"""
"""Moves messages by primary key. `arrival` counts in the order of the list, whatever order the rows are found in."""
_DELETE_MESSAGES = "DELETE FROM messages WHERE id = ANY(%s::bytea[])"
_DELETE_ATTEMPTS = "DELETE FROM attempts WHERE id = ANY(%s::bytea[])"
_DELETE_KEYS = "DELETE FROM keys WHERE digest = ANY(%s::bytea[])"
# Keeps shards without an owner as they are until the commit.
_LOCK_FREE_SHARDS = "SELECT shard FROM shards WHERE owner IS NULL AND shard = ANY(%s::smallint[]) FOR SHARE"
_LOCK_LANE = "SELECT host, state FROM lanes WHERE lane = %s FOR UPDATE"
_LOCK_COUNTERS = """SELECT writer, first, retry, dead, bytes FROM counters WHERE host = %s AND lane = %s ORDER BY writer
    FOR UPDATE SKIP LOCKED"""
_DELETE_COUNTERS = "DELETE FROM counters WHERE host = %s AND lane = %s AND writer = ANY(%s)"
_SHARDS_TO_REVIEW = "SELECT shard FROM shards WHERE owner = %s AND reviewed_by IS DISTINCT FROM %s"
_LANES_TO_REVIEW = "SELECT lane, host FROM lanes WHERE lane > %s AND shard = ANY(%s::smallint[]) ORDER BY lane LIMIT %s"
_SHARDS_REVIEWED = "UPDATE shards SET reviewed_by = %s WHERE shard = ANY(%s::smallint[])"
# By the indexes on (used) and (at, id).
_PURGE_KEYS = """DELETE FROM keys WHERE digest = ANY(ARRAY(
    SELECT digest FROM keys WHERE used < %s ORDER BY used LIMIT %s FOR UPDATE SKIP LOCKED))"""
_PURGE_DELIVERED = """DELETE FROM delivered WHERE id = ANY(ARRAY(
    SELECT id FROM delivered WHERE at < %s ORDER BY at, id LIMIT %s FOR UPDATE SKIP LOCKED)) RETURNING id"""


class _Row(NamedTuple):
    """A locked message. `host` is the one that it is counted for: of its record, or else of its lane's row."""

    id: MessageId
    lane: str
    host: str
    is_readable: bool
    size: int
    place: Place
    state: MessageState

    @property
    def is_dead(self) -> bool:
        return self.place.standing is Standing.DEAD


def _row(id: MessageId, lane: str, size: int, record: bytes, known: str | None, circuit: int, *columns: Any) -> _Row:
    message, place = records.message_or_none(id, record), rows.place(*columns)
    host = (message and message.host) or known or lane
    return _Row(id, lane, host, message is not None, size, place, state_of(place, STATES[circuit]))


def _counts_as(place: Place) -> int:
    return counted_as(NUMBERS[place.standing], place.due)


def _locked(connection: Connection, ids: Sequence[MessageId]) -> list[_Row]:
    return [_row(*row) for row in connection.execute(_CHOSEN, (list(ids),))] if ids else []


def _in_reach(connection: Connection, found: Sequence[_Row], terms: Terms) -> list[_Row]:
    """The messages that no other replica has in memory: in this replica's shards, and in shards without an owner, which
    get none before the commit.
    """
    others = {shard_of(row.host) for row in found} - terms.owned
    free: set[int] = set()
    if others:
        free = {shard for (shard,) in connection.execute(_LOCK_FREE_SHARDS, (sorted(others),))}
    return [row for row in found if shard_of(row.host) in terms.owned | free]


def expire(connection: Connection, operation: Expire, terms: Terms) -> list[MessageId] | Fenced:
    expired = _oldest(connection, operation, WAITING, operation.limit)
    expired += _oldest(connection, operation, RETRY, operation.limit - len(expired))
    if not all(terms.owns(row.host) for row in expired):
        return Fenced()
    _move(connection, expired, [dead_place(row.place, operation.now) for row in expired], terms, DeadReason.EXPIRED)
    lane_rows.review(connection, {row.lane: row.host for row in expired}, terms)
    return [row.id for row in expired]


def _move(
    connection: Connection,
    found: Sequence[_Row],
    places: Sequence[Place],
    terms: Terms,
    reason: DeadReason | None = None,
) -> None:
    """Locked messages get other places. One that becomes active arrives once more, and its owner is notified."""
    if not found:
        return
    counts = Counts()
    moved: list[tuple[Any, ...]] = []
    for row, place in zip(found, places, strict=True):
        counts.move(row.host, row.lane, _counts_as(row.place), _counts_as(place))
        standing, born, due, retry, _, held = place
        moved.append((row.id, NUMBERS[standing], born, due, retry, held, shard_of(row.host)))
    with connection.pipeline():
        connection.execute(_MOVE, (rows.reason_number(reason), *columns(moved)))
        counts.write(connection, terms.writer)
        arrived = [(id, shard) for id, standing, *_, shard in moved if standing == ACTIVE]
        notify(connection, [id for id, _ in arrived], [shard for _, shard in arrived], terms)


def _oldest(connection: Connection, operation: Expire, standing: int, limit: int) -> list[_Row]:
    found: list[_Row] = []
    after: tuple[int, bytes] = (-1, b"")
    while len(found) < limit:
        terms = (operation.lane, operation.born_before, *after, limit)
        page = [_row(*row) for row in connection.execute(_OLDEST.format(standing=standing), terms)]
        found += [row for row in page if row.id not in operation.skip]
        if len(page) < limit:
            break
        after = page[-1].place.born, page[-1].id
    return found[:limit]


def replay_dead(connection: Connection, operation: ReplayDead, terms: Terms) -> BulkResult:
    chosen, after = queries.dead_letters(connection, operation.select, operation.limit)
    letters = [row for row in _locked(connection, chosen) if row.is_dead and row.is_readable]
    _replay(connection, letters, operation.now, terms)
    return BulkResult([row.id for row in letters], {row.lane: row.host for row in letters}, after)


def _replay(connection: Connection, letters: Sequence[_Row], now: int, terms: Terms) -> None:
    """Dead messages start again: they go to their owners, as new messages do."""
    active = [replayed_place(row.place, now)._replace(standing=Standing.ACTIVE) for row in letters]
    _move(connection, letters, active, terms)


def drop_dead(connection: Connection, operation: DropDead, terms: Terms) -> BulkResult:
    chosen, after = queries.dead_letters(connection, operation.select, operation.limit)
    letters = [row for row in _locked(connection, chosen) if row.is_dead]
    _erase(connection, letters, terms)
    return BulkResult([row.id for row in letters], {}, after)


def drop_messages(connection: Connection, operation: DropMessages, terms: Terms) -> BulkResult | Fenced:
    """Skips messages that another replica has in memory: it drops them itself."""
    select = operation.select
    chosen, after = queries.undelivered(connection, select, operation.limit, operation.skip)
    found = [row for row in _locked(connection, chosen) if select.state in (None, row.state)]
    dropped = _in_reach(connection, found, terms)
    if select.id is not None and found != dropped:
        return Fenced()
    touched = {row.lane: row.host for row in dropped if not row.is_dead}
    _erase(connection, dropped, terms)
    lane_rows.review(connection, touched, terms)
    return BulkResult([row.id for row in dropped], touched, after)


def _erase(connection: Connection, doomed: Sequence[_Row], terms: Terms) -> None:
    """Removes locked messages with their attempts."""
    if not doomed:
        return
    counts = Counts()
    for row in doomed:
        counts.leave(row.host, row.lane, _counts_as(row.place), row.size)
    ids = [row.id for row in doomed]
    with connection.pipeline():
        connection.execute(_DELETE_MESSAGES, (ids,))
        connection.execute(_DELETE_ATTEMPTS, (ids,))
        counts.write(connection, terms.writer)


def hand_over(connection: Connection, operation: HandOver, terms: Terms) -> int:
    """A message that was tried or replayed since it was read stays."""
    read_at = {id: (place.attempts, place.standing is Standing.DEAD) for (id, *_), place in operation.entries}
    found = _locked(connection, list(read_at))
    handed = [row for row in found if (row.place.attempts, row.is_dead) == read_at[row.id]]
    _erase(connection, handed, terms)
    connection.execute(_DELETE_KEYS, ([handoff_digest(row.id) for row in handed],))
    lane_rows.review(connection, {row.lane: row.host for row in handed}, terms)
    return len(handed)


def retry_now(connection: Connection, operation: RetryNow, terms: Terms) -> Retried | Fenced:
    """A message in its lane's queue is due already. One that waits for a time is made due now."""
    found = [row for row in _locked(connection, [operation.id]) if row.is_readable]
    if not found:
        known = connection.execute("SELECT 1 FROM delivered WHERE id = %s", (operation.id,)).fetchone()
        return Retried.DELIVERED if known else Retried.UNKNOWN
    [row] = found
    if row.is_dead:
        _replay(connection, found, operation.now, terms)
        return Retried.REPLAYED
    if not _in_reach(connection, found, terms):
        return Fenced()
    if row.place.standing is Standing.RETRY:
        _move(connection, found, [due_at_once(row.place, operation.now)], terms)
        lane_rows.review(connection, {row.lane: row.host}, terms)
    return Retried.DUE


def forget(connection: Connection, operation: Forget, terms: Terms) -> bool:
    """A message that arrives meanwhile creates its lane again."""
    lane = operation.lane
    host, state = connection.execute(_LOCK_LANE, (lane,)).fetchone() or (lane, None)
    if state != ENABLED or not terms.owns(host) or of_lanes(connection, [(host, lane)]).get(lane, Sums()).waiting:
        return False
    connection.execute("DELETE FROM lanes WHERE lane = %s", (lane,))
    _forget_counts(connection, host, lane)
    return True


def _forget_counts(connection: Connection, host: str, lane: str) -> None:
    """Rows whose sum is zero can be removed together, whatever their writers count meanwhile."""
    counted = connection.execute(_LOCK_COUNTERS, (host, lane)).fetchall()
    if not any(sum(column) for column in zip(*(sums for _, *sums in counted), strict=True)):
        connection.execute(_DELETE_COUNTERS, (host, lane, [writer for writer, *_ in counted]))


def review_lanes(connection: Connection, operation: ReviewLanes, terms: Terms) -> bytes | None:
    """Reviews the lanes of this replica's shards. Each shard stores the rules that its lanes were last reviewed by."""
    numbers = records.pack([terms.rules.retry.expire_after, terms.rules.circuit.forget_after])
    shards: list[int] = [shard for (shard,) in connection.execute(_SHARDS_TO_REVIEW, (terms.number, numbers))]
    if not shards:
        return None
    after = (operation.after or b"").decode()
    page: dict[str, str] = dict(connection.execute(_LANES_TO_REVIEW, (after, shards, operation.limit)).fetchall())
    lane_rows.review(connection, page, terms)
    if len(page) == operation.limit:
        return max(page).encode()
    connection.execute(_SHARDS_REVIEWED, (numbers, shards))
    return None


def purge(connection: Connection, operation: Purge, terms: Terms) -> int:
    """Skips and does not count what another replica is removing."""
    removed = _purge_delivered(connection, operation.delivered_before, operation.limit)
    found = connection.execute(_LONG_DEAD, (operation.dead_before, operation.limit - removed))
    letters = sorted(_row(*row) for row in found)
    _erase(connection, letters, terms)
    removed += len(letters)
    return removed + connection.execute(_PURGE_KEYS, (operation.keys_before, operation.limit - removed)).rowcount


def _purge_delivered(connection: Connection, before: int, limit: int) -> int:
    ids: list[MessageId] = [id for (id,) in connection.execute(_PURGE_DELIVERED, (before, limit))]
    if ids:
        connection.execute(_DELETE_ATTEMPTS, (ids,))
    return len(ids)


ANYONES: dict[type[Operation], Callable[[Connection, Any, Terms], Any]] = {
    ReplayDead: replay_dead,
    DropDead: drop_dead,
    Purge: purge,
    EvictLanes: lambda connection, operation, terms: Evicted([], None),  # Here they do not count for `store.max_size`.
}
"""Operations for any replica: nobody has these messages in memory."""
OWNERS: dict[type[Operation], Callable[[Connection, Any, Terms], Any]] = {
    Expire: expire,
    DropMessages: drop_messages,
    HandOver: hand_over,
    RetryNow: retry_now,
    Forget: forget,
    ReviewLanes: review_lanes,
}
