"""Moves the messages of a stopped store to a database: `holdfast handoff`."""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import trio

from holdfast.clock import BootClock, SharedClock
from holdfast.core.errors import CommitFailed, StoreError, StoreUnreachable
from holdfast.core.store_rules import StoreRules
from holdfast.store.embedded.ledger import Ledger, last_time
from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.port import NO_LIMIT, StoreListener
from holdfast.store.postgres.migration import prepare_database
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.transfer import StoredMessage, Transferred, transfer_to_database


def hand_off(
    engine: LmdbEngine,
    rules: StoreRules,
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
    ledger = Ledger(engine, rules, BootClock(last_time(engine)), lambda bits: 0)
    ledger.open()
    ledger.listener = _Unreadable(on_unreadable)
    clock = SharedClock()
    clock.follow(prepare_database(url))
    database = PostgresStore(url, rules, clock, lambda bits: 0, max_size=NO_LIMIT, delivers=False)

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
