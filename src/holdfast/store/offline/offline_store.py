"""A stopped store, as the commands use it: check and repair, export and import, compact, hand off.

An open store is locked, as a gateway locks it: the two never run at once. A database is not locked. Everything but
compact works on it while replicas run, see postgres/offline.py.
"""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import trio

from holdfast.clock import BootClock, SharedClock
from holdfast.core.errors import CommitFailed, StoreError, StoreUnreachable, StoreUnusable
from holdfast.core.store_rules import StoreRules
from holdfast.store.embedded import reads
from holdfast.store.embedded.ledger import Ledger, last_time
from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.maintenance import Finding, Imported, Maintained, Repaired
from holdfast.store.offline.export import export_lines
from holdfast.store.offline.fsck import check
from holdfast.store.offline.repair import Repair
from holdfast.store.offline.restore import Import
from holdfast.store.port import NO_LIMIT, StoreListener
from holdfast.store.transfer import StoredMessage, Transferred, transfer_to_database


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
        """Move every message that is not delivered to a database; what can't be read stays.

        `on_page` gets the number of messages moved so far. `moved` is right however this ends. Raises StoreUnreachable,
        StoreUnusable, and CommitFailed of this store. The database takes more than `store.max_size`: these messages
        were acknowledged and have nowhere else to go.
        """
        # Imported late: its driver is an extra.
        from holdfast.store.postgres.migration import prepare_database
        from holdfast.store.postgres.store import PostgresStore

        ledger = Ledger(self._engine, self._rules, BootClock(last_time(self._engine)), lambda bits: 0)
        ledger.open()
        ledger.listener = _Unreadable(on_unreadable)
        clock = SharedClock()
        clock.follow(prepare_database(url))
        database = PostgresStore(url, self._rules, clock, lambda bits: 0, max_size=NO_LIMIT, delivers=False)

        async def take_in(page: Sequence[StoredMessage]) -> list[Any]:
            try:
                return await database.take_in(page)
            except CommitFailed as error:
                # CommitFailed would mean that this store failed.
                raise StoreUnreachable(str(error)) from error

        async def move() -> None:
            await transfer_to_database(ledger, take_in, moved, lambda page: on_page(moved.count + len(page)))

        problem = trio.run(_run_beside, ledger, move)
        database.close()
        if problem is not None:
            raise problem

    def compact(self) -> tuple[int, int]:
        """Rewrite the data file without free pages. Returns its size before and after."""
        return self._engine.compact()


class _Unreadable(StoreListener):
    """Passes on records that can't be read."""

    def __init__(self, on_unreadable: Callable[[str, str, str], None]) -> None:
        self._on_unreadable = on_unreadable

    def record_unreadable(self, table: str, key: str, fault: str) -> None:
        self._on_unreadable(table, key, fault)


async def _run_beside(ledger: Ledger, move: Callable[[], Awaitable[None]]) -> BaseException | None:
    """Returns what ended `move` early. Raised inside the nursery it would come out wrapped.

    Ctrl-C cancels: an interrupt must not hit the ledger in the middle of a commit.
    """
    problem: BaseException | None = None

    async def cancel_at_signal(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
        nonlocal problem
        async for _ in signals:
            problem = KeyboardInterrupt()
            scope.cancel()

    with trio.open_signal_receiver(signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            await nursery.start(ledger.run)
            nursery.start_soon(cancel_at_signal, signals, nursery.cancel_scope)
            try:
                await move()
            except StoreError as error:
                problem = error
            nursery.cancel_scope.cancel()
    return problem or ledger.failed


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
