"""Durations and sizes as people write them, "84800ms", "10m", "1MiB", and as exact integers."""

from __future__ import annotations

import re

from holdfast.config.faults import quoted, show

# From the smallest unit to the largest: the formatters rely on this order.
DURATIONS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

DURATION_ALLOWED = 'a number with ms, s, m, h or d, such as "84800ms"'
SIZE_ALLOWED = 'a number with B, KiB, MiB, GiB or TiB, such as "1MiB"'

# After a century, due times would leave the range of dates.
LONGEST_DURATION = 36_500 * DURATIONS["d"]
LARGEST_SIZE = 1024 * SIZES["TiB"]

_QUANTITY = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,9}))?([A-Za-z]+)")


def parse_duration(text: str) -> int:
    """Milliseconds of "250ms", "30s", "1.5h". Raises ValueError if it is not exact, or over 100 years."""
    milliseconds = _parse(text, DURATIONS)
    if milliseconds is None:
        raise ValueError(f"{show(text)} is not a duration")
    if milliseconds > LONGEST_DURATION:
        raise ValueError(f"{quoted(text)} is longer than 100 years")
    return milliseconds


def parse_size(text: str) -> int:
    """Bytes of "512B", "1MiB", "1.5GiB". Raises ValueError if it is not exact, or over 1024 TiB."""
    size = _parse(text, SIZES)
    if size is None:
        raise ValueError(f"{show(text)} is not a size")
    if size > LARGEST_SIZE:
        raise ValueError(f"{quoted(text)} is larger than 1024TiB")
    return size


def format_duration(milliseconds: int) -> str:
    """The shortest exact spelling with one whole number: 84800 -> "84800ms", 600000 -> "10m"."""
    return _format(milliseconds, DURATIONS) if milliseconds else "0s"


def format_size(size: int) -> str:
    """The shortest exact spelling with one whole number: 1048576 -> "1MiB"."""
    return _format(size, SIZES) if size else "0B"


def _parse(text: str, units: dict[str, int]) -> int | None:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[3] not in units:
        return None
    unit = units[match[3]]
    decimals = match[2] or ""
    # Whole numbers only: as a float "84.8s" might become 84799.
    fraction, inexact = divmod(int(decimals or "0") * unit, 10 ** len(decimals))
    return None if inexact else int(match[1]) * unit + fraction


def _format(amount: int, units: dict[str, int]) -> str:
    name = next(name for name in reversed(units) if amount % units[name] == 0)
    return f"{amount // units[name]}{name}"
