"""Log lines over stdlib logging: one line per event, as JSON for machines or as text for people.

An event has a name and fields: `event(logger, logging.WARNING, "attempt_failed", host=...)`. A value never breaks out
of its field or its line. A line that can't be written is lost; that is not an error. Times are UTC in both formats.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Literal, TextIO

_SHORT_LEVELS = {"WARNING": "WARN", "CRITICAL": "FATAL"}
_RESERVED = frozenset({"time", "level", "event", "exception"})


def setup(
    format: Literal["json", "text"],
    level: Literal["debug", "info", "warning", "error"],
    stream: TextIO | None = None,
) -> None:
    """Send every log line of the process to the stream (default: stderr). A second call replaces the first.

    The level applies to holdfast's own lines. Libraries log warnings and above.
    """
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _LineHandler)]:
        root.removeHandler(handler)
    handler = _LineHandler(stream)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("holdfast").setLevel(level.upper())


def event(
    logger: logging.Logger,
    level: int,
    name: str,
    /,
    *,
    exc_info: BaseException | bool | None = None,
    **fields: object,
) -> None:
    """Log one event with its fields. `exc_info` is that of `logging`."""
    if logger.isEnabledFor(level):
        logger.log(level, name, exc_info=exc_info, extra={"fields": fields})


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        name, fields = _contents(self, record)
        line = {"time": _time(record), "level": record.levelname.lower(), "event": name, **fields}
        # ASCII only: nothing in it can look like the end of a line.
        return json.dumps(line, separators=(",", ":"))


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        name, fields = _contents(self, record)
        words = [_time(record)[11:23], _SHORT_LEVELS.get(record.levelname, record.levelname), _word(name)]
        words += [f"{_word(key)}={_word(value)}" for key, value in fields.items()]
        return " ".join(words)


class _LineHandler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:
        """A closed pipe or a full disk loses the line. Deliveries go on."""


def _contents(formatter: logging.Formatter, record: logging.LogRecord) -> tuple[str, dict[str, object]]:
    """An event's name and fields. A plain logging call, such as a library's, becomes the event "log"."""
    given = getattr(record, "fields", None)
    if given is None:
        name, given = "log", {"logger": record.name, "message": record.getMessage()}
    else:
        name = str(record.msg)
    # A field must not hide the line's own keys.
    fields = {f"{key}_" if key in _RESERVED else key: _plain(value) for key, value in given.items()}
    if record.exc_info and record.exc_info[0] is not None:
        fields["exception"] = formatter.formatException(record.exc_info)
    return name, fields


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: object) -> object:
    """The value as JSON, or as text if JSON has no such type."""
    if isinstance(value, Enum):
        return _plain(value.value)
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return str(value)


def _word(value: object) -> str:
    """The bare value if it is unambiguous, else quoted and escaped."""
    if not isinstance(value, str):
        return json.dumps(value, separators=(",", ":"))
    bare = value and value.isprintable() and not any(character in ' "=\\' for character in value)
    return value if bare else json.dumps(value)
