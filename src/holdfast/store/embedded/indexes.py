"""What is derived from messages and lanes: index entries of a message, and the summary and moments of a lane.

The place in PLACES decides which entries a message has. A message without one was never tried: it is active, or waits
since it was born.

Summaries answer without a scan over lanes: which lanes are disabled, what is oldest, due next, or expires first. A lane
that is not in memory is woken by its WAKE moment.
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

INDEXES = (Table.ACTIVE, Table.WAITING, Table.RETRY, Table.AGING, Table.DEAD, Table.DEAD_LANE)
IndexEntry = tuple[Table, bytes, bytes]
"""The table, key and value of an entry."""
_SUMMARY = struct.Struct(">BQQQQ")
"""The circuit's state and the host's class in one byte, then the moments."""
_STATE_MASK, _CLASS_SHIFT = 0x0F, 4
_STATES = list(CircuitState)
_NOTHING = _SUMMARY.pack(0, 0, 0, 0, 0)


def place_of(transaction: Transaction, message: Message) -> Place:
    """Returns the stored place, or the default of a message that was never tried. Raises CorruptRecord."""
    active = transaction.get(Table.ACTIVE, message.id) is not None
    return reads.place_of(transaction, message.id, Place(Standing.ACTIVE if active else Standing.WAITING, message.born))


def is_default_place(message: Message, place: Place) -> bool:
    """Whether a message with this place needs no row in PLACES."""
    fresh = place.standing in (Standing.ACTIVE, Standing.WAITING)
    return fresh and place == Place(place.standing, message.born)


def index_entries(message: Message, place: Place, reason: DeadReason = DeadReason.EXHAUSTED) -> list[IndexEntry]:
    """Returns all entries that a message with this place has."""
    lane, id = lane_key(message.lane), message.id
    if place.standing is Standing.ACTIVE:
        return [(Table.ACTIVE, id, lane)]
    if place.standing is Standing.WAITING:
        return [(Table.WAITING, lane, stamp(place.born, id))]
    moment = stamp(place.due, id)
    if place.standing is Standing.RETRY:
        return [(Table.RETRY, lane, moment), (Table.AGING, lane, stamp(place.born, id))]
    return [(Table.DEAD, moment, records.encode_dead(lane, reason)), (Table.DEAD_LANE, lane, moment)]


def has_entry(transaction: Transaction, entry: IndexEntry) -> bool:
    """Whether an entry is there. For a dead letter only the key counts: its reason is stored nowhere else."""
    table, key, _ = entry
    return transaction.get(table, key) is not None if table is Table.DEAD else has_row(transaction, *entry)


def entry_id(table: Table, key: bytes, value: bytes) -> MessageId:
    if table is Table.ACTIVE:
        return key
    return unstamp(key if table is Table.DEAD else value)[1]


def summarise(transaction: Transaction, lane: str, rules: StoreRules) -> int:
    """Update UNWELL and MOMENTS for a lane that changed. Returns its new wake if that differs, else NEVER."""
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
    """Returns the stored summary. If it can't be read, the lane's rows in MOMENTS stay until fsck finds them."""
    if len(summary) == _SUMMARY.size and summary[0] & _STATE_MASK < len(_STATES):
        return _SUMMARY.unpack(summary)
    transaction.faults.append((Table.SUMMARIES, key, "no summary of a lane"))
    return _SUMMARY.unpack(_NOTHING)


def rows_of_summary(key: bytes, summary: bytes) -> list[tuple[Table, bytes, bytes]]:
    """Returns the rows of UNWELL and MOMENTS for a lane with this summary."""
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
    """The wake moment carries the host's class, so that the agenda can skip classes without room."""
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
    """Computes the summary of a lane from its record and its queues."""
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
