"""A stopped store is emptied into a database that replicas share: at a machine's end, or when it joins a fleet.

The limits of a config do not hold for the database here: what comes was acknowledged, and has nowhere else to go.
"""

from collections.abc import Callable, Sequence
from typing import Any

import trio

from holdfast.clock import SharedClock
from holdfast.core.errors import CommitFailed, StoreAway, StoreError
from holdfast.store.ledger import Ledger
from holdfast.store.moving import Moved, Mover, Moving
from holdfast.store.postgres.contact import make_contact
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.work import StoreRules

NO_LIMIT = 1 << 62


def empty(
    ledger: Ledger,
    rules: StoreRules,
    url: str,
    moved: Moved,
    on_page: Callable[[int], None],
    is_over: Callable[[], bool],
) -> None:
    """Move all that is not delivered, page by page until it `is_over`; `on_page` is told how many have gone, and
    `moved` says how far it came, whatever ends it. Raises StoreAway, StoreUnusable, and CommitFailed of the ledger.
    """
    clock = SharedClock()
    clock.follow(make_contact(url))
    database = PostgresStore(url, rules, clock, lambda bits: 0, max_size=NO_LIMIT, delivers=False)

    async def take_in(page: Sequence[Moving]) -> list[Any]:
        try:
            return await database.take_in(page)
        except CommitFailed as error:
            # Not to be taken for one of the ledger's.
            raise StoreAway(str(error)) from error

    mover = Mover(ledger, take_in, lambda page: on_page(moved.count + len(page)))
    try:
        trouble = trio.run(_run, ledger, mover, moved, is_over)
    finally:
        database.close()
    if trouble is not None:
        raise trouble


async def _run(ledger: Ledger, mover: Mover, moved: Moved, is_over: Callable[[], bool]) -> StoreError | None:
    """What is raised inside of a nursery would come out of it wrapped."""
    async with trio.open_nursery() as nursery:
        await nursery.start(ledger.run)
        try:
            await mover.run(moved, is_over)
        except StoreError as error:
            return error
        finally:
            nursery.cancel_scope.cancel()
    return ledger.failed
