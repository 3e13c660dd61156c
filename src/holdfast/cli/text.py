"""Tables, facts, sizes and colours for people.

Nothing is cut: long text wraps inside its column, and what has no spaces (a host, a URL) stays whole, to be copied.
Whatever a receiver or an app wrote is shown, never obeyed: no terminal codes get through.
"""

import os
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence

WIDTH = 100

_GAP = "  "
_COLOURS = {
    "healthy": "32",
    "enabled": "32",
    "delivered": "32",
    "disabled": "33",
    "retrying": "33",
    "held": "33",
    "not healthy": "31",
    "frozen": "31",
    "dead": "31",
    "attempt_failed": "33",
    "circuit_changed": "33",
    "messages_dropped": "33",
    "message_dead": "31",
    "messages_expired": "31",
    "events_lost": "31",
}
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


def colour_wanted() -> bool:
    """Only for a terminal that knows colours, and not where NO_COLOR is set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, colour: bool) -> str:
    """The text in the colour of the state that it names, if there is to be colour."""
    code = _COLOURS.get(text.strip())
    return f"\x1b[{code}m{text}\x1b[0m" if colour and code else text


def clean(text: str) -> str:
    """One line without anything that a terminal would act on."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def human_size(size: int) -> str:
    """Bytes in their largest unit: "512 B", "1.2 MiB", "4 GiB"."""
    amount, units = float(size), list(_SIZES)
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.1f}".removesuffix(".0") + f" {units[0]}"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class Table:
    """Rows in aligned columns. They may come in pages: columns only ever grow, and the heading comes once."""

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


def facts(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Labels and values in two columns."""
    cleaned = [(label, clean(value)) for label, value in pairs]
    offset = max(len(label) for label, _ in cleaned) + len(_GAP)
    lines = []
    for label, value in cleaned:
        first, *more = wrapped(value, WIDTH - offset)
        lines += [label.ljust(offset) + first, *(" " * offset + line for line in more)]
    return lines


def wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 20), break_long_words=False, break_on_hyphens=False) or [""]
