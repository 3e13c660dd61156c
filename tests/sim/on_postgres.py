"""The same worlds on PostgreSQL: one replica on a real server, in virtual time.

A replica renews its lease whatever happens, and looks with every beat for what it was not told: `World.looks`. Leases
are judged by the server's clock, which is a real one: that of a gateway that crashed is ended by hand.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import psycopg

from holdfast.core.errors import CommitFailed
from holdfast.store.postgres.client import Client
from holdfast.store.postgres.store import PostgresStore
from tests.sim.world import World

RARELY = 21_600_000
"""Milliseconds between two beats of a replica that is alone: days of virtual time pass, and each beat costs real time.
"""
WRITES = ("accepts", "outcomes")
ID_BITS = 80
"""Of a message's id that are random; all others number a replica, or what it asks."""
NUMBERS = count(1)


@dataclass
class WatchedDatabase:
    """What a World's engine tells and is told, of a database."""

    url: str
    max_size: int = 1 << 30
    reads: int = 0
    commits: int = 0
    fail_next: list[CommitFailed] = field(default_factory=list)

    def used(self, work: str) -> None:
        """A transaction begins. What keeps the lease is not counted."""
        if work in WRITES:
            self.commits += 1
            if self.fail_next:
                raise self.fail_next.pop(0)
        elif work != "presence":
            self.reads += 1


def watch(client: Client, database: WatchedDatabase) -> None:
    """Count the transactions of a client, each tried once, under the first word of its name."""
    work, attempt = client._name.split()[0], client._try

    def counted(slot: Any, work_on: Callable[..., Any]) -> Any:
        database.used(work)
        return attempt(slot, work_on)

    client._try = counted  # type: ignore[method-assign]


@dataclass
class PostgresWorld(World):
    engine: WatchedDatabase  # type: ignore[assignment]
    ledger: PostgresStore = field(init=False)  # type: ignore[assignment]

    @property
    def shared(self) -> PostgresStore:
        return self.ledger

    def make_store(self) -> Any:
        store = PostgresStore(
            self.engine.url,
            self.store_rules(),
            self.clock,
            lambda bits: 0 if bits == ID_BITS else next(NUMBERS),
            max_size=self.engine.max_size,
            threaded=False,
            lease=6 * RARELY,
            renew_every=RARELY,
        )
        for client in store._clients:
            watch(client, self.engine)
        return store

    @asynccontextmanager
    async def gateway(self, *, crash: bool = False) -> AsyncIterator[World]:
        async with super().gateway(crash=crash):
            yield self
        if self.ledger.failed is not None:
            end_leases(self.engine.url)

    def looks(self, seconds: float) -> int:
        return round(seconds * 1000 / RARELY)


def end_leases(url: str) -> None:
    """Whoever has one is dead, and its shards are free."""
    with psycopg.connect(url, options="-c search_path=holdfast") as connection:
        connection.execute("DELETE FROM members")
        connection.execute("DELETE FROM fences")
        connection.execute("UPDATE shards SET owner = NULL, epoch = epoch + 1")
