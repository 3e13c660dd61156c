"""Checks and repairs a database, while the fleet goes on.

The check sees the database at one moment. It reads every record, counts the messages, and compares each lane's
`wake_at` with its queues. A `wake_at` may be early, since the owner then looks for nothing. It must not be late.

Computed values can be repaired. Counters get their difference added, which is right whatever was counted since. Lanes
are made to wake now, so that their owners compute `wake_at`. Records that can't be read are reported, and stay.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from holdfast.core.errors import CorruptRecord
from holdfast.core.lane_times import wake_at
from holdfast.core.message import Message, MessageId, id_text
from holdfast.core.ownership import shard_of
from holdfast.store import records
from holdfast.store.maintenance import Finding, Repaired, delivered_still_here, unreadable
from holdfast.store.port import LaneRecord
from holdfast.store.postgres import ownership_tables, rows
from holdfast.store.postgres.lane_rows import heads_of, put_circuits
from holdfast.store.postgres.rows import ACTIVE, DEAD, STATE_NUMBERS, STATES, Terms, counted_as, reason_of
from holdfast.store.postgres.shares import FOLDED, Counts, Sums
from holdfast.store.postgres.transactions import Connection, pages, retried, snapshot
from holdfast.store.validation import ID, UNREADABLE, check_attempt, check_message, delivered_of, lane_of

SOON = 10_000
"""Milliseconds. A `wake_at` this near counts as now: replicas' clocks differ."""
AT_ONCE = 100
"""Lanes that are repaired in one transaction: their owners wait for it."""

# Each table is read in pages by its primary key.
_MESSAGES = """SELECT m.id, m.lane, m.standing, m.due, m.shard, m.size, m.reason, m.record,
    coalesce(octet_length(m.body), 0), l.host, d.id IS NOT NULL
    FROM messages m LEFT JOIN lanes l ON l.lane = m.lane LEFT JOIN delivered d ON d.id = m.id"""
_ATTEMPTS = """SELECT a.id, a.number, a.record, a.answer, m.id IS NULL AND d.id IS NULL
    FROM attempts a LEFT JOIN messages m ON m.id = a.id LEFT JOIN delivered d ON d.id = a.id"""
_DELIVERED = "SELECT id, record FROM delivered"
_KEYS = "SELECT digest, body, id FROM keys"
_LANES = "SELECT lane, host, shard, state, record, wake_at FROM lanes"
_COUNTERS = """SELECT host, lane, sum(first)::bigint, sum(retry)::bigint, sum(dead)::bigint, sum(bytes)::bigint
    FROM counters GROUP BY host, lane"""
_SET_SHARDS = """UPDATE messages m SET shard = v.shard FROM unnest(%s::bytea[], %s::smallint[]) AS v(id, shard)
    WHERE m.id = v.id AND standing = 0"""
_SET_LISTED = "UPDATE lanes SET state = %s, shard = %s WHERE lane = %s AND record = %s"
_WAKE = "UPDATE lanes SET wake_at = %s WHERE lane = ANY(%s::text[])"


@dataclass(slots=True)
class Audit:
    """One check of everything. Faults are yielded as they are found. Those that can be repaired are kept."""

    connection: Connection
    terms: Terms
    counts: Counts = field(default_factory=Counts)
    lost: dict[MessageId, int] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)
    listed: dict[str, tuple[int, int, bytes]] = field(default_factory=dict)

    def run(self) -> Iterator[Finding]:
        soon = ownership_tables.fleet_time(self.connection) + SOON
        walk = partial(pages, self.connection)
        with snapshot(self.connection):
            for table, check in (
                (walk(_MESSAGES, {"m.id": b""}), self._message),
                (walk(_ATTEMPTS, {"a.id": b"", "a.number": 0}), _attempt),
                (walk(_DELIVERED, {"id": b""}), _delivered),
                (walk(_KEYS, {"digest": b""}), _key),
            ):
                for row in chain.from_iterable(table):
                    yield from check(*row)
            yield from self._counters()
            for lane, host in self.unknown.items():
                yield Finding("circuit", lane, f"has no record, and messages to {host} wait in it")
            for page in walk(_LANES, {"lane": ""}):
                yield from self._lanes(page, soon)

    def _message(self, *row: Any) -> Iterator[Finding]:
        id, lane, standing, due, shard, size, reason, record, length, known_host, is_delivered = row
        host = known_host or lane
        try:
            message = _readable(id, lane, size, record, length)
            host = message.host
            if standing == DEAD:
                reason_of(reason)
        except UNREADABLE as error:
            yield unreadable("message", id_text(id), error)
        self.counts.add(host, lane, counted_as(standing, due), size)
        if is_delivered:
            yield delivered_still_here(id)
        if standing == ACTIVE and shard != shard_of(host):
            self.lost[id] = shard_of(host)
            yield Finding("index", id_text(id), f"has arrived in shard {shard}, and its host is in {shard_of(host)}")
        elif standing not in (ACTIVE, DEAD) and known_host is None:
            self.unknown[lane] = host

    def _counters(self) -> Iterator[Finding]:
        known = {(host, lane): Sums(*sums) for host, lane, *sums in self.connection.execute(_COUNTERS)}
        for (host, lane), sums in known.items():
            self.counts.less(host, lane, sums)
        for key, off in self.counts.changes.items():
            counted = known.get(key, Sums())
            there = Sums(*map(sum, zip(counted, off, strict=True)))
            yield Finding("share", key[1], f"is counted with {_words(counted)} and has {_words(there)}")

    def _lanes(self, page: Sequence[Any], soon: int) -> Iterator[Finding]:
        circuits: dict[str, LaneRecord] = {}
        for lane, host, shard, state, record, _ in page:
            try:
                circuits[lane] = lane_of(records.lane_key(lane), record)
            except UNREADABLE as error:
                yield unreadable("circuit", lane, error)
                continue
            number = STATE_NUMBERS[circuits[lane].circuit.state]
            if number != state or shard != shard_of(host):
                self.listed[lane] = number, shard_of(host), record
                yield Finding("circuit", lane, f"is listed as {STATES[state]} in shard {shard}, and is not")
        heads, rules = heads_of(self.connection, circuits), self.terms.rules
        for lane, at in ((lane, at) for lane, *_, at in page if lane in circuits):
            record = circuits[lane]
            wake = wake_at(record.circuit, heads[lane][1], rules.circuit, rules.retry, record.hold_until)
            if wake and (not at or at > max(wake, soon)):
                self.late.add(lane)
                yield Finding("summary", lane, "its moment is missing, or later than its circuit and its queue ask for")


