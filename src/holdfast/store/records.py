"""Records and keys as bytes: versioned msgpack records, and keys whose byte order has a meaning.

    key or value        bytes
    ------------        -----
    message id          6 ms | 10 that make it unique              (big-endian, only ever grows)
    stamp               8 ms | 16 id                               (order: time, then id)
    body piece          16 id | number of the piece
    attempts            16 id, or 16 id | ff for their answers     (older versions: 16 id | number of the attempt)
    number              2 bytes; from 65,535 on ff ff and 4 bytes  (order is kept)
    agenda              8 ms | lane key
    idempotency         4 epoch | 16 digest                        (see keys.py)
    shift               8 number of the group                      (see shares.py)
    lane                UTF-8 of its name, at most core.message.LANE_NAME_LIMIT bytes
    place               >BQQHIB standing, born, due, retry, attempts, held
    record              msgpack array whose first element is the record's version

Messages and delivered records have version 2, which ends in `signed`; version 1 is read as not signed. All other
records have version 1. embedded/tables.py lists the tables.
"""

import struct
from typing import Any

import msgpack

from holdfast.core.circuit import Circuit, CircuitState, Reason, Window
from holdfast.core.errors import CorruptRecord
from holdfast.core.lane import Lane
from holdfast.core.message import (
    Attempt,
    AttemptKind,
    DeadReason,
    ErrorKind,
    Fault,
    Message,
    MessageId,
    Place,
    Standing,
)
from holdfast.store.port import (
    LaneRecord,
)

VERSION = 1
MESSAGE_VERSION = 2
INLINE_LIMIT = 1_990
"""A record with its body below this stays off LMDB's overflow pages."""
LONG_NUMBERS = 0xFFFF
"""The first number that takes more than two bytes in a key."""
PIECE = 4_080
"""Bodies kept apart are cut so that a piece fills one page: whole values of 64 KiB fragment the file."""

_PLACE = struct.Struct(">BQQHIB")
_KEY = struct.Struct(">16s16sQ")
_NOTHING = type(None)
_LANE_FIELDS_BEFORE_ANSWERS = 17
_STANDINGS = list(Standing)
_REASONS = list(DeadReason)

_packer = msgpack.Packer(use_bin_type=True, autoreset=True)


def pack(fields: list[Any]) -> bytes:
    packed: bytes = _packer.pack(fields)
    return packed


def unpack(value: bytes | memoryview) -> list[Any]:
    fields: list[Any] = msgpack.unpackb(value)
    return fields


def stamp(ms: int, id: MessageId) -> bytes:
    return ms.to_bytes(8, "big") + id


def unstamp(value: bytes) -> tuple[int, MessageId]:
    return int.from_bytes(value[:8], "big"), value[8:24]


def decode_latest(value: bytes) -> tuple[int, MessageId]:
    """Returns the last moment and id of a store. Moments fit into an id; the id may be later, if it was imported."""
    ms, id = unstamp(value)
    if len(value) != 24 or ms >= 1 << 48:
        raise CorruptRecord("the latest moment and id")
    return ms, id


def lane_key(lane: str) -> bytes:
    return lane.encode()


def numbered(id: MessageId, number: int) -> bytes:
    return id + (number.to_bytes(2, "big") if number < LONG_NUMBERS else b"\xff\xff" + number.to_bytes(4, "big"))


def number_of(numbered_key: bytes) -> int:
    return int.from_bytes(numbered_key[16:] if len(numbered_key) == 18 else numbered_key[18:], "big")


def idempotency_key(epoch: int, digest: bytes) -> bytes:
    return epoch.to_bytes(4, "big") + digest


def encode_key(id: MessageId, body: bytes, at: int) -> bytes:
    """What an idempotency key was used for: the message, the digest of its body, and when."""
    return _KEY.pack(id, body, at)


def decode_key(value: bytes) -> tuple[MessageId, bytes, int]:
    try:
        id, body, at = _KEY.unpack(value)
        return id, body, at
    except struct.error as error:
        raise CorruptRecord(f"idempotency key: {error}") from error


def encode_place(place: Place) -> bytes:
    return _PLACE.pack(_STANDINGS.index(place.standing), place.born, place.due, place.retry, place.attempts, place.held)


def decode_place(value: bytes) -> Place:
    try:
        standing, born, due, retry, attempts, held = _PLACE.unpack(value)
        return Place(_STANDINGS[standing], born, due, retry, attempts, bool(held))
    except (struct.error, IndexError) as error:
        raise CorruptRecord(f"place: {error}") from error


