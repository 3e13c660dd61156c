"""Whether one row can be read: stricter than reads.py, which trusts what the ledger wrote.

A record may decode and still carry a number where a name belongs. Whoever checks a whole store, or takes records from
a file, asks here first; after that nobody needs to look at types again.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.core.circuit import Circuit
from holdfast.core.errors import CorruptRecord
from holdfast.core.message import LANE_NAME_LIMIT, Attempt, Message, MessageId
from holdfast.store import records
from holdfast.store.embedded.tables import META_EPOCH, META_LATEST, Table, Transaction, prefixed
from holdfast.store.port import LaneRecord

ID, STAMP, KEY, SPAN = 16, 24, 20, 16
"""How many bytes ids, moments with an id, idempotency keys and epochs have."""
NUMBERED = (18, 22)
"""The same of numbered rows."""
ANSWERS = b"\xff"
"""What the key of the answers has after the id."""

UNREADABLE = (CorruptRecord, ValueError, TypeError, LookupError, struct.error)
"""What decoding garbage can end with: records.py maps most of it, and a checker must survive the rest."""

_NOTHING = type(None)


def fault_of(transaction: Transaction, table: Table, key: bytes, value: bytes) -> str | None:
    """What is wrong with this row by itself; None if it can be read."""
    reader = _READERS.get(table)
    try:
        if reader is not None:
            reader(transaction, key, value)
    except UNREADABLE as error:
        return str(error)
    return None


def readable_message(id: MessageId, value: bytes) -> tuple[Message, int, bool] | None:
    """A message as records.decode_message gives it, or None. Whether a body apart is whole is not asked here."""
    try:
        message, size, apart = records.decode_message(id, value)
        check_message(message, size)
    except UNREADABLE:
        return None
    return message, size, apart


def check_message(message: Message, size: Any) -> None:
    """The fields that messages and delivered records have in common."""
    _check_name("lane", message.lane)
    _check_name("host", message.host)
    for text in (message.scheme, message.authority, message.method):
        _check(text, str)
    _check(message.path, bytes)
    _check(message.route, str, _NOTHING)
    _check(message.signed, bool)
    check_moments((message.accepted_at, message.born))
    _check_count(size)
    for part in (part for header in message.headers for part in header):
        _check(part, bytes)


def delivered_of(id: MessageId, value: bytes) -> tuple[Message, int, int, Attempt]:
    """As records.decode_delivered gives it, checked."""
    message, size, finished_at, attempt = records.decode_delivered(id, value)
    check_message(message, size)
    check_attempt(attempt)
    check_moments((finished_at,))
    return message, size, finished_at, attempt


def check_attempt(attempt: Attempt) -> None:
    check_moments((attempt.number, attempt.at, attempt.duration))
    for text in (attempt.address, attempt.detail):
        _check(text, str, _NOTHING)
    _check(attempt.status, int, _NOTHING)
    _check(attempt.answer, bytes, _NOTHING)


def fields_of(value: bytes) -> list[list[Any]]:
    """The fields of each attempt in a list, which records.attempt_of takes."""
    attempts = records.decode_attempts(value)
    for fields in attempts:
        _check(fields, list)
        check_attempt(records.attempt_of(fields))
    return attempts


def answers_of(value: bytes) -> dict[int, bytes]:
    answers = records.decode_answers(value)
    for number, answer in answers.items():
        _check_count(number)
        _check(answer, bytes)
    return answers


def lane_of(key: bytes, value: bytes) -> LaneRecord:
    """The record of a lane, checked."""
    record = records.decode_lane(value)
    check_lane(record)
    if records.lane_key(record.key) != key:
        raise CorruptRecord(f"the record is that of {record.key}")
    return record


def check_lane(record: LaneRecord) -> None:
    _check_name("lane", record.key)
    _check_name("host", record.host)
    for number in (record.limit, record.circuit.consecutive_failures):
        _check_count(number)
    _check(record.circuit.probed, bytes, _NOTHING)
    check_moments((record.run, record.hold_until, *_moments_of(record.circuit)))
    for bucket in record.circuit.window.buckets:
        _check(bucket, list)
        if len(bucket) != 3:
            raise CorruptRecord(f"a bucket of {len(bucket)} numbers")
        for number in bucket:
            _check_count(number)


def _moments_of(circuit: Circuit) -> list[int]:
    optional = (
        circuit.first_attempt_at,
        circuit.last_attempt_at,
        circuit.last_success_at,
        circuit.silent_since,
        circuit.next_probe_at,
    )
    return [circuit.since, circuit.enabled_at, *(moment for moment in optional if moment is not None)]


def _check(value: object, *kinds: type) -> None:
    # Not isinstance: True is no number here.
    if type(value) not in kinds:
        raise CorruptRecord(f"{value!r:.40} where {kinds[0].__name__} belongs")


def _check_name(what: str, name: Any) -> None:
    """A name is a key of a table, and those have a length."""
    _check(name, str)
    if not 0 < len(name.encode()) <= LANE_NAME_LIMIT:
        raise CorruptRecord(f"a {what}'s name of {len(name.encode())} bytes")


def is_name(name: bytes) -> bool:
    """Whether these bytes can be a lane's or a host's name."""
    try:
        _check_name("lane", name.decode())
    except UNREADABLE:
        return False
    return True


def _check_count(number: Any) -> None:
    _check(number, int)
    if not 0 <= number < 1 << 63:
        raise CorruptRecord(f"{number} is out of range")


def check_moments(moments: Iterable[Any]) -> None:
    for moment in moments:
        _check_count(moment)


def _check_length(data: bytes, length: int, what: str) -> None:
    if len(data) != length:
        raise CorruptRecord(f"{what} of {len(data)} bytes instead of {length}")


def _check_numbered(key: bytes, what: str) -> None:
    if len(key) not in NUMBERED or records.numbered(key[:ID], records.number_of(key)) != key:
        raise CorruptRecord(f"{what} of {len(key)} bytes that is none")


# -- one reader a table ----------------------------------------------------------------------------------------------


def _message(transaction: Transaction, key: bytes, value: bytes) -> None:
    """With its body, which has to be whole."""
    _check_length(key, ID, "an id")
    message, size, apart = records.decode_message(key, value)
    check_message(message, size)
    _check(message.body, bytes)
    if apart:
        _check_pieces(transaction, key, size)
    elif len(message.body) != size:
        raise CorruptRecord(f"{len(message.body)} of {size} bytes of its body are there")


def _check_pieces(transaction: Transaction, id: bytes, size: int) -> None:
    """One after the other: a body is not read as a whole to be counted."""
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
    _check_name("lane", value.decode())


def _entry(transaction: Transaction, key: bytes, value: bytes) -> None:
    _check_name("lane", key.decode())
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
    _check_name("lane", records.decode_dead(value)[0].decode())


def _lane(transaction: Transaction, key: bytes, value: bytes) -> None:
    lane_of(key, value)


def _key(transaction: Transaction, key: bytes, value: bytes) -> None:
    _check_length(key, KEY, "a key")
    records.decode_key(value)


def _share(transaction: Transaction, key: bytes, value: bytes) -> None:
    _check_name("host", key.decode())
    _check_length(value, 8, "a share")


def _meta(transaction: Transaction, key: bytes, value: bytes) -> None:
    if key == META_LATEST:
        records.decode_latest(value)
    if key.startswith(META_EPOCH):
        _check_length(value, SPAN, "an epoch")


def _shift(transaction: Transaction, key: bytes, value: bytes) -> None:
    _check_length(key, 8, "a number")
    for host, held in records.decode_sums(value).items():
        _check_name("host", host)
        _check_count(held)


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
