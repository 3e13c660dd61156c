"""Checks records strictly: a record may decode and still carry a number where a name belongs.

Reads of delivery trust what the ledger wrote. Checks of a whole store and imports use these functions; after that no
one needs to look at types again.
"""

import struct
from collections.abc import Iterable
from typing import Any

from holdfast.core.circuit import Circuit
from holdfast.core.errors import CorruptRecord
from holdfast.core.message import LANE_NAME_LIMIT, Attempt, Message, MessageId
from holdfast.store import records
from holdfast.store.port import LaneRecord

ANSWERS = b"\xff"
"""Follows the id in the key of a message's answers."""

ID = 16
"""Bytes of a message's id."""

UNREADABLE = (CorruptRecord, ValueError, TypeError, LookupError, struct.error)
"""What decoding garbage can raise. records.py maps most of it to CorruptRecord."""

_NOTHING = type(None)


def readable_message(id: MessageId, value: bytes) -> tuple[Message, int, bool] | None:
    """Returns the result of records.decode_message, or None. A body kept apart may still be incomplete."""
    try:
        message, size, apart = records.decode_message(id, value)
        check_message(message, size)
    except UNREADABLE:
        return None
    return message, size, apart


def check_message(message: Message, size: Any) -> None:
    """Checks the fields that messages and delivered records share."""
    check_name("lane", message.lane)
    check_name("host", message.host)
    for text in (message.scheme, message.authority, message.method):
        check_type(text, str)
    check_type(message.path, bytes)
    check_type(message.route, str, _NOTHING)
    check_type(message.signed, bool)
    check_moments((message.accepted_at, message.born))
    check_count(size)
    for part in (part for header in message.headers for part in header):
        check_type(part, bytes)


def delivered_of(id: MessageId, value: bytes) -> tuple[Message, int, int, Attempt]:
    """Returns the result of records.decode_delivered, checked."""
    message, size, finished_at, attempt = records.decode_delivered(id, value)
    check_message(message, size)
    check_attempt(attempt)
    check_moments((finished_at,))
    return message, size, finished_at, attempt


def check_attempt(attempt: Attempt) -> None:
    check_moments((attempt.number, attempt.at, attempt.duration))
    for text in (attempt.address, attempt.detail):
        check_type(text, str, _NOTHING)
    check_type(attempt.status, int, _NOTHING)
    check_type(attempt.answer, bytes, _NOTHING)


def fields_of(value: bytes) -> list[list[Any]]:
    """Returns the fields of each attempt, as records.attempt_of takes them."""
    attempts = records.decode_attempts(value)
    for fields in attempts:
        check_type(fields, list)
        check_attempt(records.attempt_of(fields))
    return attempts


def answers_of(value: bytes) -> dict[int, bytes]:
    answers = records.decode_answers(value)
    for number, answer in answers.items():
        check_count(number)
        check_type(answer, bytes)
    return answers


def lane_of(key: bytes, value: bytes) -> LaneRecord:
    """Returns the record of a lane, checked."""
    record = records.decode_lane(value)
    check_lane(record)
    if records.lane_key(record.key) != key:
        raise CorruptRecord(f"the record belongs to {record.key}")
    return record


def check_lane(record: LaneRecord) -> None:
    check_name("lane", record.key)
    check_name("host", record.host)
    for number in (record.limit, record.circuit.consecutive_failures):
        check_count(number)
    check_type(record.circuit.probed, bytes, _NOTHING)
    check_moments((record.run, record.hold_until, *_moments_of(record.circuit)))
    for bucket in record.circuit.window.buckets:
        check_type(bucket, list)
        if len(bucket) != 3:
            raise CorruptRecord(f"a bucket of {len(bucket)} numbers")
        for number in bucket:
            check_count(number)


def _moments_of(circuit: Circuit) -> list[int]:
    optional = (
        circuit.first_attempt_at,
        circuit.last_attempt_at,
        circuit.last_success_at,
        circuit.silent_since,
        circuit.next_probe_at,
    )
    return [circuit.since, circuit.enabled_at, *(moment for moment in optional if moment is not None)]


def check_type(value: object, *kinds: type) -> None:
    # Not isinstance: True is no number here.
    if type(value) not in kinds:
        raise CorruptRecord(f"{value!r:.40} where {kinds[0].__name__} belongs")


def check_name(what: str, name: Any) -> None:
    """Names are keys of tables, whose length is limited."""
    check_type(name, str)
    if not 0 < len(name.encode()) <= LANE_NAME_LIMIT:
        raise CorruptRecord(f"a {what}'s name of {len(name.encode())} bytes")


def is_name(name: bytes) -> bool:
    """Whether these bytes can be the name of a lane or a host."""
    try:
        check_name("lane", name.decode())
    except UNREADABLE:
        return False
    return True


def check_count(number: Any) -> None:
    check_type(number, int)
    if not 0 <= number < 1 << 63:
        raise CorruptRecord(f"{number} is out of range")


def check_moments(moments: Iterable[Any]) -> None:
    for moment in moments:
        check_count(moment)
