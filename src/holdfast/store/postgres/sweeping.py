"""What changes many messages at once, in bounded steps: expiry, replay, forgetting lanes, retention.

Each costs by what it removes or moves. Messages are locked first and in the order of their ids, then their lanes, their
hosts, and when these wake; what was chosen before it was locked is taken as it is found then.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.core.circuit import CircuitState
from holdfast.core.errors import CorruptRecord
from holdfast.core.handoff import handoff_digest
from holdfast.core.message import DeadReason, MessageId, Standing
from holdfast.store import records
from holdfast.store.port import (
    DropDead,
    DropMessages,
    Expire,
    Forget,
    HandOver,
    Operation,
    Purge,
    ReplayDead,
    Retried,
    RetryNow,
    ReviewLanes,
    Swept,
)
from holdfast.store.postgres import choosing, waking
from holdfast.store.postgres.accepting import know_lanes
from holdfast.store.postgres.connection import Connection
from holdfast.store.postgres.counting import Counts, Sums, of_lanes
from holdfast.store.postgres.rows import DEAD, REASONS, RETRY, STATE_NUMBERS, WAITING
from holdfast.store.postgres.terms import Terms

ENABLED = STATE_NUMBERS[CircuitState.ENABLED]
REVIEWED_BY = "rules"
"""The name in META of the numbers that the lanes' moments were last computed by."""

_MESSAGES = """SELECT m.id, m.lane, m.standing, m.born, m.retry, m.attempts, m.size, m.owner, m.record, l.host,
    coalesce(l.state, 0) FROM messages m LEFT JOIN lanes l ON l.lane = m.lane WHERE"""
_CHOSEN = f"{_MESSAGES} m.id = ANY(%s::bytea[]) ORDER BY m.id FOR UPDATE OF m"
_OLDEST = f"""{_MESSAGES} m.lane = %s AND m.standing = {{standing}} AND m.owner IS NULL AND m.born < %s
    AND (m.born, m.id) > (%s, %s) ORDER BY m.born, m.id LIMIT %s FOR UPDATE OF m SKIP LOCKED"""
_LONG_DEAD = f"""{_MESSAGES} m.standing = {DEAD} AND m.due < %s ORDER BY m.due, m.id LIMIT %s
    FOR UPDATE OF m SKIP LOCKED"""


class _Row(NamedTuple):
    """A message that is locked. `known_host` and `circuit` are what its lane's row tells."""

    id: MessageId
    lane: str
    standing: int
    born: int
    retry: int
    attempts: int
    size: int
    owner: int | None
    record: bytes
    known_host: str | None
    circuit: int

    @property
    def told_host(self) -> str | None:
        """The host by the record, None if that can't be read."""
        try:
            return records.decode_message(self.id, self.record)[0].host
        except CorruptRecord:
            return None

    @property
    def host(self) -> str:
        """The host that it was counted for."""
        return self.told_host or self.known_host or self.lane


def _locked(connection: Connection, ids: Sequence[MessageId]) -> list[_Row]:
    return [_Row(*row) for row in connection.execute(_CHOSEN, (list(ids),))] if ids else []


def expire(connection: Connection, operation: Expire, terms: Terms) -> list[MessageId]:
    """Only what nobody has claimed, and only while the circuit is not enabled: another replica may just enable it."""
    expired = _oldest(connection, operation, WAITING, operation.limit)
    expired += _oldest(connection, operation, RETRY, operation.limit - len(expired))
    found = connection.execute("SELECT state FROM lanes WHERE lane = %s FOR SHARE", (operation.lane,)).fetchone()
    if not expired or found is None or found[0] == ENABLED:
        return []
    ids = [row.id for row in expired]
    counts = Counts()
    for row in expired:
        counts.move(row.host, row.lane, row.standing, DEAD)
    with connection.pipeline():
        connection.execute(
            "UPDATE messages SET standing = %s, due = %s, held = false, reason = %s WHERE id = ANY(%s::bytea[])",
            (DEAD, operation.now, REASONS.index(DeadReason.EXPIRED), ids),
        )
        counts.write(connection, terms.writer)
    waking.review(connection, [operation.lane], terms)
    return ids


def _oldest(connection: Connection, operation: Expire, standing: int, limit: int) -> list[_Row]:
    found: list[_Row] = []
    after: tuple[int, bytes] = (-1, b"")
    while len(found) < limit:
        terms = (operation.lane, operation.born_before, *after, limit)
        page = [_Row(*row) for row in connection.execute(_OLDEST.format(standing=standing), terms)]
        found += [row for row in page if row.id not in operation.skip]
        if len(page) < limit:
            break
        after = page[-1].born, page[-1].id
    return found[:limit]


