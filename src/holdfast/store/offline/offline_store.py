"""What is done to a stopped store, as the commands call it: check and repair, export and import, compact.

Whoever opens a store here holds its lock like a gateway, so neither can run beside the other. A database is not held:
all but compact works on it while a fleet does, see postgres/offline.py.

walking.py   every row, in bounded transactions
sound.py     whether one row can be read
standing.py  which index entries a message has
fsck.py      what is wrong
repair.py    mends it; clues.py finds lost places, aside.py keeps what was taken out
lines.py     how an export looks; incoming.py reads it line by line
export.py, restore.py  out, and in again; files.py writes files that are whole and private
emptying.py  all that is not delivered goes to a database that replicas share
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from holdfast.core.errors import StoreUnusable
from holdfast.core.store_rules import StoreRules
from holdfast.store.embedded import reads
from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.maintenance import Finding, Imported, Maintained, NotAnExport, Repaired, check_header
from holdfast.store.offline.export import export_lines
from holdfast.store.offline.fsck import check
from holdfast.store.offline.repair import Repair
from holdfast.store.offline.restore import Import
from holdfast.store.port import StoreListener
from holdfast.store.transfer import Transferred

__all__ = [
    "Finding",
    "Imported",
    "Maintained",
    "NotAnExport",
    "OfflineStore",
    "Repaired",
    "Transferred",
    "check_header",
    "open_database",
    "open_store",
]


class OfflineStore:
    """A store that no gateway has, until `close`."""

    def __init__(self, engine: LmdbEngine, rules: StoreRules) -> None:
        self._engine = engine
        self._rules = rules

    def __enter__(self) -> "OfflineStore":
        return self

    def __exit__(self, *error: object) -> None:
        self._engine.close()

    def check(self) -> Iterator[Finding]:
        return check(self._engine, self._rules)

    def repair(self) -> Repaired:
        return Repair(self._engine, self._rules, self._rules.run).run()

    def export(self, left_out: Callable[[Finding], None]) -> Iterator[bytes]:
        return export_lines(self._engine, left_out)

    def take(self, lines: Iterable[bytes], bad_line: Callable[[int, str], None]) -> Imported:
        return Import(self._engine, self._rules, self._rules.run).run(lines, bad_line)

    @property
    def left(self) -> int:
        """How many messages that were not delivered are here."""
        with self._engine.read() as transaction:
            found = reads.statistics(transaction, self._engine.path, self._engine.room(), False)
        return found.waiting + found.dead

    def empty(
        self,
        url: str,
        moved: Transferred,
        on_page: Callable[[int], None],
        on_broken: Callable[[str, str, str], None],
    ) -> None:
        """All that is not delivered goes to a database; what can't be read is told, and stays."""
        # Only where it is wanted: a driver that is an extra, and all that a store needs to run.
        from holdfast.clock import BootClock
        from holdfast.store.embedded.ledger import Ledger, last_time
        from holdfast.store.offline.handoff import empty

        ledger = Ledger(self._engine, self._rules, BootClock(last_time(self._engine)), lambda bits: 0)
        ledger.open()
        ledger.listener = _Unreadable(on_broken)
        empty(ledger, self._rules, url, moved, on_page)

    def compact(self) -> tuple[int, int]:
        """Rewrite the data file without free pages. Returns its size before and after."""
        return self._engine.compact()


class _Unreadable(StoreListener):
    """Passes on records that can't be read."""

    def __init__(self, on_broken: Callable[[str, str, str], None]) -> None:
        self._on_broken = on_broken

    def record_unreadable(self, table: str, key: str, fault: str) -> None:
        self._on_broken(table, key, fault)


def open_store(folder: Path, max_size: int, rules: StoreRules, *, create: bool = False) -> OfflineStore:
    """Raises StoreUnusable where no store is, unless it may be made, and StoreInUse if a process has it."""
    try:
        there = (folder / "data.mdb").exists()
    except OSError as error:
        raise StoreUnusable(f"{folder} can't be used: {error.strerror}") from error
    if not there and not create:
        raise StoreUnusable(f"there is no store in {folder}")
    return OfflineStore(LmdbEngine(folder, max_size), rules)


def open_database(
    url: str, max_size: int, rules: StoreRules, *, create: bool = False
) -> AbstractContextManager[Maintained]:
    """The same of a database; raises StoreUnreachable if it can't be reached."""
    # Only where it is wanted: its driver is an extra.
    from holdfast.store.postgres import offline

    return offline.open_database(url, max_size, rules, create=create)
