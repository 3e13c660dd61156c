"""An export as JSON lines.

    {"format": "holdfast-export", "version": 2}                    the first line
    {"kind": "circuit", "key", "host", "state", ...}               every lane, with all its counters
    {"kind": "message", "id", ..., "headers", "body", "place", "attempts"}
    {"kind": "delivered", "id", ..., "size", "finished_at", "attempts", "success"}
    {"kind": "key", "digest", "body", "id", "at"}
    {"kind": "end", "lines": the number of lines before it}        missing if the file was cut off

Times are RFC 3339 in UTC with milliseconds; durations are seconds. Bytes that are UTF-8 are a string, others {"base64":
"..."}. Paths and headers are Latin-1, which can hold any bytes. Nothing is redacted. Version 1 is the same without
"signed".
"""

from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from holdfast.core.circuit import Circuit, CircuitState, Reason, Window
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
    id_text,
    parse_id,
    rfc3339,
)
from holdfast.store.port import LaneRecord
from holdfast.store.transfer import StoredMessage

VERSION = 2
HEADER = {"format": "holdfast-export", "version": VERSION}

Line = dict[str, Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class Delivered(NamedTuple):
    """A delivered message. `attempts` are those that failed before `success`."""

    message: Message
    size: int
    finished_at: int
    success: Attempt
    attempts: list[Attempt]


class ExportedKey(NamedTuple):
    digest: bytes
    body: bytes
    id: MessageId
    at: int


Record = LaneRecord | StoredMessage | Delivered | ExportedKey
"""The content of one line."""


# -- out -------------------------------------------------------------------------------------------------------------


def circuit_line(record: LaneRecord) -> Line:
    circuit = record.circuit
    return {
        "kind": "circuit",
        "key": record.key,
        "host": record.host,
        "state": circuit.state,
        "since": rfc3339(circuit.since),
        "reason": circuit.reason,
        "consecutive_failures": circuit.consecutive_failures,
        "window": list(circuit.window.buckets),
        "first_attempt_at": _moment(circuit.first_attempt_at),
        "last_attempt_at": _moment(circuit.last_attempt_at),
        "last_success_at": _moment(circuit.last_success_at),
        "silent_since": _moment(circuit.silent_since),
        "enabled_at": rfc3339(circuit.enabled_at),
        "next_probe_at": _moment(circuit.next_probe_at),
        "probed": None if circuit.probed is None else circuit.probed.hex(),
        "limit": record.limit,
        "run": rfc3339(record.run),
        "hold_until": rfc3339(record.hold_until),
        "answers": record.answers,
    }


def message_line(stored: StoredMessage) -> Line:
    message, place, reason, attempts, _ = stored
    dead = place.standing is Standing.DEAD
    return {
        "kind": "message",
        **_head(message),
        "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in message.headers],
        "body": _text(message.body),
        "place": {
            "state": place.standing,
            "born": rfc3339(place.born),
            "due": rfc3339(place.due) if place.standing is Standing.RETRY else None,
            "retry": place.retry,
            "attempts": place.attempts,
            "held": place.held,
            "reason": reason,
            "finished": rfc3339(place.due) if dead else None,
        },
        "attempts": [_attempt_line(attempt) for attempt in attempts],
    }


def delivered_line(delivered: Delivered) -> Line:
    return {
        "kind": "delivered",
        **_head(delivered.message),
        "size": delivered.size,
        "finished_at": rfc3339(delivered.finished_at),
        "attempts": [_attempt_line(attempt) for attempt in delivered.attempts],
        "success": _attempt_line(delivered.success),
    }


def key_line(key: ExportedKey) -> Line:
    return {
        "kind": "key",
        "digest": key.digest.hex(),
        "body": key.body.hex(),
        "id": id_text(key.id),
        "at": rfc3339(key.at),
    }


def _head(message: Message) -> Line:
    return {
        "id": id_text(message.id),
        "lane": message.lane,
        "host": message.host,
        "scheme": message.scheme,
        "authority": message.authority,
        "path": message.path.decode("latin-1"),
        "method": message.method,
        "accepted_at": rfc3339(message.accepted_at),
        "born": rfc3339(message.born),
        "route": message.route,
        "signed": message.signed,
    }


def _attempt_line(attempt: Attempt) -> Line:
    return {
        "number": attempt.number,
        "kind": attempt.kind,
        "at": rfc3339(attempt.at),
        "duration": attempt.duration / 1000,
        "address": attempt.address,
        "status": attempt.status,
        "error": attempt.error,
        "detail": attempt.detail,
        "fault": attempt.fault,
        "answer": None if attempt.answer is None else _text(attempt.answer),
    }


def _moment(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)


def _text(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


# -- in: a missing or wrong field raises LookupError, TypeError, AttributeError or ValueError --------------------------


def read_circuit(line: Line) -> LaneRecord:
    circuit = Circuit(
        CircuitState(line["state"]),
        _ms(line["since"]),
        None if line["reason"] is None else Reason(line["reason"]),
        line["consecutive_failures"],
        Window(line["window"]),
        _optional_ms(line["first_attempt_at"]),
        _optional_ms(line["last_attempt_at"]),
        _optional_ms(line["last_success_at"]),
        _optional_ms(line["silent_since"]),
        _ms(line["enabled_at"]),
        _optional_ms(line["next_probe_at"]),
        None if line["probed"] is None else bytes.fromhex(line["probed"]),
    )
    answers = None if line.get("answers") is None else _flag(line["answers"])
    run, hold_until = _ms(line["run"]), _ms(line["hold_until"])
    return LaneRecord(line["key"], line["host"], circuit, line["limit"], run, hold_until, answers)


def read_message(line: Line) -> StoredMessage:
    headers = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in line["headers"])
    place = line["place"]
    standing = Standing(place["state"])
    moment = {Standing.RETRY: place["due"], Standing.DEAD: place["finished"]}.get(standing)
    due = 0 if moment is None else _ms(moment)
    reason = DeadReason(place["reason"]) if standing is Standing.DEAD else None
    if (due == 0) != (standing in (Standing.ACTIVE, Standing.WAITING)):
        raise ValueError(f"{standing} without the moment that belongs to it")
    return StoredMessage(
        _read_head(line, headers, _bytes(line["body"])),
        Place(standing, _ms(place["born"]), due, place["retry"], place["attempts"], _flag(place["held"])),
        reason,
        [_read_attempt(attempt) for attempt in line["attempts"]],
    )


def read_delivered(line: Line) -> Delivered:
    return Delivered(
        _read_head(line, (), b""),
        line["size"],
        _ms(line["finished_at"]),
        _read_attempt(line["success"]),
        [_read_attempt(attempt) for attempt in line["attempts"]],
    )


def read_key(line: Line) -> ExportedKey:
    key = ExportedKey(bytes.fromhex(line["digest"]), bytes.fromhex(line["body"]), _id(line["id"]), _ms(line["at"]))
    if not len(key.digest) == len(key.body) == 16:
        raise ValueError("a digest has 16 bytes")
    return key


def _read_head(line: Line, headers: tuple[tuple[bytes, bytes], ...], body: bytes) -> Message:
    return Message(
        _id(line["id"]),
        line["lane"],
        line["host"],
        line["scheme"],
        line["authority"],
        line["path"].encode("latin-1"),
        line["method"],
        headers,
        body,
        _ms(line["accepted_at"]),
        _ms(line["born"]),
        line["route"],
        _flag(line.get("signed", False)),
    )


def _read_attempt(line: Line) -> Attempt:
    return Attempt(
        line["number"],
        AttemptKind(line["kind"]),
        _ms(line["at"]),
        round(line["duration"] * 1000),
        line["address"],
        line["status"],
        None if line["error"] is None else ErrorKind(line["error"]),
        line["detail"],
        None if line["fault"] is None else Fault(line["fault"]),
        None if line["answer"] is None else _bytes(line["answer"]),
    )


def _id(text: str) -> MessageId:
    id = parse_id(text)
    if id is None:
        raise ValueError(f"{text!r:.60} is no message's id")
    return id


def _ms(text: str) -> int:
    return (datetime.fromisoformat(text) - _EPOCH) // _MILLISECOND


def _optional_ms(text: str | None) -> int | None:
    return None if text is None else _ms(text)


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError(f"{value!r:.40} where true or false belongs")
    return value


def _bytes(text: Any) -> bytes:
    return b64decode(text["base64"], validate=True) if isinstance(text, dict) else text.encode()
