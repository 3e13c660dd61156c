"""When a lane needs attention next: one row a lane, in the order of time.

Whoever makes a message claimable holds its lane's row FOR SHARE until the commit, and lowers it if need be. Only who
found nothing left to claim raises it, holding the row alone while it looks once more: so either it sees the new
message, or the row is lowered after it. Nothing that waits is ever without its moment.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from holdfast.core.circuit import Circuit, CircuitState
from holdfast.core.errors import CorruptRecord
from holdfast.core.lane import Heads, wake_at
from holdfast.core.schedule import expires_at
from holdfast.store import records
from holdfast.store.postgres.connection import Connection
from holdfast.store.postgres.terms import Terms

CHANNEL = "holdfast"
HELD_SEEN = 10_000
"""Held messages that are passed over in search of one that may be a probe."""

_FREE = "standing = {standing} AND owner IS NULL"
_HEADS = f"""SELECT v.lane,
    (SELECT born FROM messages m WHERE m.lane = v.lane AND {_FREE.format(standing=1)} ORDER BY born, id LIMIT 1),
    (SELECT due FROM messages m WHERE m.lane = v.lane AND {_FREE.format(standing=2)} ORDER BY due, id LIMIT 1),
    (SELECT born FROM messages m WHERE m.lane = v.lane AND {_FREE.format(standing=2)} ORDER BY born, id LIMIT 1),
    v.probing AND (SELECT bool_or(NOT held) FROM (
        SELECT held FROM messages m WHERE m.lane = v.lane AND {_FREE.format(standing=2)}
        ORDER BY born, id LIMIT {HELD_SEEN}) AS first_ones)
    FROM unnest(%s::text[], %s::boolean[]) AS v(lane, probing)"""


class Known(NamedTuple):
    """A lane's circuit, as far as waking goes."""

    state: CircuitState
    circuit: Circuit


def heads_of(connection: Connection, probing: Mapping[str, bool]) -> dict[str, Heads]:
    """The first of each of some lanes' queues, of what nobody has claimed; of `probing` ones what may be a probe."""
    if not probing:
        return {}
    found = connection.execute(_HEADS, (list(probing), list(probing.values()))).fetchall()
    return {lane: _heads(waiting, due, aging, free, probing[lane]) for lane, waiting, due, aging, free in found}


def _heads(waiting: int | None, due: int | None, aging: int | None, free: bool | None, probing: bool) -> Heads:
    ages = [age for age in (waiting, aging) if age is not None]
    probe_from = None
    if probing:
        probe_from = 0 if waiting is not None or free else due
    return Heads(waiting, due, min(ages, default=None), probe_from)


def circuits_of(connection: Connection, lanes: Iterable[str], terms: Terms) -> dict[str, Circuit]:
    """The circuits of those of some lanes that have one; one that can't be read starts anew."""
    found = connection.execute("SELECT lane, record FROM lanes WHERE lane = ANY(%s)", (list(lanes),))
    circuits = {}
    for lane, record in found.fetchall():
        try:
            circuits[lane] = records.decode_lane(record).circuit
        except CorruptRecord:
            circuits[lane] = _new_circuit(terms)
    return circuits


def lower(connection: Connection, wanted: Mapping[str, int], terms: Terms, *, born: bool = False) -> None:
    """Messages of these lanes become claimable at these moments, with this transaction. `born`: their lives begin then,
    so that in a lane which lets nothing through all others of it expire before them.
    """
    if not wanted:
        return
    lanes = sorted(wanted)
    seen: dict[str, int] = dict(
        connection.execute("SELECT lane, at FROM wakes WHERE lane = ANY(%s)", (lanes,)).fetchall()
    )
    early = [lane for lane in lanes if seen.get(lane, wanted[lane] + 1) <= wanted[lane]]
    with connection.pipeline():
        shared = connection.execute("SELECT lane, at FROM wakes WHERE lane = ANY(%s) ORDER BY lane FOR SHARE", (early,))
        alone = connection.execute(
            "SELECT lane, at FROM wakes WHERE lane = ANY(%s) ORDER BY lane FOR UPDATE",
            ([lane for lane in lanes if lane not in set(early)],),
        )
        unwell = connection.execute("SELECT lane, record FROM lanes WHERE lane = ANY(%s) AND state <> 0", (lanes,))
    present: dict[str, int] = {**dict(shared.fetchall()), **dict(alone.fetchall())}
    ill: dict[str, bytes] = dict(unwell.fetchall())
    _put(
        connection,
        {lane: at for lane, at in wanted.items() if lane not in ill and present.get(lane, at + 1) > at},
        terms,
    )
    late = [
        lane for lane, record in ill.items() if not born or _is_late(present.get(lane), record, wanted[lane], terms)
    ]
    review(connection, late, terms)