def encode_message(message: Message) -> tuple[bytes, list[bytes]]:
    """Returns the record, and the pieces of a body that does not fit into it."""
    _, lane, host, scheme, authority, path, method, headers, body, accepted_at, born, route, signed = message
    flat = [part for header in headers for part in header]
    head = [MESSAGE_VERSION, lane, host, scheme, authority, path, method, flat, accepted_at, born, route, len(body)]
    if len(body) < INLINE_LIMIT:
        record = pack([*head, body, signed])
        if len(record) <= INLINE_LIMIT:
            return record, []
    pieces = [body[start : start + PIECE] for start in range(0, len(body), PIECE)]
    return pack([*head, None, signed]), pieces


def decode_message(id: MessageId, value: bytes) -> tuple[Message, int, bool]:
    """Returns the message, its body's size, and whether the body is in pieces and still to be read."""
    try:
        fields = _unpack_message(value)
        lane, host, scheme, authority, path, method, flat, accepted_at, born, route, size, body, signed = fields
        headers = tuple(zip(flat[::2], flat[1::2], strict=True))
        message = Message(
            id, lane, host, scheme, authority, path, method, headers, body or b"", accepted_at, born, route, signed
        )
        return message, size, body is None
    except (ValueError, TypeError) as error:
        raise CorruptRecord(f"message {id.hex()}: {error}") from error


def message_or_none(id: MessageId, value: bytes) -> Message | None:
    """Returns None for a message that can't be read."""
    try:
        return decode_message(id, value)[0]
    except CorruptRecord:
        return None


def encode_delivered(message: Message, attempt: Attempt, finished_at: int, size: int | None = None) -> bytes:
    """`size` is the body's, if the message comes without it."""
    _, lane, host, scheme, authority, path, method, _, body, accepted_at, born, route, signed = message
    head = [MESSAGE_VERSION, lane, host, scheme, authority, path, method, accepted_at, born, route]
    size = len(body) if size is None else size
    return pack([*head, size, finished_at, attempt.number, _attempt_fields(attempt), signed])


def decode_delivered(id: MessageId, value: bytes) -> tuple[Message, int, int, Attempt]:
    """Returns the message without body and headers, its size, when it was delivered, and the successful attempt."""
    try:
        fields = _unpack_message(value)
        lane, host, scheme, authority, path, method, accepted_at, born, route, size, at, number, last, signed = fields
        message = Message(id, lane, host, scheme, authority, path, method, (), b"", accepted_at, born, route, signed)
        return message, size, at, _attempt(number, last)
    except (ValueError, TypeError) as error:
        raise CorruptRecord(f"delivered {id.hex()}: {error}") from error


def encode_attempt(attempt: Attempt) -> bytes:
    return pack([VERSION, *_attempt_fields(attempt)])


def decode_attempt(number: int, value: bytes) -> Attempt:
    try:
        return _attempt(number, _unpack(value))
    except (ValueError, TypeError) as error:
        raise CorruptRecord(f"attempt {number}: {error}") from error


def attempt_fields(attempt: Attempt) -> list[Any]:
    """An attempt in the list of its message: its number, and all but the answer."""
    return [attempt.number, *_attempt_fields(attempt)[:-1]]


def attempt_of(fields: list[Any]) -> Attempt:
    number, *others = fields
    try:
        return _attempt(number, [*others, None])
    except (ValueError, TypeError) as error:
        raise CorruptRecord(f"attempt {number}: {error}") from error


def encode_attempts(attempts: list[list[Any]]) -> bytes:
    return pack([VERSION, *attempts])


def decode_attempts(value: bytes) -> list[list[Any]]:
    try:
        return _unpack(value)
    except (ValueError, TypeError) as error:
        raise CorruptRecord(f"attempts: {error}") from error


def encode_answers(answers: dict[int, bytes]) -> bytes:
    """Maps numbers of attempts to their answers."""
    return pack([VERSION, *(part for item in answers.items() for part in item)])


def decode_answers(value: bytes) -> dict[int, bytes]:
    try:
        flat = _unpack(value)
        return dict(zip(flat[::2], flat[1::2], strict=True))
    except (ValueError, TypeError) as error:
        raise CorruptRecord(f"answers: {error}") from error


def encode_dead(lane: bytes, reason: DeadReason) -> bytes:
    return bytes([_REASONS.index(reason)]) + lane


