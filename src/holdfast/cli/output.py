"""Text for people: tables, facts, sizes, times, colours, `--watch` and progress bars.

No text is cut: it wraps inside its column, and a host or a URL stays whole, to be copied. Text that a receiver or an
app wrote is escaped: no terminal codes get through.
"""

import json
import os
import re
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.cli.command_error import clean
from holdfast.core.message import rfc3339

WIDTH = 100
WATCH_INTERVAL = 2.0

When = datetime | timedelta
"""A moment as people write it: itself, or how long ago it was."""

_GAP = "  "
_GREEN, _YELLOW, _RED = "32", "33", "31"
_COLOURS = {
    **dict.fromkeys(("healthy", "enabled", "delivered"), _GREEN),
    **dict.fromkeys(("disabled", "retrying", "held"), _YELLOW),
    **dict.fromkeys(("attempt_failed", "circuit_changed", "messages_dropped"), _YELLOW),
    **dict.fromkeys(("not healthy", "frozen", "dead", "message_dead", "messages_expired", "events_lost"), _RED),
}
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_SECOND, _MINUTE, _HOUR, _DAY = 1, 60, 3_600, 86_400
_AGO = re.compile(r"([0-9]{1,5})([smhd])")
_UNITS = {"s": _SECOND, "m": _MINUTE, "h": _HOUR, "d": _DAY}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_CLEAR_DOWN = "\x1b[J"
_CLEAR_LINE = "\r\x1b[K"
_BAR_LENGTH = 30

View = Callable[[], list[str]]


# -- words -----------------------------------------------------------------------------------------------------------


def colour_wanted() -> bool:
    """True for a terminal that knows colours, unless NO_COLOR is set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, colour: bool) -> str:
    """Returns the text in the colour of the state that it names, if `colour` is true."""
    code = _COLOURS.get(text.strip())
    return f"\x1b[{code}m{text}\x1b[0m" if colour and code else text


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def human_size(size: int) -> str:
    """Bytes in the largest unit: "512 B", "1.2 MiB", "4 GiB"."""
    amount, units = float(size), list(_SIZES)
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.1f}".removesuffix(".0") + f" {units[0]}"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 20), break_long_words=False, break_on_hyphens=False) or [""]


# -- tables ----------------------------------------------------------------------------------------------------------


def facts(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Returns labels and values in two columns."""
    cleaned = [(label, clean(value)) for label, value in pairs]
    offset = max(len(label) for label, _ in cleaned) + len(_GAP)
    lines = []
    for label, value in cleaned:
        first, *more = wrapped(value, WIDTH - offset)
        lines += [label.ljust(offset) + first, *(" " * offset + line for line in more)]
    return lines


class TextTable:
    """Rows in aligned columns. Rows may come in pages: columns only grow, and the heading is printed once."""

    def __init__(self, headings: Sequence[str], *, right: Collection[str] = (), colour: bool = False) -> None:
        self._headings = headings
        self._right = right
        self._colour = colour
        self._widths = [len(heading) for heading in headings]
        self._begun = False

    def lines(self, rows: Iterable[Sequence[str]]) -> list[str]:
        cells = [[clean(cell) for cell in row] for row in rows]
        for row in cells:
            self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, row, strict=True)]
        heading = [] if self._begun else [list(self._headings)]
        self._begun = True
        return [line for row in heading + cells for line in self._row(row)]

    def _row(self, cells: list[str]) -> list[str]:
        first = [self._padded(*each) for each in zip(self._headings, self._widths, cells, strict=True)][:-1]
        offset = sum(self._widths[:-1]) + len(_GAP) * len(first)
        last, *more = wrapped(cells[-1], WIDTH - offset)
        return [_GAP.join([*first, last]).rstrip(), *(" " * offset + line for line in more)]

    def _padded(self, heading: str, width: int, cell: str) -> str:
        padded = cell.rjust(width) if heading in self._right else cell.ljust(width)
        return painted(padded, self._colour) if heading == "STATE" else padded


def list_lines(
    pages: Iterable[list[Any]],
    table: TextTable,
    row: Callable[[Any, datetime], list[str]],
    clock: Callable[[], datetime],
    *,
    as_json: bool,
    none_found: str,
) -> Iterator[list[str]]:
    """Yields the lines of each page, as JSON objects or as rows of the table; `none_found` if there is no page."""
    page = None
    for page in pages:
        if as_json:
            yield [json.dumps(item) for item in page]
        else:
            now = clock()
            yield table.lines(row(item, now) for item in page)
    if page is None and not as_json:
        yield [clean(none_found)]


# -- times -----------------------------------------------------------------------------------------------------------


def wall_clock() -> datetime:
    # The gateway's clock (holdfast.clock) needs trio, which a command does not.
    return datetime.now(UTC)  # noqa: TID251


