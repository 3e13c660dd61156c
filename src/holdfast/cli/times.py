"""Moments and durations for people. The time now comes in as an argument; only a command's outermost function asks."""

from datetime import UTC, datetime, timedelta

NEVER = "-"

_SECOND, _MINUTE, _HOUR, _DAY = 1, 60, 3_600, 86_400


def wall_clock() -> datetime:
    # The gateway's clock (holdfast.clock) needs trio; to say "3h ago" a command needs neither.
    return datetime.now(UTC)  # noqa: TID251


def parse_moment(text: str) -> datetime:
    """A moment as the gateway writes it: RFC 3339."""
    return datetime.fromisoformat(text)


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