def replay_dead(connection: Connection, operation: ReplayDead, terms: Terms) -> Swept:
    chosen, after = choosing.dead_letters(connection, operation.select, operation.limit)
    letters = [row for row in _locked(connection, chosen) if row.standing == DEAD and row.told_host is not None]
    _replay(connection, letters, operation.now, terms)
    return Swept([row.id for row in letters], {row.lane: row.host for row in letters}, after)


def _replay(connection: Connection, letters: Sequence[_Row], now: int, terms: Terms) -> None:
    """Give dead messages a new life, in which their hosts are approached carefully."""
    if not letters:
        return
    counts = Counts()
    for row in letters:
        counts.move(row.host, row.lane, DEAD, WAITING)
    lanes = {row.lane: row.host for row in letters}
    with connection.pipeline():
        connection.execute(
            """UPDATE messages SET standing = %s, born = %s, due = 0, retry = 0, held = false, reason = NULL,
            owner = NULL WHERE id = ANY(%s::bytea[])""",
            (WAITING, now, [row.id for row in letters]),
        )
        counts.write(connection, terms.writer)
        know_lanes(connection, lanes, terms)
        connection.execute(
            """INSERT INTO hosts (host, most, streak, hold_until, run)
            SELECT v, 1, 0, 0, %s::bigint FROM unnest(%s::text[]) AS v
            ON CONFLICT (host) DO UPDATE SET most = 1, streak = 0, run = excluded.run""",
            (terms.run, sorted(set(lanes.values()))),
        )
    waking.lower(connection, dict.fromkeys(lanes, now), terms, born=True)


def drop_dead(connection: Connection, operation: DropDead, terms: Terms) -> Swept:
    chosen, after = choosing.dead_letters(connection, operation.select, operation.limit)
    letters = [row for row in _locked(connection, chosen) if row.standing == DEAD]
    _erase(connection, letters, terms)
    return Swept([row.id for row in letters], {}, after)


def drop_messages(connection: Connection, operation: DropMessages, terms: Terms) -> Swept:
    """Also those that a replica has claimed: their outcomes are ignored."""
    select = operation.select
    chosen, after = choosing.undelivered(connection, select, operation.limit, operation.skip)
    dropped = [
        row
        for row in _locked(connection, chosen)
        if select.state in (None, choosing.state_of(row.standing, row.retry, row.circuit))
    ]
    lanes = {row.lane: row.host for row in dropped if row.standing != DEAD}
    _erase(connection, dropped, terms)
    waking.review(connection, lanes, terms)
    return Swept([row.id for row in dropped], lanes, after)


def _erase(connection: Connection, doomed: Sequence[_Row], terms: Terms) -> None:
    """Remove messages that are locked, with all that is known of them."""
    if not doomed:
        return
    counts = Counts()
    for row in doomed:
        counts.leave(row.host, row.lane, row.standing, row.size)
    ids = [row.id for row in doomed]
    with connection.pipeline():
        connection.execute("DELETE FROM messages WHERE id = ANY(%s::bytea[])", (ids,))
        connection.execute("DELETE FROM attempts WHERE id = ANY(%s::bytea[])", (ids,))
        counts.write(connection, terms.writer)


def hand_over(connection: Connection, operation: HandOver, terms: Terms) -> int:
    """What was tried or replayed meanwhile stays, and so does what another replica has."""
    read_at = {entry.message.id: entry.place for entry in operation.entries}
    handed = [
        row
        for row in _locked(connection, list(read_at))
        if row.attempts == read_at[row.id].attempts
        and (row.standing == DEAD) == (read_at[row.id].standing is Standing.DEAD)
        and row.owner in (None, terms.number)
    ]
    _erase(connection, handed, terms)
    digests = [handoff_digest(row.id) for row in handed]
    connection.execute("DELETE FROM keys WHERE digest = ANY(%s::bytea[])", (digests,))
    waking.review(connection, {row.lane for row in handed}, terms)
    return len(handed)


def retry_now(connection: Connection, operation: RetryNow, terms: Terms) -> Retried:
    """A message whose turn only its lane decides is due already, and so is one that is claimed; one that waits for a
    time no longer does.
    """
    found = [row for row in _locked(connection, [operation.id]) if row.told_host is not None]
    if not found:
        known = connection.execute("SELECT 1 FROM delivered WHERE id = %s", (operation.id,)).fetchone()
        return Retried.DELIVERED if known else Retried.UNKNOWN
    [row] = found
    if row.standing == DEAD:
        _replay(connection, found, operation.now, terms)
        return Retried.REPLAYED
    if row.standing == RETRY and row.owner is None:
        connection.execute(
            "UPDATE messages SET due = %s, born = least(born, %s), held = false WHERE id = %s",
            (operation.now, operation.now, row.id),
        )
        # Not only lowered: in a circuit that is not enabled it may be a probe now, and expire sooner.
        waking.review(connection, [row.lane], terms)
        waking.hint(connection, [row.lane], terms)
    return Retried.DUE


