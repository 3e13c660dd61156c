"""Which messages this replica takes: a few of each lane that it asks for, skipping what others are just taking.

What is returned is this replica's until its outcome or until it is given back. A probe is claimed in its lane's row,
where the moment of the next one is moved: so the fleet has one an interval.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.circuit import Circuit, CircuitState
from holdfast.core.errors import CorruptRecord
from holdfast.core.lane import Heads, position
from holdfast.core.message import Entry, MessageId
from holdfast.store import records
from holdfast.store.port import BATCH_BYTES, Agenda, Ask, LaneRecord, View
from holdfast.store.postgres import rows, waking
from holdfast.store.postgres.connection import Connection, beginning
from holdfast.store.postgres.judging import host_of
from holdfast.store.postgres.rows import RETRY, WAITING
from holdfast.store.postgres.terms import Terms
from holdfast.store.sound import check_message

SMALL = 16 << 10
"""Bodies up to this come with their claim; larger ones are fetched while they fit what a lane may hold in memory."""
PAGE = 512
"""Rows of the agenda that are read at once."""

_CLAIM = """UPDATE messages SET owner = %s WHERE id = ANY(ARRAY(
    SELECT id FROM messages WHERE lane = %s AND standing = {standing} AND owner IS NULL {when}
    ORDER BY {order}, id LIMIT %s FOR UPDATE SKIP LOCKED))"""
CLAIM_FRESH = _CLAIM.format(standing=WAITING, when="", order="born")
CLAIM_DUE = _CLAIM.format(standing=RETRY, when="AND due <= %s", order="due")
_OWN = f"""SELECT id, {rows.PLACE}, size, record, CASE WHEN size <= {SMALL} THEN body END FROM messages
    WHERE owner = %s AND lane = %s AND standing = %s AND id <> ALL(%s::bytea[])
    ORDER BY CASE WHEN standing = {RETRY} THEN due ELSE born END, id LIMIT %s"""
_GIVE_BACK = """UPDATE messages SET owner = NULL
    WHERE owner = %s AND lane = %s AND standing = ANY(%s) AND id <> ALL(%s::bytea[])"""


@dataclass(slots=True)
class _Lane:
    """One lane under way: as it is stored, and what was taken of it."""

    ask: Ask
    record: LaneRecord | None = None
    wake: int | None = None
    fresh: list[Entry] = field(default_factory=list)
    due: list[Entry] = field(default_factory=list)
    probe: Entry | None = None
    more_fresh: bool = False
    more_due: bool = False
    gave_back: bool = False
    broken: list[tuple[MessageId, str]] = field(default_factory=list)

    @property
    def state(self) -> CircuitState:
        return CircuitState.ENABLED if self.record is None else self.record.circuit.state


def survey(connection: Connection, asks: Sequence[Ask], terms: Terms) -> list[View]:
    """Claim what is asked for and tell of each lane as it is after that."""
    lanes = [_Lane(ask) for ask in asks]
    _read_lanes(connection, lanes, terms)
    enabled = [lane for lane in lanes if lane.state is CircuitState.ENABLED]
    _claim(connection, enabled, terms)
    for lane in lanes:
        if lane.state is not CircuitState.ENABLED:
            _give_back(connection, lane, [WAITING, RETRY], [], terms)
            if _wants_probe(lane):
                _claim_probe(connection, lane, terms)
    waking.lower(connection, {lane.ask.lane: terms.now for lane in lanes if lane.gave_back}, terms)
    heads = waking.heads_of(connection, {lane.ask.lane: lane.state is CircuitState.DISABLED for lane in lanes})
    idle = [lane.ask.lane for lane in lanes if _is_over(lane, heads[lane.ask.lane])]
    heads |= waking.review(connection, idle, terms)
    connection.commit()
    return [_view(lane, heads[lane.ask.lane]) for lane in lanes]


def _read_lanes(connection: Connection, lanes: Sequence[_Lane], terms: Terms) -> None:
    names = [lane.ask.lane for lane in lanes]
    with beginning(connection):
        stored = connection.execute(
            """SELECT l.lane, l.host, l.spell, l.record, h.most, h.streak, h.hold_until, h.run
            FROM lanes l LEFT JOIN hosts h ON h.host = l.host WHERE l.lane = ANY(%s)""",
            (names,),
        )
        wakes = connection.execute("SELECT lane, at FROM wakes WHERE lane = ANY(%s)", (names,))
    found = {row[0]: row[1:] for row in stored.fetchall()}
    moments = dict(wakes.fetchall())
    for lane in lanes:
        lane.wake = moments.get(lane.ask.lane)
        if lane.ask.lane not in found:
            continue
        try:
            lane.record = read_lane(found[lane.ask.lane], terms)
        except CorruptRecord:
            text = f"the record of lane {lane.ask.lane} can't be read: its circuit starts anew"
            lane.broken.append((bytes(16), text))


def read_lane(row: Sequence[Any], terms: Terms) -> LaneRecord:
    """A lane with its host's limit, from their rows; a host without one has no limit of its own yet."""
    host, spell, record, most, streak, hold_until, run = row
    limits = host_of(host, most or 0, streak or 0, hold_until or 0, terms.run if run is None else run, terms)
    return rows.lane_record(record, spell, limits.limit, terms.run, limits.hold_until)