# -- whether one row can be read -------------------------------------------------------------------------------------


def _readable(id: MessageId, lane: str, size: int, record: bytes, length: int) -> Message:
    """Of a body with a column of its own only the length is read."""
    message, stated, apart = records.decode_message(id, record)
    check_message(message, stated)
    there = length if apart else len(message.body)
    if not there == stated == size:
        raise CorruptRecord(f"{there} of {stated} bytes of its body are there, and {size} are counted")
    if message.lane != lane:
        raise CorruptRecord(f"the record is of lane {message.lane}")
    return message


def _attempt(id: MessageId, number: int, record: bytes, answer: bytes | None, is_stray: bool) -> Iterator[Finding]:
    try:
        check_attempt(rows.attempt(number, record, answer))
    except UNREADABLE as error:
        yield unreadable("attempt", id_text(id), error)
    if is_stray:
        yield Finding("attempt", id_text(id), f"number {number} has no message")


def _delivered(id: MessageId, record: bytes) -> Iterator[Finding]:
    try:
        delivered_of(id, record)
    except UNREADABLE as error:
        yield unreadable("delivered", id_text(id), error)


def _key(*parts: bytes) -> Iterator[Finding]:
    if any(len(part) != ID for part in parts):
        yield unreadable("key", parts[0].hex(), f"not {ID} bytes each")


def _words(sums: Sums) -> str:
    return f"{sums.first} first attempts, {sums.retry} retries, {sums.dead} dead, {sums.bytes} bytes"


# -- repairing -------------------------------------------------------------------------------------------------------


def repair(connection: Connection, terms: Terms) -> Repaired:
    """Repairs computed values."""
    audit = Audit(connection, terms)
    for _ in audit.run():
        pass
    retried(connection, partial(_set_right, audit=audit))
    lanes = sorted({*audit.unknown, *audit.listed, *audit.late})
    for start in range(0, len(lanes), AT_ONCE):
        retried(connection, partial(_set_lanes_right, lanes=lanes[start : start + AT_ONCE], audit=audit))
    return Repaired(
        entries=len(audit.lost),
        circuits=len(audit.unknown),
        summaries=len(audit.late) + len(audit.listed),
        shares=len({host for host, _ in audit.counts.changes}),
    )


def _set_right(connection: Connection, audit: Audit) -> None:
    connection.execute(_SET_SHARDS, (list(audit.lost), list(audit.lost.values())))
    audit.counts.write(connection, FOLDED)


def _set_lanes_right(connection: Connection, lanes: Sequence[str], audit: Audit) -> None:
    """Writes no existing record, since the owner may be about to. It makes the owner look instead."""
    unknown = [
        LaneRecord.new(lane, audit.unknown[lane], audit.terms.rules, audit.terms.now)
        for lane in lanes
        if lane in audit.unknown
    ]
    put_circuits(connection, unknown, audit.terms)
    for lane in lanes:
        if lane in audit.listed:
            connection.execute(_SET_LISTED, (*audit.listed[lane][:2], lane, audit.listed[lane][2]))
    late = [lane for lane in lanes if lane in audit.late]
    connection.execute(_WAKE, (audit.terms.now, late))
