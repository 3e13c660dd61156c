"""Bytes of WAL for each step of a message's life, by groups of 64, independent of the machine's load and without the
full pages after a checkpoint.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import randbits
from typing import Any, NamedTuple

import trio

from holdfast.core.circuit import CircuitState
from holdfast.core.message import Attempt, AttemptKind, Entry, Fault, Message, Place, Standing, next_id
from holdfast.core.ownership import LEASE, SHARDS, shard_of
from holdfast.core.schedule import RetryAt
from holdfast.store.port import Accept, Accepted, Deliver, Fail, Operation
from holdfast.store.postgres import accept, outcomes, ownership_tables, rows
from holdfast.store.postgres.admission import NewMessage
from holdfast.store.postgres.client import Client
from holdfast.store.postgres.migration import prepare_database
from holdfast.store.postgres.state import Room
from holdfast.store.postgres.transactions import Connection
from tests.bench.database import Database
from tests.bench.fill import lane, message, settings
from tests.bench.fill_postgres import terms_of_now

GROUP = 64
GROUPS = 40
HOST = "127.0.0.1:9"
NUMBER = 1
PATIENCE = 30.0


class Ahead(NamedTuple):
    """Of one message of 1 KiB: accepted, delivered at once; or failed before it is delivered."""

    accepted: float
    delivered: float
    failed: float
    delivered_later: float


def write_ahead(database: Database) -> Ahead:
    prepare_database(database.url)
    life = _Life(database)
    try:
        accepted = life.measured(life.store)
        delivered = life.measured(life.deliver)
        life.measured(life.store)
        return Ahead(accepted, delivered, life.measured(life.fail), life.measured(life.deliver_later))
    finally:
        life.client.close()


class _Life:
    """Each step takes what the one before it left, a group at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.client = Client(database.url, "ahead", threaded=False)
        self._terms = replace(terms_of_now(), number=NUMBER, writer=2 * NUMBER)
        self._membership, _ = self._do(
            partial(ownership_tables.join, number=NUMBER, name="ahead", delivers=True, lease=LEASE)
        )
        self._owned = self._do(partial(ownership_tables.take_free, number=NUMBER, shards=range(SHARDS)))
        self._last = bytes(16)
        self._room = Room(is_measured=True)
        self._groups: list[list[Entry]] = []

    def measured(self, step: Callable[[], None]) -> float:
        before = self._database.wal()
        for _ in range(GROUPS):
            step()
        return (self._database.wal() - before) / (GROUPS * GROUP)

    def store(self) -> None:
        messages = [self._message() for _ in range(GROUP)]
        arrivals = [NewMessage(Accept(each), *rows.encode(each)) for each in messages]
        run = partial(accept.accept, self.client, arrivals, self._room, self._terms, within=PATIENCE)
        results, _ = trio.run(run)
        assert all(isinstance(result, Accepted) for result in results)
        self._groups.append([Entry(each, Place(Standing.ACTIVE, each.born)) for each in messages])

    def deliver(self) -> None:
        attempt = Attempt(1, AttemptKind.FIRST, self._terms.now, 1, status=200)
        self._record([Deliver(each, attempt, None) for each in self._groups.pop(0)])

    def fail(self) -> None:
        """By a fault of this side, so that the circuit stays enabled."""
        now, group = self._terms.now, self._groups.pop(0)
        attempt, step = Attempt(1, AttemptKind.FIRST, now, 1, status=500, fault=Fault.HERE), RetryAt(1, now, False)
        of_host = lane(HOST, CircuitState.ENABLED, settings(Path()), now)
        self._record([Fail(each, attempt, step, of_host) for each in group])
        place = Place(Standing.RETRY, now, step.due, step.retry, attempt.number)
        self._groups.append([Entry(each.message, place._replace(born=each.place.born)) for each in group])

    def deliver_later(self) -> None:
        attempt = Attempt(2, AttemptKind.RETRY, self._terms.now, 1, status=200)
        self._record([Deliver(each, attempt, None) for each in self._groups.pop(0)])

    def _message(self) -> Message:
        self._last = next_id(self._last, self._terms.now, randbits(80))
        return message(self._last, HOST, self._terms.now)

    def _record(self, operations: Sequence[Operation]) -> None:
        group = outcomes.prepare(operations, self._membership.run)
        shards = {shard_of(HOST): self._owned[shard_of(HOST)]}
        terms = replace(self._terms, writer=2 * NUMBER + 1)
        self._do(lambda connection: outcomes.write(connection, group, self._membership, shards, terms))
        self._membership.writes += 1

    def _do(self, work: Callable[[Connection], Any]) -> Any:
        return trio.run(partial(self.client.run, work, within=PATIENCE))
