"""Check, repair, export and import: what both engines share.

An engine writes records in its own way. The rules for lines are the same for every engine: a bad line is reported with
its number, and nothing of it is stored.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from holdfast.core.errors import HoldfastError
from holdfast.core.handoff_header import MOST_ATTEMPTS
from holdfast.core.message import Attempt, MessageId, Place, id_text
from holdfast.core.store_rules import kept_attempts
from holdfast.store import export_format, records
from holdfast.store.export_format import Delivered, ExportedKey, Line, Record
from holdfast.store.port import LaneRecord
from holdfast.store.transfer import StoredMessage
from holdfast.store.validation import UNREADABLE, check_attempt, check_lane, check_message, check_moments

BATCH = 500
BATCH_BYTES = 4 << 20
MOST_RETRIES = (1 << 15) - 1
"""A smallint of the database holds no more."""
_BAD = (*UNREADABLE, AttributeError, OverflowError, RecursionError)
Piece = TypeVar("Piece")


class NotAnExport(HoldfastError):
    """The file as a whole can't be imported."""


class Finding(NamedTuple):
    """One fault. `id` is the message's id, else the name of the lane or host, else the row's key in hex."""

    kind: str
    id: str
    what: str


def unreadable(kind: str, id: str, fault: object) -> Finding:
    return Finding(kind, id, f"can't be read: {fault}")


def delivered_still_here(id: MessageId) -> Finding:
    return Finding("message", id_text(id), "was delivered and is still among those that are not")


@dataclass(slots=True)
class Repaired:
    """What a repair did. `file` holds the rows that were set aside, if any."""

    set_aside: int = 0
    file: Path | None = None
    places: int = 0
    entries: int = 0
    circuits: int = 0
    listed: int = 0
    summaries: int = 0
    shares: int = 0


@dataclass(slots=True)
class Imported:
    """What an import did, by kind of line. `skipped` lines were there already; a `complete` file has all lines."""

    added: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    bad: int = 0
    complete: bool = False


class Maintained(Protocol):
    """What the commands can do to a store, on either engine."""

    def check(self) -> Iterator[Finding]: ...

    def repair(self) -> Repaired: ...

    def export(self, left_out: Callable[[Finding], None]) -> Iterator[bytes]: ...

    def take(self, lines: Iterable[bytes], bad_line: Callable[[int, str], None]) -> Imported:
        """Import the lines that follow a good header."""


def framed(found: Iterable[Line]) -> Iterator[bytes]:
    """Adds the header, and the last line with the number of lines."""
    count = 1
    yield _encoded(export_format.HEADER)
    for line in found:
        count += 1
        yield _encoded(line)
    yield _encoded({"kind": "end", "lines": count})


def _encoded(line: Line) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def check_header(text: bytes) -> None:
    """Raises NotAnExport unless the first line names the format and a version that is known."""
    try:
        header = json.loads(text)
        version = header["version"] if header["format"] == export_format.HEADER["format"] else None
    except _BAD:
        version = None
    if type(version) is not int:
        raise NotAnExport("this is no export of holdfast: its first line does not say so")
    if version > export_format.VERSION:
        raise NotAnExport(f"the export has version {version}; this holdfast knows up to {export_format.VERSION}")


def take(
    source: Iterable[bytes],
    bad_line: Callable[[int, str], None],
    encode: Callable[[Record], Piece],
    write: Callable[[list[Piece]], "Counter[str]"],
) -> Imported:
    """Import the lines after the header.

    `encode` turns a record into what the engine writes. `write` stores a batch in one transaction and returns how many
    of each kind were new. `bad_line` is called with the number of each bad line and its fault.
    """
    done = Imported()
    for batch in _batches(source, bad_line, encode, done):
        added = write([piece for _, piece in batch])
        done.added += added
        done.skipped += Counter(kind for kind, _ in batch) - added
    return done


def _batches(
    source: Iterable[bytes], bad_line: Callable[[int, str], None], encode: Callable[[Record], Piece], done: Imported
) -> Iterator[list[tuple[str, Piece]]]:
    batch: list[tuple[str, Piece]] = []
    size = 0
    for before, text in enumerate(source, 1):
        try:
            line = json.loads(text)
            if line["kind"] == "end":
                done.complete = line["lines"] == before
                continue
            batch.append((line["kind"], encode(_checked(line))))
        except _BAD as error:
            done.bad += 1
            bad_line(before + 1, f"{error} is missing or unknown" if isinstance(error, KeyError) else str(error))
            continue
        size += len(text)
        if len(batch) >= BATCH or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    yield batch


def _checked(line: Line) -> Record:
    """Returns the record of a line, if a store can hold it."""
    match record := _READERS[line["kind"]](line):
        case LaneRecord():
            check_lane(record)
            _check_names(record.key, record.host)
        case StoredMessage(message, place, _, attempts):
            check_message(message, len(message.body))
            _check_names(message.lane, message.host)
            return record._replace(place=_plain(place), attempts=_kept(attempts))
        case Delivered(message, size, finished_at, success, attempts):
            check_message(message, size)
            check_attempt(success)
            check_moments((finished_at,))
            return record._replace(attempts=_kept(attempts))
        case ExportedKey():
            check_moments((record.at,))
    return record


def _check_names(*names: str) -> None:
    if any("\0" in name for name in names):
        raise ValueError("a name with a zero byte")


def _plain(place: Place) -> Place:
    """Raises ValueError if a number is none, or too large."""
    plain = records.decode_place(records.encode_place(place))
    if plain.retry > MOST_RETRIES or plain.attempts > MOST_ATTEMPTS:
        raise ValueError("more retries or attempts than a message can have")
    return plain


def _kept(attempts: list[Attempt]) -> list[Attempt]:
    for attempt in attempts:
        check_attempt(attempt)
        if attempt.number > MOST_ATTEMPTS:
            raise ValueError("more attempts than a message can have")
    kept = kept_attempts(attempts)
    for attempt in kept:
        records.encode_attempt(attempt)  # raises if a text has a lone surrogate
    return kept


_READERS: dict[str, Callable[[Line], Record]] = {
    "circuit": export_format.read_circuit,
    "message": export_format.read_message,
    "delivered": export_format.read_delivered,
    "key": export_format.read_key,
}
