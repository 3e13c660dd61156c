"""An embedded store beside a database that replicas share, both real, in one test."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import randbits
from typing import Any

import psycopg
import trio

from holdfast.core.idempotency import HEADER, body_digest, key_digest
from holdfast.core.message import Entry, MessageId, Standing
from holdfast.core.ownership import SHARDS
from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.port import IdempotencyKey
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.transfer import StoredMessage
from tests.contract.builders import RULES, Desk, HandClock
from tests.store.recorder import Recorder
from tests.support.harness import PATIENCE

ACTIVE = Standing.ACTIVE
FOR_EVER = 1 << 40
"""A lease that outlasts every leap of a test's clock."""


@dataclass
class Beating:
    """A test's time, with beats that go on meanwhile."""

    clock: HandClock

    def now(self) -> int:
        return self.clock.now()

    def uptime(self) -> int:
        return round(trio.current_time() * 1000)


class Replica(PostgresStore):
    """One that sends nothing: all that it was given to send is in `arrivals`, in that order."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.listener = self.recorder = Recorder()

    @property
    def arrivals(self) -> list[Entry]:
        return self.recorder.arrived

    async def given(self, lane: str, number: int) -> list[Entry]:
        """What it was given of a lane, once it is so many."""
        found: list[Entry] = []
        with trio.fail_after(PATIENCE):
            while len(found) < number:
                await trio.sleep(0.005)
                found = [entry for entry in self.arrivals if entry.message.lane == lane]
        assert len(found) == number
        return found


@asynccontextmanager
async def sidecar(folder: Path, clock: HandClock | None = None, size: int = 64 << 20) -> AsyncIterator[Desk]:
    async with trio.open_nursery() as nursery:
        desk = Desk(nursery, lambda: LmdbEngine(folder, size), RULES, clock or HandClock())
        await desk.open()
        yield desk
        await desk.close()


@asynccontextmanager
async def fleet(url: str, clock: HandClock, *, size: int = 1 << 30) -> AsyncIterator[Replica]:
    """A replica. The first one of a database owns all hosts, if that is there."""
    store = Replica(url, RULES, Beating(clock), randbits, max_size=size, lease=FOR_EVER, renew_every=100)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await every_host_is_owned(store)
        yield store
        nursery.cancel_scope.cancel()


async def every_host_is_owned(store: PostgresStore) -> None:
    """As far as a replica knows; unless it can't reach the database."""
    with trio.fail_after(PATIENCE):
        while not store.unreachable and (len(store._shards.owners) < SHARDS or store._shards._gaining):
            await trio.sleep(0.005)


async def every(desk: Desk) -> list[StoredMessage]:
    """All that is not delivered in a machine's own store."""
    found: list[StoredMessage] = []
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
