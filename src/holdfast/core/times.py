"""Moments as text: RFC 3339 in UTC with milliseconds, everywhere that one is shown."""

from datetime import UTC, datetime


def rfc3339(ms: int) -> str:
    text = datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{ms % 1000:03d}Z"
