"""Checks that the tables agree with one another: recomputes every index from the messages, by the simplest means."""

import struct
from collections import defaultdict

from holdfast.core.circuit import CircuitState
from holdfast.core.lane_times import Heads, wake_at
from holdfast.core.message import MessageId, Place, Standing
from holdfast.core.schedule import expires_at
from holdfast.core.store_rules import MESSAGE_COST, StoreRules
from holdfast.store import records
from holdfast.store.embedded.tables import Moment, Table
from holdfast.store.records import stamp, unstamp

Tables = dict[Table, list[tuple[bytes, bytes]]]


def check(tables: Tables, rules: StoreRules) -> None:
    places = {id: records.decode_place(value) for id, value in tables[Table.PLACES]}
    _check_standing(tables, places)
    _check_places(tables, places)
    _check_leftovers(tables)
    _check_summaries(tables, places, rules)


def _check_standing(tables: Tables, places: dict[MessageId, Place]) -> None:
    """Every message stands in exactly one index, and in both of a pair."""
    active = [id for id, _ in tables[Table.ACTIVE]]
    waiting, retry, aging, dead_lane = (
        [unstamp(value)[1] for _, value in tables[table]]
        for table in (Table.WAITING, Table.RETRY, Table.AGING, Table.DEAD_LANE)
    )
    dead = [unstamp(key)[1] for key, _ in tables[Table.DEAD]]
    assert sorted([*active, *waiting, *retry, *dead]) == [id for id, _ in tables[Table.MESSAGES]]
    assert sorted(aging) == sorted(retry)
    assert {(lane, stamp(places[id].due, id)) for lane, id in _pairs(tables, Table.AGING)} == set(tables[Table.RETRY])
    assert {(records.decode_dead(value)[0], key) for key, value in tables[Table.DEAD]} == set(tables[Table.DEAD_LANE])
    assert sorted(dead) == sorted(dead_lane)


def _pairs(tables: Tables, table: Table) -> list[tuple[bytes, MessageId]]:
    return [(lane, unstamp(value)[1]) for lane, value in tables[table]]


def _check_places(tables: Tables, places: dict[MessageId, Place]) -> None:
    """What a place says is what the indexes say."""
    found: dict[MessageId, tuple[Standing, int]] = {id: (Standing.ACTIVE, 0) for id, _ in tables[Table.ACTIVE]}
    for table, standing in ((Table.WAITING, Standing.WAITING), (Table.AGING, Standing.RETRY)):
        found |= {unstamp(value)[1]: (standing, unstamp(value)[0]) for _, value in tables[table]}
    found |= {unstamp(key)[1]: (Standing.DEAD, unstamp(key)[0]) for key, _ in tables[Table.DEAD]}
    for id, place in places.items():
        standing, moment = found[id]
        assert place.standing is standing
        if standing is not Standing.ACTIVE:
            assert moment == (place.due if standing is Standing.DEAD else place.born)
    assert {id for id, (standing, _) in found.items() if standing in (Standing.RETRY, Standing.DEAD)} <= set(places)


def _check_leftovers(tables: Tables) -> None:
    """Nothing belongs to a message that is gone."""
    messages, delivered = ({id for id, _ in tables[table]} for table in (Table.MESSAGES, Table.DELIVERED))
    finished = [ids[start : start + 16] for _, ids in tables[Table.FINISHED] for start in range(0, len(ids), 16)]
    assert sorted(finished) == sorted(delivered)
    assert not messages & delivered
    assert {key[:16] for key, _ in tables[Table.BODIES]} <= messages
    assert {key[:16] for key, _ in tables[Table.ATTEMPTS]} <= messages | delivered


def _check_summaries(tables: Tables, places: dict[MessageId, Place], rules: StoreRules) -> None:
    """UNWELL, MOMENTS and SUMMARIES are what the lanes and their queues amount to."""
    first: dict[Table, dict[bytes, int]] = {
        table: {lane: unstamp(value)[0] for lane, value in reversed(tables[table])}
        for table in (Table.WAITING, Table.RETRY, Table.AGING)
    }
    free = {lane for lane, id in _pairs(tables, Table.AGING) if not places[id].held}
    summaries, moments, unwell = [], set(), set()
    for lane, value in tables[Table.LANES]:
        record = records.decode_lane(value)
        circuit = record.circuit
        waiting, due, aging = (first[table].get(lane) for table in (Table.WAITING, Table.RETRY, Table.AGING))
        oldest = min((moment for moment in (waiting, aging) if moment is not None), default=None)
        probe_from = (0 if waiting or lane in free else due) if circuit.state is CircuitState.DISABLED else None
        wake = wake_at(circuit, Heads(waiting, due, oldest, probe_from), rules.circuit, rules.retry, record.hold_until)
        expires = oldest is not None and circuit.state is not CircuitState.ENABLED
        expiry = expires_at(rules.retry, oldest, circuit.enabled_at) if expires else 0
        host_class = {True: 0, None: 1, False: 2}[record.answers]
        state = list(CircuitState).index(circuit.state) + 16 * host_class
        summaries.append((lane, struct.pack(">BQQQQ", state, wake, expiry, oldest or 0, due or 0)))
        moments |= {
            (bytes([moment]) + at.to_bytes(8, "big") + lane, bytes([host_class]) if host_class and not moment else b"")
            for moment, at in zip(Moment, (wake, expiry, oldest, due), strict=True)
            if at
        }
        if circuit.state is not CircuitState.ENABLED:
            unwell.add((circuit.state.encode(), lane))
    assert set(first[Table.WAITING]) | set(first[Table.RETRY]) <= {lane for lane, _ in tables[Table.LANES]}
    assert tables[Table.SUMMARIES] == summaries
    assert set(tables[Table.MOMENTS]) == moments
    assert set(tables[Table.UNWELL]) == unwell


def check_shares(tables: Tables) -> None:
    """What each host holds, counted anew: exact whatever ended the last run."""
    held: dict[str, int] = defaultdict(int)
    for id, value in tables[Table.MESSAGES]:
        message, size, _ = records.decode_message(id, value)
        held[message.host] += MESSAGE_COST + size
    counted = {host.decode(): int.from_bytes(value, "big") for host, value in tables[Table.SHARES]}
    for _, value in tables[Table.SHIFTS]:
        counted |= records.decode_sums(value)
    assert {host: bytes_held for host, bytes_held in counted.items() if bytes_held} == held
