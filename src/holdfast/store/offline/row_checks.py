"""Checks one row of any table strictly, for fsck, repair and export."""

from collections.abc import Callable

from holdfast.core.errors import CorruptRecord
from holdfast.store import records
from holdfast.store.embedded.tables import META_EPOCH, META_LATEST, Table, Transaction, prefixed
from holdfast.store.validation import (
    ANSWERS,
    ID,
    UNREADABLE,
    answers_of,
    check_attempt,
    check_count,
    check_message,
    check_name,
    check_type,
    delivered_of,
    fields_of,
    lane_of,
)

STAMP, KEY, SPAN = 24, 20, 16
"""Bytes of stamps, idempotency keys and epochs."""


NUMBERED = (18, 22)
"""Bytes of numbered keys."""


def fault_of(transaction: Transaction, table: Table, key: bytes, value: bytes) -> str | None:
    """Returns what is wrong with a row by itself; None if it can be read."""
    reader = _READERS.get(table)
    try:
        if reader is not None:
            reader(transaction, key, value)
    except UNREADABLE as error:
        return str(error)
    return None


def _check_length(data: bytes, length: int, what: str) -> None:
    if len(data) != length:
        raise CorruptRecord(f"{what} of {len(data)} bytes instead of {length}")


def _check_numbered(key: bytes, what: str) -> None:
    if len(key) not in NUMBERED or records.numbered(key[:ID], records.number_of(key)) != key:
        raise CorruptRecord(f"{what} of {len(key)} bytes that is none")


def _message(transaction: Transaction, key: bytes, value: bytes) -> None:
    """The body has to be complete."""
    _check_length(key, ID, "an id")
    message, size, apart = records.decode_message(key, value)
    check_message(message, size)
    check_type(message.body, bytes)
    if apart:
        _check_pieces(transaction, key, size)
    elif len(message.body) != size:
        raise CorruptRecord(f"{len(message.body)} of {size} bytes of its body are there")


def _check_pieces(transaction: Transaction, id: bytes, size: int) -> None:
    """Piece by piece, so that a body is never in memory as a whole."""
    there = 0
    for number, (key, piece) in enumerate(prefixed(transaction, Table.BODIES, id)):
        if key != records.numbered(id, number):
            break
        there += len(piece)
    if there != size:
        raise CorruptRecord(f"{there} of {size} bytes of its body are there")


def _body(transaction: Transaction, key: bytes, value: bytes) -> None:
    _check_numbered(key, "a piece's key")


def _active(transaction: Transaction, key: bytes, value: bytes) -> None:
    _check_length(key, ID, "an id")
    check_name("lane", value.decode())


def _entry(transaction: Transaction, key: bytes, value: bytes) -> None:
    check_name("lane", key.decode())
    _check_length(value, STAMP, "an entry")


def _place(transaction: Transaction, key: bytes, value: bytes) -> None:
    _check_length(key, ID, "an id")
    records.decode_place(value)


def _attempt(transaction: Transaction, key: bytes, value: bytes) -> None:
    if len(key) == ID:
        fields_of(value)
    elif key[ID:] == ANSWERS:
        answers_of(value)
    else:
        _check_numbered(key, "an attempt's key")
        check_attempt(records.decode_attempt(records.number_of(key), value))


def _delivered(transaction: Transaction, key: bytes, value: bytes) -> None:
    _check_length(key, ID, "an id")
    delivered_of(key, value)


def _finished(transaction: Transaction, key: bytes, value: bytes) -> None:
    _check_length(key, STAMP, "a key")
    if not value or len(value) % ID:
        raise CorruptRecord(f"{len(value)} bytes are no list of ids")


def _dead(transaction: Transaction, key: bytes, value: bytes) -> None:
    _check_length(key, STAMP, "a key")
    check_name("lane", records.decode_dead(value)[0].decode())


def _lane(transaction: Transaction, key: bytes, value: bytes) -> None:
    lane_of(key, value)


def _key(transaction: Transaction, key: bytes, value: bytes) -> None:
    _check_length(key, KEY, "a key")
    records.decode_key(value)


def _share(transaction: Transaction, key: bytes, value: bytes) -> None:
    check_name("host", key.decode())
    _check_length(value, 8, "a share")


def _meta(transaction: Transaction, key: bytes, value: bytes) -> None:
    if key == META_LATEST:
        records.decode_latest(value)
    if key.startswith(META_EPOCH):
        _check_length(value, SPAN, "an epoch")


def _shift(transaction: Transaction, key: bytes, value: bytes) -> None:
    _check_length(key, 8, "a number")
    for host, held in records.decode_sums(value).items():
        check_name("host", host)
        check_count(held)


_READERS: dict[Table, Callable[[Transaction, bytes, bytes], None]] = {
    Table.MESSAGES: _message,
    Table.BODIES: _body,
    Table.ACTIVE: _active,
    Table.WAITING: _entry,
    Table.RETRY: _entry,
    Table.AGING: _entry,
    Table.PLACES: _place,
    Table.ATTEMPTS: _attempt,
    Table.DELIVERED: _delivered,
    Table.FINISHED: _finished,
    Table.DEAD: _dead,
    Table.DEAD_LANE: _entry,
    Table.LANES: _lane,
    Table.KEYS: _key,
    Table.SHARES: _share,
    Table.META: _meta,
    Table.SHIFTS: _shift,
}
