"""Numbers as they are told."""

from http import HTTPStatus

from holdfast.events import Event

SECOND, HOUR, DAY = 1_000, 3_600_000, 86_400_000


def span(ms: int) -> str:
    """A duration in its two largest units: "1 min 25 s", "10 min", "48 h 13 min"."""
    seconds = round(ms / SECOND)
    if seconds < 3_600:
        parts = ((seconds // 60, "min"), (seconds % 60, "s"))
    else:
        parts = ((seconds // 3_600, "h"), (seconds % 3_600 // 60, "min"))
    return " ".join(f"{amount} {unit}" for amount, unit in parts if amount) or "0 s"


def outcome(event: Event) -> str:
    """How an attempt ended: the status and its phrase, or what went wrong."""
    status = event.get("status")
    return str(event["detail"]) if status is None else f"{status} {HTTPStatus(status).phrase}"
