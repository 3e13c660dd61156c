"""The same worlds on PostgreSQL: one replica on a real server, in virtual time.

By design some things are otherwise there than with a store of its own, and the tests say so where it shows:
- a replica renews its lease whatever happens, and looks at the agenda with every beat: `World.looks`;
- what a gateway had claimed when it crashed stays its own until its lease is over, and is then freed by one that has
  been there for a whole lease: `World.takeover`;
- circuits and limits are the store's, so that none of their counts is lost by a crash.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import trio

from holdfast.core.errors import CommitFailed
from holdfast.core.fleet import LEASE, RENEW_EVERY
from holdfast.store.postgres.connection import Line
from holdfast.store.postgres.store import PostgresStore
from sim.world import World

RARELY = 21_600_000
"""Milliseconds between two beats of a replica that is alone: days of virtual time pass, and each beat costs real time.
"""
WRITES = ("accepts", "outcomes")


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


class WatchedLine(Line):
    def __init__(self, url: str, name: str, database: WatchedDatabase) -> None:
        super().__init__(url, name, threaded=False)
        self._database = database

    def _attempt(self, place: Any, work: Callable[..., Any]) -> Any:
        self._database.used(self._name.split()[0])
        return super()._attempt(place, work)


def replace_lines(store: PostgresStore, make: Callable[[str, str], Line]) -> None:
    """Give a store that has not begun to run other lines, made by URL and name."""
    lines = {attribute: line for attribute, line in vars(store).items() if isinstance(line, Line)}
    for attribute, line in lines.items():
        setattr(store, attribute, make(line._url, line._name))


@dataclass
class PostgresWorld(World):
    engine: WatchedDatabase  # type: ignore[assignment]
    ledger: PostgresStore = field(init=False)  # type: ignore[assignment]
    shared = True
    takeover = LEASE / 1000
    _crashed: bool = False

    def make_store(self) -> Any:
        """After a crash the beats come as they do in life, until those of the one that crashed are missed."""
        store = PostgresStore(
            self.engine.url,
            self.store_rules(),
            self.clock,
            lambda bits: 0,
            max_size=self.engine.max_size,
            threaded=False,
            lease=6 * RARELY,
            renew_every=RENEW_EVERY if self._crashed else RARELY,
        )
        replace_lines(store, lambda url, name: WatchedLine(url, name, self.engine))
        return store

    @asynccontextmanager
    async def gateway(self, *, crash: bool = False) -> AsyncIterator[World]:
        async with super().gateway(crash=crash), trio.open_nursery() as nursery:
            nursery.start_soon(self._beat_rarely)
            yield self
            nursery.cancel_scope.cancel()
        self._crashed = self.ledger.failed is not None
        if self._crashed:
            self._let_lease_end()

    async def _beat_rarely(self) -> None:
        await trio.sleep(2 * self.takeover)
        self.ledger._renew_every = RARELY

    def _let_lease_end(self) -> None:
        """As that of a replica with the beats of life does."""
        with psycopg.connect(self.engine.url) as connection:
            connection.execute("UPDATE holdfast.replicas SET lease_until = %s", (self.clock.now() + LEASE,))

    def looks(self, seconds: float) -> int:
        return round(seconds * 1000 / RARELY)
