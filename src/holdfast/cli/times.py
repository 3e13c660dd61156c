"""Moments and durations for people. The time now comes in as an argument; only a command's outermost function asks."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.core.message import rfc3339

NEVER = "-"

When = datetime | timedelta
"""A moment as people name one: itself, or how long ago it was."""

_SECOND, _MINUTE, _HOUR, _DAY = 1, 60, 3_600, 86_400
_AGO = re.compile(r"([0-9]{1,5})([smhd])")
_UNITS = {"s": _SECOND, "m": _MINUTE, "h": _HOUR, "d": _DAY}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def wall_clock() -> datetime:
    # The gateway's clock (holdfast.clock) needs trio; to say "3h ago" a command needs neither.
    return datetime.now(UTC)  # noqa: TID251


def gateway_time(status: dict[str, Any]) -> datetime:
    """What time it is for a gateway, whose clock may be off the wall clock: its moments are seen from there."""
    # A gateway of an older version does not say.
    return wall_clock() + timedelta(seconds=status.get("clock", {}).get("offset", 0))


def parse_moment(text: str) -> datetime:
    """A moment as the gateway writes it: RFC 3339."""
    return datetime.fromisoformat(text)


def parse_when(text: str) -> When:
    """RFC 3339 (UTC if it names no zone), or such as "30m" for that long ago; ValueError if it is neither."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return timedelta(seconds=int(ago[1]) * _UNITS[ago[2]])
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def resolved(when: When, now: datetime) -> datetime:
    """The moment itself; nothing happened before 1970."""
    return max(now - when if isinstance(when, timedelta) else when, _EPOCH)


def spelled_out(moment: datetime) -> str:
    """A moment as the gateway reads it."""
    return rfc3339(int(moment.timestamp() * 1000))


def relative(text: str | None, now: datetime) -> str:
    """A moment as seen from now: "in 4m", "3h ago", "now"; a dash if there is none."""
    if text is None:
        return NEVER
    distance = parse_moment(text) - now
    amount = span(abs(distance))
    if amount == "0s":
        return "now"
    return f"in {amount}" if distance > timedelta() else f"{amount} ago"


def absolute(text: str | None, now: datetime) -> str:
    """The moment itself, and as seen from now."""
    if text is None:
        return NEVER
    return f"{parse_moment(text).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({relative(text, now)})"


def span(duration: timedelta) -> str:
    """A duration in its largest unit that says enough: "59s", "4m", "47h", "12d"."""
    seconds = int(duration.total_seconds())
    if seconds < _MINUTE:
        return f"{seconds}s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE}m"
    # Messages live for two days: up to there the hours matter.
    return f"{seconds // _HOUR}h" if seconds < 2 * _DAY + _HOUR else f"{seconds // _DAY}d"


def took(seconds: float) -> str:
    """How long an attempt took: "12ms", "30.0s"."""
    return f"{seconds * 1000:.0f}ms" if seconds < _SECOND else f"{seconds:.1f}s"
