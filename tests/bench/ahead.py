"""Bytes that the server writes ahead for each step of a message's life, by groups of 64: the machine's load is no part
of it, nor are the whole pages that are written after a checkpoint.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from secrets import randbits
from typing import NamedTuple

from bench.database import Database
from bench.fill import message
from bench.fill_postgres import terms_of_now
from holdfast.core.message import Attempt, Entry, Fault, Kind, Message, Place, Standing, next_id
from holdfast.core.schedule import RetryAt
from holdfast.store.port import Accept, Ask, Deliver, Fail, Operation, Report
from holdfast.store.postgres import accepting, claiming, outcomes, rows
from holdfast.store.postgres.connection import Connection, connect
from holdfast.store.postgres.contact import make_contact
from holdfast.store.postgres.terms import Terms

GROUP = 64
GROUPS = 40
HOST = "127.0.0.1:9"


class Ahead(NamedTuple):
    """Of one message of 1 KiB."""

    accepted: float
    failed: float
    claimed: float
    delivered: float


def write_ahead(database: Database) -> Ahead:
    make_contact(database.url)
    terms = replace(terms_of_now(), number=1, writer=2)
    with connect(database.url, "ahead") as connection:
        life = _Life(connection, terms)
        return Ahead(*(_measured(database, step) for step in (life.accept, life.fail, life.claim, life.deliver)))


def _measured(database: Database, step: Callable[[], None]) -> float:
    before = database.wal()
    for _ in range(GROUPS):
        step()
    return (database.wal() - before) / (GROUPS * GROUP)


class _Life:
    """Each step takes what the one before it left, a group at a time."""

    def __init__(self, connection: Connection, terms: Terms) -> None:
        self._connection = connection
        self._terms = terms
        self._last = bytes(16)
        self._lanes: set[str] = set()
        self._room = accepting.Room(is_measured=True)
        self._accepted: list[list[Entry]] = []
        self._claimed: list[list[Entry]] = []

    def accept(self) -> None:
        messages = [self._message() for _ in range(GROUP)]
        arrivals = [accepting.Arrival(Accept(each), *rows.encode(each), offered=True) for each in messages]
        accepting.accept(self._connection, arrivals, self._room, self._lanes, self._terms)
        self._accepted.append([Entry(each, Place(Standing.ACTIVE, each.born), self._terms.number) for each in messages])

    def fail(self) -> None:
        """By a fault of this side, so that the circuit stays enabled."""
        now = self._terms.now
        attempt = Attempt(1, Kind.FIRST, now, 1, status=500, fault=Fault.HERE)
        self._record(
            [Fail(each, attempt, RetryAt(1, now, False), None, _report(attempt)) for each in self._accepted.pop(0)]
        )

    def claim(self) -> None:
        ask = Ask(HOST, self._terms.now, 0, GROUP, None, self._held())
        (view,) = claiming.survey(self._connection, [ask], self._terms)
        assert len(view.due) == GROUP, f"{len(view.due)} were claimed"
        self._claimed.append(list(view.due))

    def deliver(self) -> None:
        attempt = Attempt(2, Kind.RETRY, self._terms.now, 1, status=200)
        self._record([Deliver(each, attempt, None, _report(attempt)) for each in self._claimed.pop(0)])

    def _message(self) -> Message:
        self._last = next_id(self._last, self._terms.now, randbits(80))
        return message(self._last, HOST, self._terms.now)

    def _held(self) -> frozenset[bytes]:
        return frozenset(each.message.id for group in self._claimed for each in group)

    def _record(self, operations: Sequence[Operation]) -> None:
        for verdict in outcomes.record(self._connection, operations, self._terms):
            assert not verdict.fenced


def _report(attempt: Attempt) -> Report:
    return Report(0, attempt.at, attempt.at + attempt.duration, False, attempt.fault, 0)
