"""What is wrong with a database, and mending it, while the fleet goes on.

All is compared as it was at one moment: every record is read, messages are counted anew, and each lane's moment is
compared with its queues. A moment may be early, since whoever looks then finds that out; one that is still to come must
not be late.

What is computed can be mended: counts by adding what they are off, which is right whatever was counted since; moments
by reviewing their lanes. Records that can't be read are told of, and stay.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from holdfast.core.circuit import Circuit, CircuitState
from holdfast.core.errors import CorruptRecord
from holdfast.core.lane import wake_at
from holdfast.core.message import Message, MessageId, id_text
from holdfast.store import records
from holdfast.store.fsck import Finding
from holdfast.store.postgres import presence, rows, waking
from holdfast.store.postgres.accepting import know_lanes
from holdfast.store.postgres.connection import Connection
from holdfast.store.postgres.counting import FOLDED, Counts, Sums
from holdfast.store.postgres.rows import ACTIVE, DEAD, STATE_NUMBERS, STATES
from holdfast.store.postgres.showing import reason_of
from holdfast.store.postgres.terms import Terms
from holdfast.store.postgres.walking import PAGE, pages, repeated, snapshot
from holdfast.store.repair import Repaired
from holdfast.store.sound import ID, UNREADABLE, check_attempt, check_lane, check_message

SOON = 10_000
"""Milliseconds: a moment this near is as good as now, by whichever replica's clock."""

_MESSAGES = """SELECT m.id, m.lane, m.standing, m.owner, m.size, m.reason, m.record,
    coalesce(octet_length(m.body), 0), m.owner IS NOT NULL AND r.number IS NULL, l.host, d.id IS NOT NULL
    FROM messages m LEFT JOIN replicas r ON r.number = m.owner LEFT JOIN lanes l ON l.lane = m.lane
    LEFT JOIN delivered d ON d.id = m.id WHERE m.id > %s ORDER BY m.id LIMIT %s"""
_LANES = """SELECT l.lane, l.state, l.record, w.at FROM lanes l LEFT JOIN wakes w ON w.lane = l.lane
    WHERE l.lane > %s ORDER BY l.lane LIMIT %s"""
_MOMENTS_OF_NONE = """SELECT w.lane FROM wakes w LEFT JOIN lanes l ON l.lane = w.lane
    WHERE l.lane IS NULL AND w.lane > %s ORDER BY w.lane LIMIT %s"""
_ATTEMPTS = """SELECT a.id, a.number, a.record, a.answer, m.id IS NULL AND d.id IS NULL
    FROM attempts a LEFT JOIN messages m ON m.id = a.id LEFT JOIN delivered d ON d.id = a.id
    WHERE (a.id, a.number) > (%s, %s) ORDER BY a.id, a.number LIMIT %s"""
_DELIVERED = "SELECT id, record FROM delivered WHERE id > %s ORDER BY id LIMIT %s"
_KEYS = "SELECT digest, body, id FROM keys WHERE digest > %s ORDER BY digest LIMIT %s"


class Audit:
    """One look at everything. Faults are told as they are found; what can be mended is kept."""

    def __init__(self, connection: Connection, terms: Terms) -> None:
        self._connection = connection
        self._rules = terms.rules
        self._soon = terms.now
        self.counts = Counts()
        self.lost: list[MessageId] = []
        self.unknown: dict[str, str] = {}
        self.late: set[str] = set()
        self.strays: list[str] = []
        self.states: dict[str, tuple[int, bytes]] = {}

    def run(self) -> Iterator[Finding]:
        self._soon = presence.database_time(self._connection) + SOON
        with snapshot(self._connection):
            for query, first, check in (
                (_MESSAGES, (b"",), self._message),
                (_ATTEMPTS, (b"", 0), _attempt),
                (_DELIVERED, (b"",), _delivered),
                (_KEYS, (b"",), _key),
            ):
                for page in pages(self._connection, query, first):
                    for row in page:
                        yield from check(row)
            yield from self._counters()
            for lane, host in self.unknown.items():
                yield Finding("circuit", lane, f"has no record, and messages to {host} wait in it")
            for page in pages(self._connection, _LANES, ("",)):
                yield from self._lanes(page)
            yield from self._moments_of_none()

    def _message(self, row: Sequence[Any]) -> Iterator[Finding]:
        id, lane, standing, owner, size, reason, record, length, is_abandoned, known_host, is_delivered = row
        host = known_host or lane
        try:
            message = _readable(id, lane, size, record, length)
            host = message.host
            if standing == DEAD:
                reason_of(reason)
        except UNREADABLE as error:
            yield Finding("message", id_text(id), f"can't be read: {error}")
        self.counts.add(host, lane, standing, size)
        if is_delivered:
            yield Finding("message", id_text(id), "was delivered and is still among those that are not")
        if is_abandoned:
            yield Finding("index", id_text(id), f"is claimed by replica {owner}, which is gone")
        elif (standing == ACTIVE) if owner is None else (standing == DEAD):
            self.lost.append(id)
            yield Finding("index", id_text(id), "is dead and claimed" if owner else "is active, and nobody has it")
        if standing != DEAD and known_host is None:
            self.unknown[lane] = host

    def _counters(self) -> Iterator[Finding]:
        counted = self._connection.execute(
            """SELECT host, lane, sum(first)::bigint, sum(retry)::bigint, sum(dead)::bigint, sum(bytes)::bigint
            FROM counters GROUP BY host, lane"""
        )
        known = {(host, lane): Sums(*sums) for host, lane, *sums in counted}
        for (host, lane), sums in known.items():
            self.counts.less(host, lane, sums)
        for key, off in self.counts.changes.items():
            told = known.get(key, Sums())
            there = Sums(*map(sum, zip(told, off, strict=True)))
            yield Finding("share", key[1], f"is counted with {_words(told)} and has {_words(there)}")

    def _lanes(self, page: Sequence[Any]) -> Iterator[Finding]:
        circuits: dict[str, Circuit] = {}
        for lane, state, record, _ in page:
            try:
                circuits[lane] = _circuit(lane, record)
            except UNREADABLE as error:
                yield Finding("circuit", lane, f"can't be read: {error}")
                continue
            if STATE_NUMBERS[circuits[lane].state] != state:
                self.states[lane] = STATE_NUMBERS[circuits[lane].state], record
                yield Finding("circuit", lane, f"is {circuits[lane].state}, and listed as {STATES[state]}")
        heads = waking.heads_of(
            self._connection, {lane: each.state is CircuitState.DISABLED for lane, each in circuits.items()}
        )
        for lane, _, _, at in page:
            wake = 0
            if lane in circuits:
                wake = wake_at(circuits[lane], heads[lane], self._rules.circuit, self._rules.retry)
            if wake and (at is None or at > max(wake, self._soon)):
                self.late.add(lane)
                yield Finding("summary", lane, "its moment is missing, or later than its circuit and its queue ask for")

    def _moments_of_none(self) -> Iterator[Finding]:
        for page in pages(self._connection, _MOMENTS_OF_NONE, ("",)):
            for (lane,) in page:
                if lane not in self.unknown:
                    self.strays.append(lane)
                    yield Finding("summary", lane, "has a moment, and no circuit")


