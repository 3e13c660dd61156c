"""A stopped store as JSON lines. Only one message is in memory at a time.

What can't be read is left out and reported; `holdfast fsck --repair` fixes such a store.
"""

from collections.abc import Callable, Iterator

from holdfast.core.errors import CorruptRecord
from holdfast.core.message import Standing
from holdfast.store import export_format, records
from holdfast.store.embedded import reads
from holdfast.store.embedded.attempts import attempts_of
from holdfast.store.embedded.indexes import place_of
from holdfast.store.embedded.tables import Engine, Table, Transaction, walk
from holdfast.store.export_format import Delivered, Key, Line
from holdfast.store.maintenance import Finding, framed
from holdfast.store.offline.fsck import NAMES, name_of
from holdfast.store.offline.row_checks import fault_of
from holdfast.store.transfer import StoredMessage
from holdfast.store.validation import UNREADABLE


def export_lines(engine: Engine, left_out: Callable[[Finding], None]) -> Iterator[bytes]:
    """Yields the whole store, line by line. Calls `left_out` for each record that is left out."""
    return framed(_lines(engine, left_out))


def _lines(engine: Engine, left_out: Callable[[Finding], None]) -> Iterator[Line]:
    for table in _SHAPES:
        for transaction, (key, value) in walk(engine, table):
            try:
                yield _line(transaction, table, key, value)
            except (*UNREADABLE, OverflowError) as error:
                left_out(Finding(NAMES[table], name_of(table, key, value), str(error)))


def _line(transaction: Transaction, table: Table, key: bytes, value: bytes) -> Line:
    fault = fault_of(transaction, table, key, value)
    if fault:
        raise CorruptRecord(fault)
    return _SHAPES[table](transaction, key, value)


def _circuit(transaction: Transaction, key: bytes, value: bytes) -> Line:
    return export_format.circuit_line(records.decode_lane(value))


def _message(transaction: Transaction, id: bytes, value: bytes) -> Line:
    found = reads.message_of(transaction, id)
    assert found is not None
    message = found[0]
    place = place_of(transaction, message)
    reason = reads.dead_reason(transaction, id, place) if place.standing is Standing.DEAD else None
    if place.standing is Standing.DEAD and reason is None:
        raise CorruptRecord("it is dead, and no dead letter says why")
    return export_format.message_line(StoredMessage(message, place, reason, attempts_of(transaction, id)))


def _delivered(transaction: Transaction, id: bytes, value: bytes) -> Line:
    return export_format.delivered_line(Delivered(*records.decode_delivered(id, value), attempts_of(transaction, id)))


def _key(transaction: Transaction, key: bytes, value: bytes) -> Line:
    id, body, at = records.decode_key(value)
    return export_format.key_line(Key(key[4:], body, id, at))


_SHAPES: dict[Table, Callable[[Transaction, bytes, bytes], Line]] = {
    Table.LANES: _circuit,
    Table.MESSAGES: _message,
    Table.DELIVERED: _delivered,
    Table.KEYS: _key,
}