def forget(connection: Connection, operation: Forget, terms: Terms) -> bool:
    """What is counted once the rows are locked is all there is: who brings the lane something locks its wake."""
    lane = operation.lane
    found = connection.execute("SELECT host, state FROM lanes WHERE lane = %s FOR UPDATE", (lane,)).fetchone()
    if found is None or found[1] != ENABLED:
        return False
    host = found[0]
    connection.execute("SELECT 1 FROM hosts WHERE host = %s FOR UPDATE", (host,))
    connection.execute("SELECT 1 FROM wakes WHERE lane = %s FOR UPDATE", (lane,))
    if of_lanes(connection, [(host, lane)]).get(lane, Sums()).waiting:
        return False
    with connection.pipeline():
        connection.execute("DELETE FROM lanes WHERE lane = %s", (lane,))
        connection.execute(
            "DELETE FROM hosts h WHERE host = %s AND NOT EXISTS (SELECT 1 FROM lanes l WHERE l.host = h.host)", (host,)
        )
        connection.execute("DELETE FROM wakes WHERE lane = %s", (lane,))
    _forget_counts(connection, host, lane)
    return True


def _forget_counts(connection: Connection, host: str, lane: str) -> None:
    """Rows that come to nothing together can leave together, whatever their writers count meanwhile."""
    counted = connection.execute(
        """SELECT writer, first, retry, dead, bytes FROM counters WHERE host = %s AND lane = %s ORDER BY writer
        FOR UPDATE SKIP LOCKED""",
        (host, lane),
    ).fetchall()
    if not any(sum(column) for column in zip(*(sums for _, *sums in counted), strict=True)):
        connection.execute(
            "DELETE FROM counters WHERE host = %s AND lane = %s AND writer = ANY(%s)",
            (host, lane, [writer for writer, *_ in counted]),
        )


def review_lanes(connection: Connection, operation: ReviewLanes, terms: Terms) -> bytes | None:
    numbers = records.pack([terms.rules.retry.expire_after, terms.rules.circuit.forget_after])
    if operation.after is None:
        last = connection.execute("SELECT value FROM meta WHERE name = %s", (REVIEWED_BY,)).fetchone()
        if last is not None and last[0] == numbers:
            return None
    after = "" if operation.after is None else operation.after.decode()
    found = connection.execute(
        "SELECT lane FROM lanes WHERE lane > %s ORDER BY lane LIMIT %s", (after, operation.limit)
    )
    lanes: list[str] = [lane for (lane,) in found]
    waking.review(connection, lanes, terms)
    if len(lanes) == operation.limit:
        return lanes[-1].encode()
    connection.execute(
        "INSERT INTO meta (name, value) VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (REVIEWED_BY, numbers),
    )
    return None


def purge(connection: Connection, operation: Purge, terms: Terms) -> int:
    """What another replica is just removing is its to count."""
    removed = _purge_delivered(connection, operation.delivered_before, operation.limit)
    found = connection.execute(_LONG_DEAD, (operation.dead_before, operation.limit - removed))
    letters = sorted(_Row(*row) for row in found)
    _erase(connection, letters, terms)
    removed += len(letters)
    keys = connection.execute(
        """DELETE FROM keys WHERE digest = ANY(ARRAY(
            SELECT digest FROM keys WHERE used < %s ORDER BY used LIMIT %s FOR UPDATE SKIP LOCKED))""",
        (operation.keys_before, operation.limit - removed),
    )
    return removed + keys.rowcount


def _purge_delivered(connection: Connection, before: int, limit: int) -> int:
    gone: Iterable[tuple[MessageId]] = connection.execute(
        """DELETE FROM delivered WHERE id = ANY(ARRAY(
            SELECT id FROM delivered WHERE at < %s ORDER BY at, id LIMIT %s FOR UPDATE SKIP LOCKED)) RETURNING id""",
        (before, limit),
    )
    ids = [id for (id,) in gone]
    if ids:
        connection.execute("DELETE FROM attempts WHERE id = ANY(%s::bytea[])", (ids,))
    return len(ids)


SWEEPS: dict[type[Operation], Callable[[Connection, Any, Terms], Any]] = {
    Expire: expire,
    ReplayDead: replay_dead,
    DropDead: drop_dead,
    DropMessages: drop_messages,
    HandOver: hand_over,
    RetryNow: retry_now,
    Forget: forget,
    Purge: purge,
    ReviewLanes: review_lanes,
}