def _is_late(present: int | None, record: bytes, born: int, terms: Terms) -> bool:
    """Whether a new message may change when a lane that is not enabled needs attention. The row of a lane that was not
    known here may have been made just now, as if it were enabled.
    """
    if present is None:
        return True
    try:
        circuit = records.decode_lane(record).circuit
    except CorruptRecord:
        return True
    expiry = expires_at(terms.rules.retry, born, circuit.enabled_at)
    if circuit.state is CircuitState.FROZEN:
        return present > expiry
    return present > min(expiry, max(born, circuit.next_probe_at or 0))


def _put(connection: Connection, moments: Mapping[str, int], terms: Terms) -> None:
    if not moments:
        return
    lanes = sorted(moments)
    connection.execute(
        """INSERT INTO wakes (lane, at) SELECT v.lane, v.at FROM unnest(%s::text[], %s::bigint[]) AS v(lane, at)
        ON CONFLICT (lane) DO UPDATE SET at = least(wakes.at, excluded.at)""",
        (lanes, [moments[lane] for lane in lanes]),
    )
    hint(connection, [lane for lane in lanes if moments[lane] <= terms.now], terms)


def hint(connection: Connection, lanes: list[str], terms: Terms) -> None:
    """Tell the other replicas to look at some lanes, once this is committed."""
    if lanes and terms.hints:
        connection.execute("SELECT pg_notify(%s, v) FROM unnest(%s::text[]) AS v", (CHANNEL, lanes))


def review(connection: Connection, lanes: Iterable[str], terms: Terms) -> dict[str, Heads]:
    """Give lanes the moments that their circuits and queues amount to, and keep others from changing these until the
    commit. Returns the heads of their queues.
    """
    names = sorted(lanes)
    if not names:
        return {}
    connection.execute(
        """INSERT INTO wakes (lane, at) SELECT v, %s::bigint FROM unnest(%s::text[]) AS v
        ON CONFLICT (lane) DO NOTHING""",
        (terms.now, names),
    )
    connection.execute("SELECT 1 FROM wakes WHERE lane = ANY(%s) ORDER BY lane FOR UPDATE", (names,))
    circuits = circuits_of(connection, names, terms)
    probing = {lane: lane in circuits and circuits[lane].state is CircuitState.DISABLED for lane in names}
    heads = heads_of(connection, probing)
    moments = {lane: _moment(circuits.get(lane), heads[lane], terms) for lane in names}
    kept = {lane: at for lane, at in moments.items() if at}
    connection.execute(
        """UPDATE wakes SET at = v.at FROM unnest(%s::text[], %s::bigint[]) AS v(lane, at)
        WHERE wakes.lane = v.lane AND wakes.at <> v.at""",
        (list(kept), list(kept.values())),
    )
    connection.execute("DELETE FROM wakes WHERE lane = ANY(%s)", ([lane for lane, at in moments.items() if not at],))
    return heads


def _moment(circuit: Circuit | None, heads: Heads, terms: Terms) -> int:
    """When a lane needs attention; 0 if only a new message or an operator changes that, or if it is forgotten."""
    if circuit is None and heads.oldest is None:
        return 0
    rules = terms.rules
    return wake_at(circuit or _new_circuit(terms), heads, rules.circuit, rules.retry)


def _new_circuit(terms: Terms) -> Circuit:
    return Circuit(since=terms.now, enabled_at=terms.now)
