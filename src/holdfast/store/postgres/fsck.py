"""What is wrong with a database, and repairing it, while the fleet goes on.

All is compared as it was at one moment: every record is read, messages are counted anew, and each lane's moment is
compared with its queues. A moment may be early, since whoever looks then finds that out; one that is still to come must
not be late.

What is computed can be repaired: counts by adding what they are off, which is right whatever was counted since; moments
by having the lanes' owners look at them now. Records that can't be read are told of, and stay.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from holdfast.core.errors import CorruptRecord
from holdfast.core.lane import wake_at
from holdfast.core.message import Message, MessageId, id_text
from holdfast.core.ownership import shard_of
from holdfast.store import records
from holdfast.store.fsck import Finding
from holdfast.store.port import LaneRecord
from holdfast.store.postgres import ownership, rows
from holdfast.store.postgres.connection import Connection
from holdfast.store.postgres.lanes import heads_of, new_record, put_circuits
from holdfast.store.postgres.rows import ACTIVE, DEAD, STATE_NUMBERS, STATES, counted_as
from holdfast.store.postgres.shares import FOLDED, Counts, Sums
from holdfast.store.postgres.stories import reason_of
from holdfast.store.postgres.terms import Terms
from holdfast.store.postgres.walking import pages, repeated, snapshot
from holdfast.store.repair import Repaired
from holdfast.store.sound import ID, UNREADABLE, check_attempt, check_lane, check_message

SOON = 10_000
"""Milliseconds: a moment this near is as good as now, by whichever replica's clock."""
AT_ONCE = 100
"""Lanes that are repaired in one transaction: their owners wait for it."""

_MESSAGES = """SELECT m.id, m.lane, m.standing, m.due, m.shard, m.size, m.reason, m.record,
    coalesce(octet_length(m.body), 0), l.host, d.id IS NOT NULL
    FROM messages m LEFT JOIN lanes l ON l.lane = m.lane LEFT JOIN delivered d ON d.id = m.id
    WHERE m.id > %s ORDER BY m.id LIMIT %s"""
_LANES = """SELECT lane, host, shard, state, record, wake_at FROM lanes WHERE lane > %s ORDER BY lane LIMIT %s"""
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
        self.lost: dict[MessageId, int] = {}
        self.unknown: dict[str, str] = {}
        self.late: set[str] = set()
        self.listed: dict[str, tuple[int, int, bytes]] = {}

    def run(self) -> Iterator[Finding]:
        self._soon = ownership.fleet_time(self._connection) + SOON
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

    def _message(self, row: Sequence[Any]) -> Iterator[Finding]:
        id, lane, standing, due, shard, size, reason, record, length, known_host, is_delivered = row
        host = known_host or lane
        try:
            message = _readable(id, lane, size, record, length)
            host = message.host
            if standing == DEAD:
                reason_of(reason)
        except UNREADABLE as error:
            yield Finding("message", id_text(id), f"can't be read: {error}")
        self.counts.add(host, lane, counted_as(standing, due), size)
        if is_delivered:
            yield Finding("message", id_text(id), "was delivered and is still among those that are not")
        if standing == ACTIVE and shard != shard_of(host):
            self.lost[id] = shard_of(host)
            yield Finding("index", id_text(id), f"has arrived in shard {shard}, and its host is in {shard_of(host)}")
        elif standing not in (ACTIVE, DEAD) and known_host is None:
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
        circuits: dict[str, LaneRecord] = {}
        for lane, host, shard, state, record, _ in page:
            try:
                circuits[lane] = _circuit(lane, record)
            except UNREADABLE as error:
                yield Finding("circuit", lane, f"can't be read: {error}")
                continue
            number = STATE_NUMBERS[circuits[lane].circuit.state]
            if number != state or shard != shard_of(host):
                self.listed[lane] = number, shard_of(host), record
                yield Finding("circuit", lane, f"is listed as {STATES[state]} in shard {shard}, and is not")
        heads = heads_of(self._connection, circuits)
        for lane, *_, at in page:
            wake = 0
            if lane in circuits:
                record, rules = circuits[lane], self._rules
                wake = wake_at(record.circuit, heads[lane][1], rules.circuit, rules.retry, record.hold_until)
            if wake and (not at or at > max(wake, self._soon)):
                self.late.add(lane)
                yield Finding("summary", lane, "its moment is missing, or later than its circuit and its queue ask for")


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


def _circuit(lane: str, value: bytes) -> LaneRecord:
    record = records.decode_lane(value)
    check_lane(record)
    if record.key != lane:
        raise CorruptRecord(f"the record is that of {record.key}")
    return record


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


# -- repairing -------------------------------------------------------------------------------------------------------


def repair(connection: Connection, terms: Terms) -> Repaired:
    """Set right what is computed."""
    audit = Audit(connection, terms)
    for _ in audit.run():
        pass
    repeated(connection, partial(_set_right, audit=audit))
    lanes = sorted({*audit.unknown, *audit.listed, *audit.late})
    for start in range(0, len(lanes), AT_ONCE):
        repeated(connection, partial(_set_lanes_right, lanes=lanes[start : start + AT_ONCE], audit=audit, terms=terms))
    return Repaired(
        entries=len(audit.lost),
        circuits=len(audit.unknown),
        summaries=len(audit.late) + len(audit.listed),
        shares=len({host for host, _ in audit.counts.changes}),
    )


def _set_right(connection: Connection, audit: Audit) -> None:
    connection.execute(
        """UPDATE messages m SET shard = v.shard FROM unnest(%s::bytea[], %s::smallint[]) AS v(id, shard)
        WHERE m.id = v.id AND standing = 0""",
        (list(audit.lost), list(audit.lost.values())),
    )
    audit.counts.write(connection, FOLDED)


def _set_lanes_right(connection: Connection, lanes: Sequence[str], audit: Audit, terms: Terms) -> None:
    """No record of a lane is written, since its owner may just write one: it is made to look instead."""
    unknown = [new_record(lane, audit.unknown[lane], terms) for lane in lanes if lane in audit.unknown]
    put_circuits(connection, unknown, terms)
    for lane in lanes:
        if lane in audit.listed:
            connection.execute(
                "UPDATE lanes SET state = %s, shard = %s WHERE lane = %s AND record = %s",
                (*audit.listed[lane][:2], lane, audit.listed[lane][2]),
            )
    late = [lane for lane in lanes if lane in audit.late]
    connection.execute("UPDATE lanes SET wake_at = %s WHERE lane = ANY(%s::text[])", (terms.now, late))
