"""`holdfast tail`: events as they happen, one line each."""

import json
from datetime import UTC, datetime
from typing import Any

from holdfast.cli.arguments import add_control, command_parser
from holdfast.cli.command_error import clean
from holdfast.cli.control_client import ControlClient, Document
from holdfast.cli.output import colour_wanted, count, format_duration, painted

_NAME_WIDTH = len("messages_expired")
_NO_TIME = " " * len("12:00:00.000")


def tail(arguments: list[str]) -> int:
    parser = command_parser("tail")
    add_control(parser)
    options = parser.parse_args(arguments)
    colour = colour_wanted()
    with ControlClient(options) as client:
        for line in client.lines("/v1/events"):
            print(line.decode() if options.json else event_line(json.loads(line), colour), flush=True)
    return 0


def event_line(event: Document, colour: bool = False) -> str:
    fields = dict(event)
    time, name = fields.pop("time", None), fields.pop("event")
    parts = [fields.pop("host", None), fields.pop("message", None), _details(name, fields)]
    return "  ".join(
        [
            f"{datetime.fromisoformat(time).astimezone(UTC):%H:%M:%S.%f}"[:-3] if time else _NO_TIME,
            painted(clean(name).ljust(_NAME_WIDTH), colour),
            *(clean(part) for part in parts if part),
        ]
    ).rstrip()


def _details(name: str, fields: Document) -> str:
    """The fields that matter for this kind of event; all of them for an unknown kind."""
    match name:
        case "accepted":
            return f"route {fields['route']}" if fields.get("route") else ""
        case "delivered" | "attempt_failed":
            return _attempt(fields)
        case "message_dead":
            return f"{fields['reason']} after {count(fields['attempts'], 'attempt')}"
        case "circuit_changed":
            return _change(fields)
        case "messages_expired" | "messages_dropped" | "dead_replayed":
            return count(fields["count"], "message")
        case "events_lost":
            return f"{count(fields['count'], 'event')} not shown: they came faster than they were read"
        case _:
            return " ".join(f"{key}={_plain(value)}" for key, value in fields.items() if value is not None)


def _attempt(fields: Document) -> str:
    result = f"{fields.get('error') or fields.get('status')} in {format_duration(fields['duration'])}"
    parts = [f"attempt {fields['number']} ({fields['kind']}): {result}"]
    if "next_attempt_at" in fields:
        parts.append(
            f"retry {fields['retry']} at {datetime.fromisoformat(fields['next_attempt_at']).astimezone(UTC):%H:%M:%S}"
        )
    if fields.get("error") and fields.get("detail"):  # with a status the detail only repeats it
        parts.append(fields["detail"])
    return ", ".join(parts)


def _change(fields: Document) -> str:
    why = f" by {fields['reason']}" if fields["reason"] else ""
    window = f"{fields['window_failures']:,} of {count(fields['window_attempts'], 'attempt')} failed"
    run = f"{fields['consecutive_failures']:,} in a row"
    return f"{fields['before']} -> {fields['after']}{why} ({window}, {run})"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
