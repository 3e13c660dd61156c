"""What is kept of each lane so that nobody has to look at all of them: its state, and its moments in order over all
lanes.

A lane that is not in memory is woken by its WAKE moment; the others answer "how old is the oldest", "what is due
next" and "what expires first" without a scan.
"""

import struct

from holdfast.core.circuit import Circuit, CircuitState
from holdfast.core.lane import wake_at
from holdfast.core.schedule import expires_at
from holdfast.store.reads import heads_of, lane_record
from holdfast.store.records import lane_key
from holdfast.store.tables import Moment, Table, Transaction, moment_key
from holdfast.store.work import StoreRules

NEVER = 1 << 62

_SUMMARY = struct.Struct(">BQQQQ")
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
    _move_state(transaction, key, _STATES[old_state], _STATES[new_state])
    for moment, before, after in zip(Moment, old_moments, new_moments, strict=True):
        if before != after:
            _move_moment(transaction, key, moment, before, after)
    if there:
        transaction.put(Table.SUMMARIES, key, new)
    else:
        transaction.delete(Table.SUMMARIES, key)
    return new_moments[Moment.WAKE] or NEVER


def _read(transaction: Transaction, key: bytes, summary: bytes) -> tuple[int, ...]:
    """What was kept of a lane. If that can't be read, its rows in MOMENTS stay until fsck finds them."""
    if len(summary) == _SUMMARY.size and summary[0] < len(_STATES):
        return _SUMMARY.unpack(summary)
    transaction.faults.append((Table.SUMMARIES, key, "no summary of a lane"))
    return _SUMMARY.unpack(_NOTHING)


def rows_of_summary(key: bytes, summary: bytes) -> list[tuple[Table, bytes, bytes]]:
    """What UNWELL and MOMENTS hold of a lane with this summary."""
    state, *moments = _SUMMARY.unpack(summary)
    unwell = _STATES[state] is not CircuitState.ENABLED
    rows = [(Table.UNWELL, _STATES[state].encode(), key)] if unwell else []
    return rows + [
        (Table.MOMENTS, moment_key(moment, at) + key, b"") for moment, at in zip(Moment, moments, strict=True) if at
    ]


def _move_state(transaction: Transaction, key: bytes, before: CircuitState, after: CircuitState) -> None:
    if before is after:
        return
    if before is not CircuitState.ENABLED:
        transaction.remove(Table.UNWELL, before.encode(), key)
    if after is not CircuitState.ENABLED:
        transaction.add(Table.UNWELL, after.encode(), key)


def _move_moment(transaction: Transaction, key: bytes, moment: Moment, before: int, after: int) -> None:
    if before:
        transaction.delete(Table.MOMENTS, moment_key(moment, before) + key)
    if after:
        transaction.put(Table.MOMENTS, moment_key(moment, after) + key, b"")


def summary_of(transaction: Transaction, key: bytes, rules: StoreRules) -> bytes:
    """What a lane's record and its queues amount to, as SUMMARIES keeps it."""
    record = lane_record(transaction, key)
    circuit = record.circuit if record is not None else Circuit()
    heads = heads_of(transaction, key, probing=circuit.state is CircuitState.DISABLED)
    expiry = 0
    if heads.oldest is not None and circuit.state is not CircuitState.ENABLED:
        expiry = expires_at(rules.retry, heads.oldest, circuit.enabled_at)
    wake = wake_at(circuit, heads, rules.circuit, rules.retry)
    return _SUMMARY.pack(_STATES.index(circuit.state), wake, expiry, heads.oldest or 0, heads.due or 0)
