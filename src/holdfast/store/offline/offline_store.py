"""A stopped store, as the commands use it: check and repair, export and import, compact, hand off.

An open store is locked, as a gateway locks it: the two never run at once. A database is not locked. Everything but
compact works on it while replicas run, see postgres/offline.py.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from holdfast.core.errors import StoreUnusable
from holdfast.core.store_rules import StoreRules
from holdfast.store.embedded import reads
from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.maintenance import Finding, Imported, Maintained, Repaired
from holdfast.store.offline.export_import import Import, export_lines
from holdfast.store.offline.fsck import check
from holdfast.store.offline.repair import Repair
from holdfast.store.transfer import Transferred


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
        """How many messages here are not delivered."""
        with self._engine.read() as transaction:
            found = reads.statistics(transaction, self._engine.path, self._engine.room(), False)
        return found.waiting + found.dead

    def hand_off(
        self,
        url: str,
        moved: Transferred,
        on_page: Callable[[int], None],
        on_unreadable: Callable[[str, str, str], None],
    ) -> None:
        """Move every message that is not delivered to a database: see handoff.py."""
        # Imported late: only this command needs trio, a running ledger and the driver.
        from holdfast.store.offline.handoff import hand_off

        hand_off(self._engine, self._rules, url, moved, on_page, on_unreadable)

    def compact(self) -> tuple[int, int]:
        """Rewrite the data file without free pages. Returns its size before and after."""
        return self._engine.compact()


def open_store(folder: Path, max_size: int, rules: StoreRules, *, create: bool = False) -> OfflineStore:
    """Raises StoreUnusable if there is no store and `create` is False, and StoreInUse if a process has it open."""
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
    """The same for a database. Raises StoreUnreachable if there is no connection."""
    # Imported late: its driver is an extra.
    from holdfast.store.postgres import offline

    return offline.open_database(url, max_size, rules, create=create)
