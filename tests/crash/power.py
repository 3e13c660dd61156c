"""What a power cut can leave of a data file, by the log of its writes and syncs.

The model: a disk writes sectors of 512 bytes, each whole or not at all, in any order, as long as no sync came between;
a sync that is over has everything on disk that was written before it began; a write through an O_DSYNC descriptor has
its own sectors there and no others. A file's new size is one more thing that may or may not have got there; a sector
beyond the old size brings it along. LMDB rests on the same: what it writes of a meta page lies within one sector.

The moment just before a sync is over is the worst of those since the sync before it: nothing that was written in
between is missing from what may be lost, and nothing acknowledged in between from what may not.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.crash.recorder import Kind, Place, Record

SECTOR = 512
SIZE = -1
"""Stands among the numbers of sectors for the file's new size."""

Subset = frozenset[int]


class Cut(NamedTuple):
    """A moment at which the power may fail: what is under way to the disk, and what clients were told by then."""

    unsynced: Sequence[int]
    acknowledged: frozenset[str]


class Platter:
    """A data file as it would be found after a cut: `show` makes the file hold what is durable and a choice of the
    rest, `cuts` goes through a log from one sync to the next."""

    def __init__(self, path: Path) -> None:
        """The file there is what was durable when the log began."""
        self._durable = bytearray(path.read_bytes())
        self._pending: dict[int, bytes] = {}
        self._pending_size = 0
        self._shown: Subset = frozenset()
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def __enter__(self) -> "Platter":
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)

    def cuts(self, records: Sequence[Record]) -> Iterator[Cut]:
        """Each cut once, in order. What is shown is valid until the next."""
        acknowledged: set[str] = set()
        syncing = False
        for record in records:
            assert record.place is not Place.BESIDE, "the data file was replaced, which this model knows nothing of"
            if record.kind is Kind.ACKNOWLEDGED:
                acknowledged.update(record.acknowledged)
            elif record.kind is Kind.WRITE:
                assert not syncing, "written during a sync: there is more than one writer"
                self._write(record.offset, record.data)
            elif record.kind is Kind.SIZE:
                assert record.length >= len(self._durable), "the file became shorter"
                self._pending_size = record.length
            elif record.place is Place.DATA and record.kind in (Kind.SYNC_BEGAN, Kind.FAILED):
                syncing = record.kind is Kind.SYNC_BEGAN
            elif record.place is Place.DATA and record.kind in (Kind.SYNCED, Kind.WRITTEN):
                yield self._cut(acknowledged)
                syncing = False
                self._settle(_sectors(record.offset, record.length) if record.kind is Kind.WRITTEN else None)
        yield self._cut(acknowledged)

    def show(self, subset: Subset) -> None:
        """Put this choice of what is unsynced into the file."""
        for sector in subset ^ self._shown:
            if sector != SIZE:
                os.pwrite(self._file, self._pending[sector] if sector in subset else self._old(sector), sector * SECTOR)
        reached = max((sector + 1 for sector in subset), default=0) * SECTOR
        size = max(reached, len(self._durable), self._pending_size if SIZE in subset else 0)
        os.ftruncate(self._file, size)
        self._shown = subset

    def _cut(self, acknowledged: set[str]) -> Cut:
        grown = [SIZE] if self._pending_size > len(self._durable) else []
        return Cut([*self._pending, *grown], frozenset(acknowledged))

    def _old(self, sector: int) -> bytes:
        return bytes(self._durable[sector * SECTOR : (sector + 1) * SECTOR]).ljust(SECTOR, b"\0")

    def _write(self, offset: int, data: bytes) -> None:
        for sector in _sectors(offset, len(data)):
            content = bytearray(self._pending.get(sector) or self._old(sector))
            start = max(offset, sector * SECTOR)
            part = data[start - offset : (sector + 1) * SECTOR - offset]
            content[start - sector * SECTOR : start - sector * SECTOR + len(part)] = part
            self._pending[sector] = bytes(content)

    def _settle(self, only: range | None) -> None:
        self.show(frozenset())
        settled = [sector for sector in self._pending if only is None or sector in only]
        size = max([len(self._durable), *((sector + 1) * SECTOR for sector in settled)])
        size = max(size, self._pending_size) if only is None else size
        self._durable.extend(bytes(size - len(self._durable)))
        os.ftruncate(self._file, size)
        for sector in settled:
            content = self._pending.pop(sector)
            self._durable[sector * SECTOR : (sector + 1) * SECTOR] = content
            os.pwrite(self._file, content, sector * SECTOR)


def subsets(cut: Cut, chance: Random, seeded: int) -> Iterator[Subset]:
    """None, all, each one alone in, each one alone out, and some at random: each choice once."""
    whole = frozenset(cut.unsynced)
    seen: set[Subset] = set()

    def chosen() -> Iterator[Subset]:
        yield frozenset()
        yield whole
        yield from (frozenset({item}) for item in cut.unsynced)
        yield from (whole - {item} for item in cut.unsynced)
        for _ in range(seeded):
            share = chance.random()
            yield frozenset(item for item in cut.unsynced if chance.random() < share)

    for subset in chosen():
        if subset not in seen:
            seen.add(subset)
            yield subset


def _sectors(offset: int, length: int) -> range:
    return range(offset // SECTOR, -(-(offset + length) // SECTOR))
