"""A machine's own store beside a database that replicas share, both real, in one test."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import psycopg
import trio

from contract.builders import RULES, Desk, HandClock
from holdfast.core.idempotency import HEADER, body_digest, key_digest
from holdfast.core.message import Entry, MessageId
from holdfast.store.lmdb import LmdbEngine
from holdfast.store.moving import Moving
from holdfast.store.port import Ask, IdempotencyKey
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.work import StoreRules

FOR_EVER = 1 << 50
"""A lease that outlasts every leap of a test's clock."""
ALL = 1 << 30


@asynccontextmanager
async def sidecar(folder: Path, clock: HandClock | None = None, size: int = 64 << 20) -> AsyncIterator[Desk]:
    async with trio.open_nursery() as nursery:
        desk = Desk(nursery, lambda: LmdbEngine(folder, size), RULES, clock or HandClock())
        await desk.open()
        yield desk
        await desk.close()


@asynccontextmanager
async def fleet(
    url: str, clock: HandClock, *, size: int = 1 << 30, rules: StoreRules = RULES
) -> AsyncIterator[PostgresStore]:
    """A replica that takes nothing at once: what comes waits until a test claims it."""
    numbers = count(1)
    store = PostgresStore(url, rules, clock, lambda bits: next(numbers), max_size=size, lease=FOR_EVER)
    store.on_offer = lambda message: False
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield store
        nursery.cancel_scope.cancel()


async def claimed(store: PostgresStore, lane: str, now: int) -> list[Entry]:
    """What a replica would send of a lane, in that order."""
    [view] = await store.survey([Ask(lane, now, ALL, ALL, None, frozenset())])
    return [*view.fresh, *view.due]


async def every(desk: Desk) -> list[Moving]:
    """All that is not delivered in a machine's own store."""
    found: list[Moving] = []
    after: MessageId | None = None
    while True:
        page, after = await desk.ledger.undelivered(after, 100)
        found += page
        if after is None:
            return found


def rows(url: str, query: str, given: Sequence[object] = ()) -> list[tuple[object, ...]]:
    with psycopg.connect(url, options="-c search_path=holdfast") as connection:
        return connection.execute(query.encode(), given).fetchall()


def ids_in(url: str) -> list[MessageId]:
    """Of all that is not delivered, in the order of acceptance."""
    return [bytes(id) for (id,) in rows(url, "SELECT id FROM messages ORDER BY id")]


def keyed(key: str, host: str, body: bytes = b"{}", route: str | None = None) -> dict[str, object]:
    """What `Desk.accept` is given for a message that came with an Idempotency-Key."""
    digest = key_digest(key.encode(), "POST", f"https://{host}/hook", route)
    of = {"headers": ((HEADER, key.encode()),), "body": body, **({} if route is None else {"route": route})}
    return {"key": IdempotencyKey(digest, body_digest(body)), **of}
