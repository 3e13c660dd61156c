"""Rows of lanes: a lane's circuit, and `wake_at`, the time when it needs attention next. Only owners write them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.budget import class_of
from holdfast.core.circuit import Circuit, CircuitState
from holdfast.core.lane_times import Heads, wake_at
from holdfast.core.ownership import shard_of
from holdfast.store import records
from holdfast.store.port import NEVER, LaneRecord
from holdfast.store.postgres.rows import RETRY, STATE_NUMBERS, WAITING, Terms, columns
from holdfast.store.postgres.transactions import Connection, Cursor

HELD_SEEN = 10_000
"""Held messages that are skipped at most to find one that may be a probe."""

_FIRST = "SELECT {moment} FROM messages m WHERE m.lane = v.lane AND standing = {standing} ORDER BY {moment}, id LIMIT 1"
_HEADS = f"""SELECT v.lane, l.host, l.record,
    ({_FIRST.format(moment="born", standing=WAITING)}),
    ({_FIRST.format(moment="due", standing=RETRY)}),
    ({_FIRST.format(moment="born", standing=RETRY)}),
    coalesce(v.disabled, l.state = {STATE_NUMBERS[CircuitState.DISABLED]}) AND (SELECT bool_or(NOT held) FROM (
        SELECT held FROM messages m WHERE m.lane = v.lane AND standing = {RETRY}
        ORDER BY born, id LIMIT {HELD_SEEN}) AS first_ones)
    FROM unnest(%s::text[], %s::boolean[]) AS v(lane, disabled) LEFT JOIN lanes l ON l.lane = v.lane"""
"""The first message of each queue of some lanes: one look into each of three indexes for a lane. ORDER BY ... LIMIT 1
keeps to the index; EXISTS reads the whole table beside one lane that holds nearly all messages.
"""
_INSERT = """INSERT INTO lanes (lane, host, shard, state, host_class, wake_at, record)
    SELECT * FROM unnest(%s::text[], %s::text[], %s::smallint[], %s::smallint[], %s::smallint[], %s::bigint[],
        %s::bytea[]) ON CONFLICT (lane)"""
_UPSERT = f"""{_INSERT} DO UPDATE SET host = excluded.host, shard = excluded.shard, state = excluded.state,
    host_class = excluded.host_class, wake_at = excluded.wake_at, record = excluded.record"""
_INSERT_NEW = f"{_INSERT} DO NOTHING RETURNING lane"


@dataclass(slots=True)
class TouchedLanes:
    """The lanes whose rows one transaction writes: with a new record, or with a new `wake_at` alone.

    `ask` belongs into the pipeline that moves the messages, and `save` after it.
    """

    terms: Terms
    _given: dict[str, tuple[LaneRecord, bytes]] = field(default_factory=dict)
    _hosts: dict[str, str] = field(default_factory=dict)
    _answer: Cursor | None = None

    def __bool__(self) -> bool:
        return bool(self._hosts)

    def touch(self, lane: str, host: str) -> None:
        self._hosts.setdefault(lane, host)

    def put(self, record: LaneRecord, encoded: bytes) -> None:
        self._given[record.key] = record, encoded
        self._hosts[record.key] = record.host

    def ask(self, connection: Connection) -> None:
        lanes = sorted(self._hosts)
        disabled = [
            None if lane not in self._given else self._given[lane][0].circuit.state is CircuitState.DISABLED
            for lane in lanes
        ]
        self._answer = connection.execute(_HEADS, (lanes, disabled))

    def save(self, connection: Connection) -> int:
        """Writes the rows. Returns the earliest `wake_at`."""
        assert self._answer is not None
        saved = [self._row(*row) for row in self._answer.fetchall()]
        values = columns(sorted(saved))
        connection.execute(_UPSERT, values)
        return min((row[5] for row in saved if row[5]), default=NEVER)

    def _row(self, lane: str, known_host: str | None, stored: bytes | None, *queues: Any) -> tuple[Any, ...]:
        if lane in self._given:
            record, encoded = self._given[lane]
        else:
            known = records.lane_or_none(stored)
            record = known or LaneRecord.new(lane, known_host or self._hosts[lane], self.terms.rules, self.terms.now)
            encoded = records.encode_lane(record)
        rules = self.terms.rules
        wake = wake_at(record.circuit, _heads(record.circuit, *queues), rules.circuit, rules.retry, record.hold_until)
        return (*_listed(record), wake, encoded)


def _heads(circuit: Circuit, waiting: int | None, due: int | None, aging: int | None, is_free: bool | None) -> Heads:
    ages = [age for age in (waiting, aging) if age is not None]
    probe_from = None
    if circuit.state is CircuitState.DISABLED:
        probe_from = 0 if waiting is not None or is_free else due
    return Heads(waiting, due, min(ages, default=None), probe_from)


def heads_of(connection: Connection, lanes: Iterable[str]) -> Mapping[str, tuple[bytes | None, Heads]]:
    """For each lane, its record if it has one, and the heads of its queues."""
    names = list(lanes)
    found = connection.execute(_HEADS, (names, [None] * len(names))).fetchall()
    heads = {}
    for lane, _, stored, *queues in found:
        record = records.lane_or_none(stored)
        heads[lane] = stored, _heads(Circuit() if record is None else record.circuit, *queues)
    return heads


def review(connection: Connection, lanes: Mapping[str, str], terms: Terms) -> int:
    """Computes `wake_at` of lanes anew, given with their hosts. Returns the earliest."""
    if not lanes:
        return NEVER
    touched = TouchedLanes(terms)
    for lane, host in lanes.items():
        touched.touch(lane, host)
    touched.ask(connection)
    return touched.save(connection)


def put_circuits(connection: Connection, coming: Sequence[LaneRecord], terms: Terms) -> set[str]:
    """Adds lanes that have no row yet. They wake now, so that their owners look at them. Returns which were added."""
    if not coming:
        return set()
    first = {each.key: each for each in reversed(coming)}
    rows = [(*_listed(first[key]), terms.now, records.encode_lane(first[key])) for key in sorted(first)]
    return {lane for (lane,) in connection.execute(_INSERT_NEW, columns(rows))}


def _listed(record: LaneRecord) -> tuple[Any, ...]:
    """The columns that lanes are searched by: lane, host, shard, state and class of the host."""
    state = STATE_NUMBERS[record.circuit.state]
    return record.key, record.host, shard_of(record.host), state, int(class_of(record.answers))
