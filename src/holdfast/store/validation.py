"""Whether one row can be read: stricter than reads.py, which trusts what the ledger wrote.

A record may decode and still carry a number where a name belongs. Whoever checks a whole store, or takes records from
a file, asks here first; after that nobody needs to look at types again.
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
"""What the key of the answers has after the id."""

ID = 16
"""Bytes of a message's id."""

UNREADABLE = (CorruptRecord, ValueError, TypeError, LookupError, struct.error)
"""What decoding garbage can end with: records.py maps most of it, and a checker must survive the rest."""

_NOTHING = type(None)


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
    """As records.decode_delivered gives it, checked."""
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
    """The fields of each attempt in a list, which records.attempt_of takes."""
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
    """The record of a lane, checked."""
    record = records.decode_lane(value)
    check_lane(record)
    if records.lane_key(record.key) != key:
        raise CorruptRecord(f"the record is that of {record.key}")
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
    """A name is a key of a table, and those have a length."""
    check_type(name, str)
    if not 0 < len(name.encode()) <= LANE_NAME_LIMIT:
        raise CorruptRecord(f"a {what}'s name of {len(name.encode())} bytes")


def is_name(name: bytes) -> bool:
    """Whether these bytes can be a lane's or a host's name."""
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


# -- one reader a table ----------------------------------------------------------------------------------------------
