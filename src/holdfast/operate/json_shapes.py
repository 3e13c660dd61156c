"""Messages, circuits and times as JSON. Programs rely on these shapes."""

import base64
from typing import Any

from holdfast.core.circuit import CircuitRules
from holdfast.core.message import Attempt, AttemptKind, MessageState, Place, Standing, id_text, rfc3339
from holdfast.store.port import CircuitView, MessageView


def moment(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)


def seconds(ms: int) -> float:
    return ms / 1000


def message(view: MessageView, *, in_flight: bool, masked: bool) -> dict[str, Any]:
    """`masked` hides the target's path. Only the control socket shows it."""
    it = view.message
    state = MessageState.IN_FLIGHT if in_flight else view.state
    return {
        "id": id_text(it.id),
        "state": state,
        "target": it.masked_target if masked else it.target,
        "host": it.host,
        "route": it.route,
        "method": it.method,
        "size": view.size,
        "accepted_at": moment(it.accepted_at),
        "retry": _retries_used(view),
        "next_attempt_at": moment(_next_attempt(state, view.place)),
        "dead_reason": view.dead_reason,
        "finished_at": moment(view.finished_at),
        "attempts": [attempt(each) for each in view.attempts],
    }


def dead_letter(view: MessageView) -> dict[str, Any]:
    """A dead message with its headers and body, nothing redacted. A body that is not UTF-8 is base64."""
    document = message(view, in_flight=False, masked=False)
    document["headers"] = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in view.message.headers]
    try:
        document["body"] = view.message.body.decode()
    except UnicodeDecodeError:
        document["body_base64"] = base64.b64encode(view.message.body).decode()
    return document


def _retries_used(view: MessageView) -> int:
    """Retries made since the message was accepted or replayed. A place holds the number of the next retry; a delivered
    message has no place.
    """
    place = view.place
    if place is not None:
        return place.retry - 1 if place.standing is Standing.RETRY and place.retry else place.retry
    used = 0
    for each in view.attempts:
        used = 0 if each.kind is AttemptKind.FIRST else used + (each.kind is AttemptKind.RETRY)
    return used


def _next_attempt(state: MessageState, place: Place | None) -> int | None:
    waits = state in (MessageState.QUEUED, MessageState.RETRYING, MessageState.HELD)
    return place.due if waits and place is not None and place.standing is Standing.RETRY else None


def attempt(it: Attempt) -> dict[str, Any]:
    return {
        "number": it.number,
        "kind": it.kind,
        "at": moment(it.at),
        "duration": seconds(it.duration),
        "address": it.address,
        "status": it.status,
        "error": it.error,
        "detail": it.detail,
        "fault": it.fault,
        "answer": it.answer.decode("utf-8", "replace") if it.answer is not None else None,
    }


def circuit(view: CircuitView, now: int, rules: CircuitRules) -> dict[str, Any]:
    record = view.record
    it = record.circuit
    attempts, failures = it.window.sums(now, rules)
    return {
        "host": record.key,
        "state": it.state,
        "since": moment(it.since),
        "reason": it.reason,
        "consecutive_failures": it.consecutive_failures,
        "window": {"attempts": attempts, "failures": failures},
        "last_success_at": moment(it.last_success_at),
        "first_attempt_at": moment(it.first_attempt_at),
        "waiting": view.waiting,
        "dead": view.dead,
        "next_probe_at": moment(it.next_probe_at),
        "limit": record.limit,
    }