def gateway_time(status: dict[str, Any]) -> datetime:
    """The time by the gateway's clock, which may differ from the wall clock."""
    # Gateways of older versions have no "clock" in their status.
    return wall_clock() + timedelta(seconds=status.get("clock", {}).get("offset", 0))


def parse_when(text: str) -> When:
    """Reads RFC 3339 (UTC without a zone), or such as "30m" for that long ago; ValueError if it is neither."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return timedelta(seconds=int(ago[1]) * _UNITS[ago[2]])
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def resolved(when: When, now: datetime) -> datetime:
    """Returns the moment itself, 1970 at the earliest."""
    return max(now - when if isinstance(when, timedelta) else when, _EPOCH)


def timestamp(moment: datetime) -> str:
    """Writes a moment as the gateway reads it."""
    return rfc3339(int(moment.timestamp() * 1000))


def relative(text: str | None, now: datetime) -> str:
    """A moment relative to now: "in 4m", "3h ago", "now"; a dash for None."""
    if text is None:
        return "-"
    distance = datetime.fromisoformat(text) - now
    amount = _span(abs(distance))
    if amount == "0s":
        return "now"
    return f"in {amount}" if distance > timedelta() else f"{amount} ago"


def absolute(text: str | None, now: datetime) -> str:
    """The moment, and how far from now it is."""
    if text is None:
        return "-"
    return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({relative(text, now)})"


def _span(duration: timedelta) -> str:
    """A duration in the largest unit that is exact enough: "59s", "4m", "47h", "12d"."""
    seconds = int(duration.total_seconds())
    if seconds < _MINUTE:
        return f"{seconds}s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE}m"
    # Messages live for two days: up to there the hours matter.
    return f"{seconds // _HOUR}h" if seconds < 2 * _DAY + _HOUR else f"{seconds // _DAY}d"


def format_duration(seconds: float) -> str:
    """The duration of an attempt: "12ms", "30.0s"."""
    return f"{seconds * 1000:.0f}ms" if seconds < _SECOND else f"{seconds:.1f}s"


# -- --watch ---------------------------------------------------------------------------------------------------------


def show_view(view: View, *, watch: bool, as_json: bool) -> None:
    """Prints a view once. With `watch` it goes on until Ctrl-C or an error: in place on a terminal, else repeated."""
    if not watch:
        print("\n".join(view()))
    elif as_json or not sys.stdout.isatty():
        _repeat(view, as_json)
    else:
        _redraw(view)


def _repeat(view: View, as_json: bool) -> None:
    while True:
        lines = view() if as_json else [_watch_heading(), *view(), ""]
        print("\n".join(lines), flush=True)
        time.sleep(WATCH_INTERVAL)


def _redraw(view: View) -> None:
    import shutil  # only here: it imports much

    drawn = 0
    while True:
        lines = fit_screen([_watch_heading(), *view()], shutil.get_terminal_size().lines - 1)
        # Up to the first line of the last view; earlier output stays on the screen.
        up = f"\x1b[{drawn}F" if drawn else ""
        print(up + _CLEAR_DOWN + _NO_WRAP + "\n".join(lines) + _WRAP, flush=True)
        drawn = len(lines)
        time.sleep(WATCH_INTERVAL)


def fit_screen(lines: list[str], height: int) -> list[str]:
    """Returns the lines that fit on a screen; the last of them says that there are more."""
    return lines if len(lines) <= height else [*lines[: max(height - 1, 1)], "... the rest does not fit here"]


def _watch_heading() -> str:
    return f"{wall_clock():%Y-%m-%d %H:%M:%S} UTC, every {WATCH_INTERVAL:g} s until Ctrl-C"


# -- progress --------------------------------------------------------------------------------------------------------


def bar_wanted() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


class ProgressBar:
    """A bar on the terminal's stderr, removed at the end. Without a total it shows a count."""

    def __init__(self, verb: str, total: int | None) -> None:
        self._verb = verb
        self._total = total
        self._is_shown = bar_wanted()

    def __enter__(self) -> "ProgressBar":
        self.show(0)
        return self

    def __exit__(self, *error: object) -> None:
        self.draw("")

    def show(self, count: int) -> None:
        self.draw(progress(self._verb, count, self._total))

    def draw(self, text: str) -> None:
        if self._is_shown:
            # Not through sys.stderr: a signal handler may interrupt one of its writes.
            os.write(sys.stderr.fileno(), (_CLEAR_LINE + text).encode())


def progress(verb: str, count: int, total: int | None) -> str:
    if not total:
        return f"{count:,} {verb}"
    part = min(count / total, 1.0)
    filled = int(part * _BAR_LENGTH)
    return f"[{'#' * filled}{'.' * (_BAR_LENGTH - filled)}] {part:4.0%}  {count:,} of {max(count, total):,} {verb}"
