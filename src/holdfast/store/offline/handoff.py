"""A stopped store is emptied into a database that replicas share: at a machine's end, or when it joins a fleet.

The limits of a config do not hold for the database here: what comes was acknowledged, and has nowhere else to go.
"""

import signal
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import trio

from holdfast.clock import SharedClock
from holdfast.core.errors import CommitFailed, StoreError, StoreUnreachable
from holdfast.core.store_rules import StoreRules
from holdfast.store.embedded.ledger import Ledger
from holdfast.store.postgres.migration import prepare_database
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.transfer import StoredMessage, Transfer, Transferred

NO_LIMIT = 1 << 62


def empty(ledger: Ledger, rules: StoreRules, url: str, moved: Transferred, on_page: Callable[[int], None]) -> None:
    """Move all that is not delivered; `on_page` is told how many have gone, and `moved` says how far it came, whatever
    ends it. Raises StoreUnreachable, StoreUnusable, and CommitFailed of the ledger.
    """
    clock = SharedClock()
    clock.follow(prepare_database(url))
    database = PostgresStore(url, rules, clock, lambda bits: 0, max_size=NO_LIMIT, delivers=False)

    async def take_in(page: Sequence[StoredMessage]) -> list[Any]:
        try:
            return await database.take_in(page)
        except CommitFailed as error:
            # Not to be taken for one of the ledger's.
            raise StoreUnreachable(str(error)) from error

    mover = Transfer(ledger, take_in, lambda page: on_page(moved.count + len(page)))
    trouble = trio.run(_run, ledger, mover, moved)
    database.close()
    if trouble is not None:
        raise trouble


async def _run(ledger: Ledger, mover: Transfer, moved: Transferred) -> BaseException | None:
    """What ended it before its time. Raised inside of a nursery it would come out of that wrapped; and Ctrl-C may not
    strike the ledger in the middle of its work.
    """
    trouble: BaseException | None = None

    async def heed(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
        nonlocal trouble
        async for _ in signals:
            trouble = KeyboardInterrupt()
            scope.cancel()

    with trio.open_signal_receiver(signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            await nursery.start(ledger.run)
            nursery.start_soon(heed, signals, nursery.cancel_scope)
            try:
                await mover.run(moved)
            except StoreError as error:
                trouble = error
            nursery.cancel_scope.cancel()
    return trouble or ledger.failed