def _claim(connection: Connection, lanes: Sequence[_Lane], terms: Terms) -> None:
    with connection.pipeline():
        taken = []
        for lane in lanes:
            ask, skip = lane.ask, list(lane.ask.skip)
            if ask.fresh:
                connection.execute(CLAIM_FRESH, (terms.number, ask.lane, ask.fresh))
            if ask.due:
                connection.execute(CLAIM_DUE, (terms.number, ask.lane, ask.now, ask.due))
            fresh = connection.execute(_OWN, (terms.number, ask.lane, WAITING, skip, ask.fresh + 1))
            due = connection.execute(_OWN, (terms.number, ask.lane, RETRY, skip, ask.due + 1))
            taken.append((lane, fresh, due))
    for lane, fresh, due in taken:
        lane.fresh, lane.more_fresh = _entries(connection, lane, WAITING, fresh.fetchall(), lane.ask.fresh, terms)
        lane.due, lane.more_due = _entries(connection, lane, RETRY, due.fetchall(), lane.ask.due, terms)


def _entries(
    connection: Connection, lane: _Lane, standing: int, found: Sequence[Any], limit: int, terms: Terms
) -> tuple[list[Entry], bool]:
    """What was claimed, whole, and whether there is more of it. What is too much for memory is given back, together
    with all that was claimed by an answer that never arrived: it may be the last time that this replica asks.
    """
    entries: list[Entry] = []
    size = 0
    for index, (id, *place, length, record, body) in enumerate(found):
        if index >= limit or size > BATCH_BYTES:
            _give_back(connection, lane, [standing], [row[0] for row in found[:index]], terms)
            return entries, True
        if length > SMALL:
            body = _body(connection, id)
        entry = _entry(lane, id, place, record, body, terms)
        if entry is not None:
            entries.append(entry)
            size += length
    return entries, False


def _give_back(
    connection: Connection, lane: _Lane, standings: list[int], taken: Sequence[MessageId], terms: Terms
) -> None:
    """What is this replica's without its knowing."""
    freed = connection.execute(_GIVE_BACK, (terms.number, lane.ask.lane, standings, [*lane.ask.skip, *taken]))
    lane.gave_back |= freed.rowcount > 0


def _body(connection: Connection, id: MessageId) -> bytes | None:
    row = connection.execute("SELECT body FROM messages WHERE id = %s", (id,)).fetchone()
    return None if row is None else row[0]


def _entry(
    lane: _Lane, id: MessageId, place: Sequence[Any], record: bytes, body: bytes | None, terms: Terms
) -> Entry | None:
    """One that can't be read stays claimed, so that nobody meets it again in this run, and is told of."""
    try:
        message, size = rows.message(id, record, body)
        check_message(message, size)
        return Entry(message, rows.place(*place), terms.number)
    except CorruptRecord as error:
        lane.broken.append((id, str(error)))
        return None


