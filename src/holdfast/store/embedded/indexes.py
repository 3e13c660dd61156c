"""Where a message belongs: the index entries that its place asks for, and which entries stand there without being
asked for.

A place in PLACES decides. A message without one was never tried: it is active, or waits since it was born.
"""

import struct

from holdfast.core.budget import class_of
from holdfast.core.circuit import Circuit, CircuitState
from holdfast.core.lane_times import wake_at
from holdfast.core.message import DeadReason, Message, MessageId, Place, Standing
from holdfast.core.schedule import expires_at
from holdfast.core.store_rules import StoreRules
from holdfast.store import records
from holdfast.store.embedded import reads
from holdfast.store.embedded.reads import heads_of
from holdfast.store.embedded.tables import Moment, Table, Transaction, has_row, moment_key
from holdfast.store.port import NEVER
from holdfast.store.records import lane_key, lane_or_none, stamp, unstamp

IndexEntry = tuple[Table, bytes, bytes]
"""One index entry: its table, key and value."""

INDEXES = (Table.ACTIVE, Table.WAITING, Table.RETRY, Table.AGING, Table.DEAD, Table.DEAD_LANE)


def place_of(transaction: Transaction, message: Message) -> Place:
    """The stored place, or that of a message which was never tried. Raises CorruptRecord if it can't be read."""
    active = transaction.get(Table.ACTIVE, message.id) is not None
    return reads.place_of(transaction, message.id, Place(Standing.ACTIVE if active else Standing.WAITING, message.born))


def is_default_place(message: Message, place: Place) -> bool:
    """Whether this is the place of a message that has none in PLACES."""
    fresh = place.standing in (Standing.ACTIVE, Standing.WAITING)
    return fresh and place == Place(place.standing, message.born)


def index_entries(message: Message, place: Place, reason: DeadReason = DeadReason.EXHAUSTED) -> list[IndexEntry]:
    """The entries that a message with this place has, and no others."""
    lane, id = lane_key(message.lane), message.id
    if place.standing is Standing.ACTIVE:
        return [(Table.ACTIVE, id, lane)]
    if place.standing is Standing.WAITING:
        return [(Table.WAITING, lane, stamp(place.born, id))]
    moment = stamp(place.due, id)
    if place.standing is Standing.RETRY:
        return [(Table.RETRY, lane, moment), (Table.AGING, lane, stamp(place.born, id))]
    return [(Table.DEAD, moment, records.encode_dead(lane, reason)), (Table.DEAD_LANE, lane, moment)]


def has_entry(transaction: Transaction, seat: IndexEntry) -> bool:
    """Whether an entry is there. Of a dead letter the key counts: its reason is known nowhere else."""
    table, key, _ = seat
    return transaction.get(table, key) is not None if table is Table.DEAD else has_row(transaction, *seat)


def entry_id(table: Table, key: bytes, value: bytes) -> MessageId:
    if table is Table.ACTIVE:
        return key
    return unstamp(key if table is Table.DEAD else value)[1]


_SUMMARY = struct.Struct(">BQQQQ")
"""State and class of the host in one byte, then the moments."""
_STATE_MASK, _CLASS_SHIFT = 0x0F, 4
_STATES = list(CircuitState)
_NOTHING = _SUMMARY.pack(0, 0, 0, 0, 0)


def summarise(transaction: Transaction, lane: str, rules: StoreRules) -> int:
    """Bring UNWELL and MOMENTS in line with a lane that changed. Returns its new wake, if it has another one."""
    key = lane_key(lane)
    there = transaction.get(Table.LANES, key) is not None
    new = summary_of(transaction, key, rules) if there else _NOTHING
    old = transaction.get(Table.SUMMARIES, key) or _NOTHING
    if new == old:
        return NEVER
    (old_state, *old_moments), (new_state, *new_moments) = _read(transaction, key, old), _SUMMARY.unpack(new)
    _move_state(transaction, key, _state(old_state), _state(new_state))
    for moment, before, after in zip(Moment, old_moments, new_moments, strict=True):
        has_other_value = moment is Moment.WAKE and old_state >> _CLASS_SHIFT != new_state >> _CLASS_SHIFT
        if before != after or has_other_value:
            _move_moment(transaction, key, moment, before, after, _value_of(moment, new_state))
    if there:
        transaction.put(Table.SUMMARIES, key, new)
    else:
        transaction.delete(Table.SUMMARIES, key)
    return new_moments[Moment.WAKE] or NEVER


def _read(transaction: Transaction, key: bytes, summary: bytes) -> tuple[int, ...]:
    """What was kept of a lane. If that can't be read, its rows in MOMENTS stay until fsck finds them."""
    if len(summary) == _SUMMARY.size and summary[0] & _STATE_MASK < len(_STATES):
        return _SUMMARY.unpack(summary)
    transaction.faults.append((Table.SUMMARIES, key, "no summary of a lane"))
    return _SUMMARY.unpack(_NOTHING)


def rows_of_summary(key: bytes, summary: bytes) -> list[tuple[Table, bytes, bytes]]:
    """What UNWELL and MOMENTS hold of a lane with this summary."""
    first, *moments = _SUMMARY.unpack(summary)
    state = _state(first)
    rows = [(Table.UNWELL, state.encode(), key)] if state is not CircuitState.ENABLED else []
    return rows + [
        (Table.MOMENTS, moment_key(moment, at) + key, _value_of(moment, first))
        for moment, at in zip(Moment, moments, strict=True)
        if at
    ]


def _state(first: int) -> CircuitState:
    return _STATES[first & _STATE_MASK]


def _value_of(moment: Moment, first: int) -> bytes:
    """With a lane's wake stands its host's class, so that the agenda can pass over those that there is no room for."""
    host_class = first >> _CLASS_SHIFT
    return bytes([host_class]) if host_class and moment is Moment.WAKE else b""


def _move_state(transaction: Transaction, key: bytes, before: CircuitState, after: CircuitState) -> None:
    if before is after:
        return
    if before is not CircuitState.ENABLED:
        transaction.remove(Table.UNWELL, before.encode(), key)
    if after is not CircuitState.ENABLED:
        transaction.add(Table.UNWELL, after.encode(), key)


def _move_moment(transaction: Transaction, key: bytes, moment: Moment, before: int, after: int, value: bytes) -> None:
    if before and before != after:
        transaction.delete(Table.MOMENTS, moment_key(moment, before) + key)
    if after:
        transaction.put(Table.MOMENTS, moment_key(moment, after) + key, value)


def summary_of(transaction: Transaction, key: bytes, rules: StoreRules) -> bytes:
    """What a lane's record and its queues amount to, as SUMMARIES keeps it."""
    record = lane_or_none(transaction.get(Table.LANES, key))
    circuit = record.circuit if record is not None else Circuit()
    heads = heads_of(transaction, key, probing=circuit.state is CircuitState.DISABLED, writing=True)
    expiry = 0
    if heads.oldest is not None and circuit.state is not CircuitState.ENABLED:
        expiry = expires_at(rules.retry, heads.oldest, circuit.enabled_at)
    wake = wake_at(circuit, heads, rules.circuit, rules.retry, record.hold_until if record is not None else 0)
    host_class = class_of(record.answers if record is not None else None)
    first = _STATES.index(circuit.state) | host_class << _CLASS_SHIFT
    return _SUMMARY.pack(first, wake, expiry, heads.oldest or 0, heads.due or 0)
