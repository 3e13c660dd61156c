"""The lines of an export as they come in: read one by one, told of if they are bad, gathered into batches.

What an engine makes of a line is its own; that a line which can't be taken is reported with its number, and that
nothing of it is stored, holds for all.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from holdfast.core.errors import HoldfastError
from holdfast.store import lines
from holdfast.store.lines import Line
from holdfast.store.sound import UNREADABLE

BATCH = 500
BATCH_BYTES = 4 << 20

_BAD = (*UNREADABLE, AttributeError, OverflowError, RecursionError)


class NotAnExport(HoldfastError):
    """The file as a whole can't be imported."""


@dataclass(slots=True)
class Imported:
    """What an import did, by kind of line. `skipped` was there already; a `complete` file has all of its lines."""

    added: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    bad: int = 0
    complete: bool = False


class Sized(Protocol):
    @property
    def size(self) -> int: ...


Piece = TypeVar("Piece", bound=Sized)


def check_header(text: bytes) -> None:
    """The first line says what the others are, and since which version of holdfast."""
    try:
        header = json.loads(text)
        version = header["version"] if header["format"] == lines.HEADER["format"] else None
    except _BAD:
        version = None
    if type(version) is not int:
        raise NotAnExport("this is no export of holdfast: its first line does not say so")
    if version > lines.VERSION:
        raise NotAnExport(f"the export has version {version}; this holdfast knows up to {lines.VERSION}")


def batches(
    source: Iterable[bytes],
    readers: Mapping[str, Callable[[Line], Piece]],
    done: Imported,
    bad_line: Callable[[int, str], None],
) -> Iterator[tuple[list[Piece], int]]:
    """The lines after the header as their kind's reader takes them, so many at a time as one transaction may hold; with
    what they add up to in bytes.
    """
    batch: list[Piece] = []
    size = 0
    for piece in _pieces(source, readers, done, bad_line):
        batch.append(piece)
        size += piece.size
        if len(batch) >= BATCH or size >= BATCH_BYTES:
            yield batch, size
            batch, size = [], 0
    yield batch, size


def _pieces(
    source: Iterable[bytes],
    readers: Mapping[str, Callable[[Line], Piece]],
    done: Imported,
    bad_line: Callable[[int, str], None],
) -> Iterator[Piece]:
    for before, text in enumerate(source, 1):
        try:
            line = json.loads(text)
            if line["kind"] == "end":
                done.complete = line["lines"] == before
                continue
            piece = readers[line["kind"]](line)
        except _BAD as error:
            done.bad += 1
            what = f"{error} is missing or unknown" if isinstance(error, KeyError) else str(error)
            bad_line(before + 1, what)
        else:
            yield piece