def _wants_probe(lane: _Lane) -> bool:
    if lane.record is None or lane.record.circuit.state is not CircuitState.DISABLED:
        return False
    return (lane.record.circuit.next_probe_at or 0) <= lane.ask.now


def _claim_probe(connection: Connection, lane: _Lane, terms: Terms) -> None:
    """Take the lane's next probe, unless another replica has: its row tells, and is ours alone until the commit."""
    key, now = lane.ask.lane, lane.ask.now
    row = connection.execute("SELECT host, spell, record FROM lanes WHERE lane = %s FOR UPDATE", (key,)).fetchone()
    if row is None:
        return
    host, spell, record = row
    circuit = records.decode_lane(record).circuit
    if circuit.state is not CircuitState.DISABLED or (circuit.next_probe_at or 0) > now:
        return
    found = _next_probe(connection, lane, circuit)
    if found is None:
        return
    id, *place, length, record_of, body = found
    entry = _entry(lane, id, place, record_of, _body(connection, id) if length > SMALL else body, terms)
    connection.execute("UPDATE messages SET owner = %s WHERE id = %s", (terms.number, id))
    if entry is None:
        return
    lane.probe = entry
    circuit.next_probe_at = now + terms.rules.circuit.probe_every
    circuit.probed = position(entry)
    circuit.last_attempt_at = max(circuit.last_attempt_at or 0, now)
    connection.execute(
        "UPDATE lanes SET record = %s WHERE lane = %s AND spell = %s",
        (rows.encode_circuit(key, host, circuit), key, spell),
    )


_PROBE = f"""SELECT id, {rows.PLACE}, size, record, CASE WHEN size <= {SMALL} THEN body END FROM messages
    WHERE lane = %(lane)s AND standing = {{standing}} AND owner IS NULL AND (born, id) > (%(born)s, %(id)s)
    AND id <> ALL(%(skip)s) AND (NOT held OR due <= %(now)s) ORDER BY born, id LIMIT 1 FOR UPDATE SKIP LOCKED"""
_PROBES = tuple(_PROBE.format(standing=standing) for standing in (WAITING, RETRY))


def _next_probe(connection: Connection, lane: _Lane, circuit: Circuit) -> Any:
    """The oldest that was not probed in this spell, else the oldest of all; never one that is held."""
    probed = circuit.probed
    for after in (probed, None) if probed else (None,):
        born, id = (int.from_bytes(after[:8], "big"), after[8:]) if after else (-1, b"")
        terms = {"lane": lane.ask.lane, "born": born, "id": id, "skip": list(lane.ask.skip), "now": lane.ask.now}
        rows_found = [connection.execute(query, terms).fetchone() for query in _PROBES]
        found = [row for row in rows_found if row is not None]
        if found:
            return min(found, key=lambda row: (row[2], row[0]))
    return None


def _is_over(lane: _Lane, heads: Heads) -> bool:
    """Whether the lane's moment has come and there is nothing left to claim: then it needs a later one."""
    now = lane.ask.now
    if lane.wake is not None and lane.wake > now:
        return False
    if lane.state is not CircuitState.ENABLED:
        return True
    return heads.waiting is None and (heads.due is None or heads.due > now)


def _view(lane: _Lane, heads: Heads) -> View:
    next_due = heads.due
    if lane.more_due:
        next_due = lane.ask.now if next_due is None else min(next_due, lane.ask.now)
    more_fresh = lane.more_fresh or heads.waiting is not None
    return View(lane.record, lane.fresh, lane.due, lane.probe, more_fresh, next_due, heads, lane.broken)


def agenda(connection: Connection, now: int, limit: int, skip: Container[str], since: int = 0) -> Agenda:
    """Lanes that need attention by now, the longest waiting first."""
    lanes: list[str] = []
    after = (since, "")
    while True:
        found = connection.execute(
            "SELECT at, lane FROM wakes WHERE (at, lane) > (%s, %s) ORDER BY at, lane LIMIT %s", (*after, PAGE)
        ).fetchall()
        for at, lane in found:
            if at > now or len(lanes) >= limit:
                return Agenda(lanes, at)
            if lane not in skip:
                lanes.append(lane)
        if len(found) < PAGE:
            return Agenda(lanes, None)
        after = found[-1]
