"""Replicas in virtual time: each is a gateway with its own connections to one real database, with the same receivers.

There are no notifications in virtual time: a replica finds the messages of others with its next heartbeat.
"""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg
import trio

from holdfast.config import Config, build
from holdfast.core.ownership import SHARDS, shard_of
from holdfast.http.dial import Origin
from holdfast.store.postgres import ownership_tables
from holdfast.store.postgres.store import PostgresStore
from tests.sim.world import HOST, START, Request, World, settle
from tests.support.answers import GivenAnswer
from tests.support.database_link import DatabaseLink
from tests.support.trio_clock import TrioClock

LEASE = 6
BEAT = 1


@dataclass
class Replica(World):
    """One gateway of a fleet. `url` is its way to the database."""

    url: str = ""
    number: int = 0
    made: list[float] = field(default_factory=list)
    """When it began its attempts."""
    acknowledged: Counter[str] = field(default_factory=Counter)
    """How often a receiver told it that it has a message."""

    async def exchange(self, origin: Origin, head: bytes, body: bytes, deadline: float) -> GivenAnswer:
        self.made.append(self.now)
        answer = await super().exchange(origin, head, body, deadline)
        if answer.status == 200:
            self.acknowledged[head.partition(b"webhook-id: ")[2][:36].decode()] += 1
        return answer

    def compose(self) -> None:
        self.started_at = self.clock.now()
        self.ledger: Any = PostgresStore(
            self.url,
            self.store_rules(),
            self.clock,
            Random(self.number).getrandbits,
            max_size=1 << 30,
            threaded=False,
        )
        self.join(self.ledger)

    @property
    def held(self) -> int:
        """How many messages it has in memory."""
        return sum(len(lane.known) for lane in self.lanes.live.values())

    @property
    def shards(self) -> set[int]:
        return set(self.ledger._shards.owned)

    @property
    def member(self) -> int:
        """The number that it is registered under, 0 if it is not."""
        return int(self.ledger._member.number)


@dataclass
class Fleet:
    """Replicas that run, and what receivers saw of all of them."""

    url: str
    config: Config
    scripts: dict[str, Any] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    open: Counter[str] = field(default_factory=Counter)
    began: float = field(default_factory=trio.current_time)
    clock: TrioClock = field(default_factory=lambda: TrioClock(START))
    replicas: list[Replica] = field(default_factory=list)

    @asynccontextmanager
    async def running(self, count: int) -> AsyncIterator[list[Replica]]:
        """So many replicas, once each has its part of the hosts."""
        async with AsyncExitStack() as stack:
            replicas = [await stack.enter_async_context(self.replica()) for _ in range(count)]
            await self.until(lambda: all(len(each.shards) > SHARDS / count / 3 for each in replicas))
            await self.until(lambda: sum(len(each.shards) for each in replicas) == SHARDS)
            yield replicas

    @asynccontextmanager
    async def replica(self, link: DatabaseLink | None = None, *, ahead: int = 0) -> AsyncIterator[Replica]:
        """Over `link` if the test cuts it off. `ahead`: milliseconds that its clock is ahead of the others'."""
        replica = Replica(
            self.config,
            scripts=self.scripts,
            requests=self.requests,
            open=self.open,
            began=self.began,
            clock=TrioClock(START + ahead) if ahead else self.clock,
            url=self.url if link is None else link.url,
            number=len(self.replicas),
        )
        self.replicas.append(replica)
        async with replica.gateway():
            yield replica

    def bury(self, replica: Replica) -> None:
        """Declare it dead, as another one does after its lease."""
        with psycopg.connect(self.url, options="-c search_path=holdfast") as connection:
            renewals = connection.execute("SELECT number, renewals FROM members WHERE number = %s", (replica.member,))
            ownership_tables.bury(connection, dict(renewals.fetchall()))

    def owners(self, host: str = HOST) -> list[Replica]:
        """Those that take themselves for the owner: one that was cut off does so until it hears of it."""
        return [replica for replica in self.replicas if shard_of(host) in replica.shards]

    def owner(self, host: str = HOST) -> Replica:
        [owner] = self.owners(host)
        return owner

    def sent(self) -> Counter[str]:
        """How often each message was sent."""
        return Counter(request.id for request in self.requests)

    def most_open(self, host: str = HOST) -> int:
        return max((request.beside for request in self.requests if request.host == host), default=0)

    def of(self, name: str) -> list[int]:
        """A number of each replica's counters."""
        return [getattr(replica.counters, name) for replica in self.replicas]

    async def until(self, condition: Any, within: float = 60) -> None:
        """Wait in virtual time."""
        with trio.fail_after(within):
            while not condition():
                await trio.sleep(0.1)
        await settle()


def fleet(url: str, **sections: dict[str, Any]) -> Fleet:
    return Fleet(url, build(sections))