def decode_dead(value: bytes) -> tuple[bytes, DeadReason]:
    try:
        value[1:].decode()
        return value[1:], _REASONS[value[0]]
    except (IndexError, UnicodeDecodeError) as error:
        raise CorruptRecord(f"dead letter: {error}") from error


def encode_sums(sums: dict[str, int]) -> bytes:
    """Maps hosts to the bytes that they hold."""
    return pack([part for item in sums.items() for part in item])


def decode_sums(value: bytes) -> dict[str, int]:
    try:
        flat = msgpack.unpackb(value)
        sums = dict(zip(flat[::2], flat[1::2], strict=True))
    except (ValueError, TypeError) as error:
        raise CorruptRecord(f"shares of a group: {error}") from error
    if not all(type(host) is str and type(held) is int for host, held in sums.items()):
        raise CorruptRecord("shares of a group: no list of hosts and what they hold")
    return sums


def encode_lane(record: LaneRecord) -> bytes:
    circuit = record.circuit
    return pack(
        [
            VERSION,
            record.key,
            record.host,
            circuit.state,
            circuit.since,
            circuit.reason,
            circuit.consecutive_failures,
            list(circuit.window.buckets),
            circuit.first_attempt_at,
            circuit.last_attempt_at,
            circuit.last_success_at,
            circuit.silent_since,
            circuit.enabled_at,
            circuit.next_probe_at,
            circuit.probed,
            record.limit,
            record.run,
            record.hold_until,
            record.answers,
        ]
    )


def decode_lane(value: bytes) -> LaneRecord:
    try:
        fields = _unpack(value)
        if len(fields) == _LANE_FIELDS_BEFORE_ANSWERS:
            fields.append(True)  # not known: it counts as answering until its next attempt
        key, host, state, since, reason, run_of, buckets, *moments, limit, run, hold_until, answers = fields
        first, last, success, silent_since, enabled_at, next_probe_at, probed = moments
        circuit = Circuit(
            CircuitState(state),
            since,
            Reason(reason) if reason else None,
            run_of,
            Window(buckets),
            first,
            last,
            success,
            silent_since,
            enabled_at,
            next_probe_at,
            probed,
        )
        if not all(type(number) is int for number in (since, run_of, enabled_at, limit, run, hold_until)):
            raise ValueError("no number where one belongs")
        if not all(type(moment) in (int, _NOTHING) for moment in (first, last, success, silent_since, next_probe_at)):
            raise ValueError("no moment where one belongs")
        if type(answers) not in (bool, _NOTHING):
            raise ValueError("no answer to whether its host answers")
        return LaneRecord(key, host, circuit, limit, run, hold_until, answers)
    except (ValueError, TypeError, IndexError) as error:
        raise CorruptRecord(f"lane: {error}") from error


def lane_or_none(value: bytes | None) -> LaneRecord | None:
    """Returns None for a record that can't be read: the circuit starts anew and overwrites it."""
    try:
        return None if value is None else decode_lane(value)
    except CorruptRecord:
        return None


def _attempt_fields(attempt: Attempt) -> list[Any]:
    """All fields but the number."""
    _, kind, at, duration, address, status, error, detail, fault, answer = attempt
    return [kind, at, duration, address, status, error, detail, fault, answer]


def _attempt(number: int, fields: list[Any]) -> Attempt:
    kind, at, duration, address, status, error, detail, fault, answer = fields
    error = ErrorKind(error) if error else None
    fault = Fault(fault) if fault else None
    return Attempt(number, AttemptKind(kind), at, duration, address, status, error, detail, fault, answer)


def _unpack(value: bytes) -> list[Any]:
    """Returns the fields after the version. msgpack raises ValueErrors, and TypeError for what is no array."""
    fields: list[Any]
    version, *fields = msgpack.unpackb(value)
    if version != VERSION:
        raise ValueError(f"record version {version}")
    return fields


def _unpack_message(value: bytes) -> list[Any]:
    """The same for messages and delivered records, with the fields of the current version."""
    fields: list[Any]
    version, *fields = msgpack.unpackb(value)
    if version == VERSION:
        return [*fields, False]
    if version != MESSAGE_VERSION:
        raise ValueError(f"record version {version}")
    return fields


def live_record(lane: Lane, run: int) -> LaneRecord:
    """The record of a lane as it is in memory now."""
    host = lane.host
    return LaneRecord(lane.key, host.name, lane.circuit, host.limit, run, host.hold_until, host.answers)