# -- whether one row can be read -------------------------------------------------------------------------------------


def _readable(id: MessageId, lane: str, size: int, record: bytes, length: int) -> Message:
    """Of a body that is kept apart only the length is asked for."""
    message, told, apart = records.decode_message(id, record)
    check_message(message, told)
    there = length if apart else len(message.body)
    if not there == told == size:
        raise CorruptRecord(f"{there} of {told} bytes of its body are there, and {size} are counted")
    if message.lane != lane:
        raise CorruptRecord(f"the record is of lane {message.lane}")
    return message


def _circuit(lane: str, value: bytes) -> Circuit:
    record = records.decode_lane(value)
    check_lane(record)
    if record.key != lane:
        raise CorruptRecord(f"the record is that of {record.key}")
    return record.circuit


def _attempt(row: Sequence[Any]) -> Iterator[Finding]:
    id, number, record, answer, is_stray = row
    try:
        check_attempt(rows.attempt(number, record, answer))
    except UNREADABLE as error:
        yield Finding("attempt", id_text(id), f"can't be read: {error}")
    if is_stray:
        yield Finding("attempt", id_text(id), f"number {number} has no message")


def _delivered(row: Sequence[Any]) -> Iterator[Finding]:
    id, record = row
    try:
        message, size, _, attempt = records.decode_delivered(id, record)
        check_message(message, size)
        check_attempt(attempt)
    except UNREADABLE as error:
        yield Finding("delivered", id_text(id), f"can't be read: {error}")


def _key(row: Sequence[Any]) -> Iterator[Finding]:
    if any(len(part) != ID for part in row):
        yield Finding("key", row[0].hex(), f"can't be read: not {ID} bytes each")


def _words(sums: Sums) -> str:
    return f"{sums.first} first attempts, {sums.retry} retries, {sums.dead} dead, {sums.bytes} bytes"


# -- mending ---------------------------------------------------------------------------------------------------------


def mend(connection: Connection, terms: Terms) -> Repaired:
    """Set right what is computed."""
    audit = Audit(connection, terms)
    for _ in audit.run():
        pass
    done = Repaired(
        entries=len(audit.lost),
        circuits=len(audit.unknown),
        summaries=len(audit.late) + len(audit.strays) + len(audit.states),
        shares=len({host for host, _ in audit.counts.changes}),
    )
    freed = presence.FREED_AT_ONCE
    while freed >= presence.FREED_AT_ONCE:
        # Not connected for a lease: only the claims of those whose row is gone already are freed.
        freed = presence.reap(connection, terms, connected_since=terms.now)
        done.entries += freed
    found = repeated(connection, partial(_set_right, audit=audit, terms=terms))
    lanes = sorted(found | audit.late | audit.unknown.keys())
    for start in range(0, len(lanes), PAGE):
        repeated(connection, partial(_review, lanes=lanes[start : start + PAGE], terms=terms))
    return done


def _set_right(connection: Connection, audit: Audit, terms: Terms) -> set[str]:
    """Returns the lanes of messages that were found again."""
    found = connection.execute(
        """UPDATE messages SET owner = NULL, standing = greatest(standing, 1)
        WHERE id = ANY(%s::bytea[]) AND (standing = 3 OR standing = 0 AND owner IS NULL) RETURNING lane""",
        (audit.lost,),
    )
    lanes = {lane for (lane,) in found}
    audit.counts.write(connection, FOLDED)
    if audit.unknown:
        know_lanes(connection, audit.unknown, terms)
    for lane, (state, record) in sorted(audit.states.items()):
        connection.execute("UPDATE lanes SET state = %s WHERE lane = %s AND record = %s", (state, lane, record))
    connection.execute(
        """DELETE FROM wakes w WHERE lane = ANY(%s::text[]) AND NOT EXISTS (
            SELECT 1 FROM lanes l WHERE l.lane = w.lane)""",
        (audit.strays,),
    )
    return lanes


def _review(connection: Connection, lanes: list[str], terms: Terms) -> None:
    waking.review(connection, lanes, terms)
    waking.hint(connection, lanes, terms)
