"""Replicas as processes on one database, and queries on the database about them."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import trio

from holdfast.core import ownership
from tests.fleet.event_log import Life, Witness
from tests.support import harness
from tests.support.harness import PATIENCE, Gateway

STEP = 0.02


@dataclass(eq=False)
class Replica:
    """One life of a process, in one of the fleet's seats."""

    gateway: Gateway
    life: Life

    @property
    def pid(self) -> int:
        return self.gateway.process.pid


class Database:
    """Looks into the tables."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._url, options="-c search_path=holdfast") as connection:
            return connection.execute(query.encode(), parameters).fetchall()

    def numbers(self, pid: int) -> list[int]:
        """What the replica with this process is registered by; none if it was declared dead or went."""
        return [number for (number,) in self.ask("SELECT number FROM members WHERE name LIKE %s", f"%:{pid}")]

    def owner(self, host: str) -> int | None:
        """The process of the replica that owns a host."""
        found = self.ask(
            "SELECT name FROM members JOIN shards ON owner = number WHERE shard = %s", ownership.shard_of(host)
        )
        return int(found[0][0].rpartition(":")[2]) if found else None

    def shares(self) -> list[int]:
        """How many shards each replica owns that delivers."""
        query = "SELECT count(shard) FROM members LEFT JOIN shards ON owner = number WHERE delivers GROUP BY number"
        return [count for (count,) in self.ask(query)]

    def is_shared_out(self) -> bool:
        """Whether every shard has an owner, and every replica that delivers about its part."""
        shares = self.shares()
        return sum(shares) == ownership.SHARDS and min(shares) > ownership.SHARDS / len(shares) / 3

    def stored(self) -> dict[str, int]:
        """Every message that is not delivered, with its standing."""
        return {f"msg_{id.hex()}": standing for id, standing in self.ask("SELECT id, standing FROM messages")}

    def delivered(self) -> set[str]:
        return {f"msg_{id.hex()}" for (id,) in self.ask("SELECT id FROM delivered")}


class Fleet:
    """Seats, each with the replica that sits there now, or None while there is none."""

    def __init__(self, folder: Path, url: str, witness: Witness, **keys: object) -> None:
        self._folder = folder
        self._witness = witness
        self._keys = {"store__url": url, **keys}
        self.database = Database(url)
        self.seats: list[Replica | None] = []
        self._gateways: list[Gateway] = []

    async def start(self, number: int, *, seats: int = 0) -> None:
        """So many replicas at once; `seats` may be more than that."""
        self.seats = [None] * max(number, seats)
        async with trio.open_nursery() as nursery:
            for seat in range(number):
                nursery.start_soon(self.take, seat)
        await met(self.database.is_shared_out)

    async def take(self, seat: int) -> Replica:
        """A new life for a seat."""
        life = self._witness.new_life()
        start = partial(harness.start, self._folder / f"seat-{seat}", **self._keys)
        gateway = await trio.to_thread.run_sync(partial(start, delivery__user_agent=f"life-{life.number}"))
        self._gateways.append(gateway)
        replica = self.seats[seat] = Replica(gateway, life)
        return replica

    def owner(self, host: str) -> Replica | None:
        """Of a host:port, if its replica is present."""
        pid = self.database.owner(host)
        return next((replica for replica in self.present if replica.pid == pid), None)

    @property
    def present(self) -> list[Replica]:
        return [replica for replica in self.seats if replica is not None]

    async def kill(self, seat: int) -> None:
        replica = self.seats[seat]
        assert replica is not None
        self.seats[seat] = None
        replica.life.killed = self._witness.number()
        await trio.to_thread.run_sync(replica.gateway.kill)

    async def terminate(self, seat: int) -> int:
        """SIGTERM; the exit status."""
        replica = self.seats[seat]
        assert replica is not None
        self.seats[seat] = None
        return await trio.to_thread.run_sync(replica.gateway.stop)

    async def stop_past_its_lease(self, replica: Replica) -> None:
        """Let it stand still until the others have declared it dead, then let it go on until it is back."""
        database, pid = self.database, replica.pid
        before = database.numbers(pid)
        replica.life.stops.append(self._witness.number())
        os.kill(pid, signal.SIGSTOP)
        await met(lambda: not database.numbers(pid))
        replica.life.continued.append(self._witness.number())
        os.kill(pid, signal.SIGCONT)
        await met(lambda: set(database.numbers(pid)) - set(before))

    def events(self, name: str) -> list[dict[str, Any]]:
        """Of the logs of all seats."""
        logs = sorted(self._folder.glob("seat-*.log"))
        gateways = {gateway.log: gateway for gateway in self._gateways}
        return [event for log in logs for event in gateways[log].events() if event["event"] == name]

    def close(self) -> None:
        for gateway in self._gateways:
            gateway.close()


@contextmanager
def fleet_of(folder: Path, url: str, witness: Witness, **keys: object) -> Iterator[Fleet]:
    fleet = Fleet(folder, url, witness, **keys)
    try:
        yield fleet
    finally:
        fleet.close()


async def met(condition: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Wait until a condition of other processes holds; its value is returned."""
    with trio.move_on_after(patience):
        while True:
            value = await trio.to_thread.run_sync(condition)
            if value:
                return value
            await trio.sleep(STEP)
    raise AssertionError("the condition was never met")
