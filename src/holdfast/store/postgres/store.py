"""The store that replicas share, behind the port.

    client      connection of                                     used by
    ------      -------------                                     -------
    accepts     new messages                                      Acceptor
    outcomes    every change of delivery and of operators         DeliveryWriter
    reads       delivery's reads, late notifications              DeliveryReader, ArrivalFeed, Acceptor
    status      operators' queries, requests between replicas     OperatorQueries, Requests
    presence    the lease, moves of shards, notifications         Member, OwnedShards
    moves       messages from a machine's own store               `take_in`; opened only while a spool has some

While the database is unreachable, new messages are refused at once. Outcomes stay in memory and are written when it is
back, and delivery's reads wait.
"""

import logging
import os
import socket
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Concatenate, ParamSpec

import trio

from holdfast.clock import Clock
from holdfast.core.circuit import CircuitState
from holdfast.core.errors import CommitFailed, StoreError, StoreUnreachable
from holdfast.core.ownership import LEASE, RENEW_EVERY, shard_of
from holdfast.core.store_rules import StoreRules
from holdfast.store.port import (
    SCARCE,
    Accept,
    DoneOrFailed,
    Operation,
    StoreListener,
    StoreRoom,
    StoreStatistics,
)
from holdfast.store.postgres import arrivals, outcomes, queries, schema, transfer
from holdfast.store.postgres.accept import Acceptor
from holdfast.store.postgres.arrival_feed import ArrivalFeed
from holdfast.store.postgres.changes import DeliveryWriter
from holdfast.store.postgres.client import Client, Clients
from holdfast.store.postgres.membership import Member
from holdfast.store.postgres.ownership_tables import Release, Renewal
from holdfast.store.postgres.queries import Faults
from holdfast.store.postgres.reads import DeliveryReader
from holdfast.store.postgres.requests import ANSWER, REQUEST, Requests
from holdfast.store.postgres.shards import OwnedShards
from holdfast.store.postgres.state import UNREACHABLE, StoreState
from holdfast.store.postgres.transactions import Connection, Result, reading
from holdfast.store.transfer import StoredMessage
from holdfast.store.waiter import Waiter

MOVED_WITHIN = 10.0
"""Seconds in which a page of messages from another store has to be stored: others may wait behind them."""
SHOWN_WITHIN = 5.0
"""Seconds that an operator waits for the database."""
STATISTICS_WITHIN = 2.0
"""Seconds after which the statistics are the last known ones."""

Given = ParamSpec("Given")

_logger = logging.getLogger("holdfast.store")


class PostgresStore:
    """A SharedStore. `run` keeps it going. `threaded` False does everything on the loop, for virtual time."""

    def __init__(
        self,
        url: str,
        rules: StoreRules,
        clock: Clock,
        random_bits: Callable[[int], int],
        *,
        max_size: int,
        delivers: bool = True,
        threaded: bool = True,
        lease: int = LEASE,
        renew_every: int = RENEW_EVERY,
        follow_time: Callable[[int, int | None], int] = lambda time, asked_at: 0,
    ) -> None:
        self.path = schema.shown(url)
        name = _own_name()
        self._clients = clients = Clients.of(url, name, threaded)
        self._state = state = StoreState(rules, clock, max_size, follow_time)
        self._shards = shards = OwnedShards(clients.presence, self)
        self._member = member = Member(
            clients.presence,
            state,
            shards,
            self,
            random_bits,
            name=name,
            delivers=delivers,
            listens=threaded,
            lease=lease,
            renew_every=renew_every,
        )
        self._feed = ArrivalFeed(clients.reads, state, shards)
        self._acceptor = Acceptor(clients.accepts, clients.reads, state, member, shards, self._feed, random_bits)
        self._writer = DeliveryWriter(clients.outcomes, state, member, shards, self._feed)
        self._accepting, self._writing = self._acceptor.queue, self._writer.queue
        self._requests = Requests(clients.status, state, member, random_bits)
        self._queries = OperatorQueries(clients.status, state)
        self._statistics: StoreStatistics | None = None
        self._assign_port()

    def _assign_port(self) -> None:
        """The port's methods that one part implements."""
        shards, shown = self._shards, self._queries
        reader = DeliveryReader(self._clients.reads, self._state, shards)
        self.mint = self._acceptor.mint
        self.survey, self.agenda, self.oldest_finished = reader.survey, reader.agenda, reader.oldest_finished
        self.message_view, self.message_views = shown.message_view, shown.message_views
        self.dead, self.waiting = shown.dead, shown.waiting
        self.circuit, self.circuits = shown.circuit, shown.circuits
        self.owns, self.is_leaving, self.left = shards.owns, shards.is_leaving, shards.left
        self.owner_of, self.ask, self.step_back = shards.owner_of, self._requests.ask, self._member.step_back

    # -- its life ----------------------------------------------------------------------------------------------------

    @property
    def listener(self) -> StoreListener:
        return self._state.listener

    @listener.setter
    def listener(self, listener: StoreListener) -> None:
        self._state.listener = listener

    def configure(self, rules: StoreRules) -> None:
        """Other rules from the next transaction on."""
        self._state.rules = rules

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until cancelled. Then it leaves the fleet, so that others take over at once."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._accepting.run)
                nursery.start_soon(self._writing.run)
                nursery.start_soon(self._feed.run)
                nursery.start_soon(self._acceptor.hints.run)
                nursery.start_soon(self._requests.serve)
                nursery.start_soon(partial(self._member.run, task_status=task_status))
        except* CommitFailed as failures:
            self._give_up(failures)
        finally:
            with trio.CancelScope(shield=True):
                await self._leave()

    def _give_up(self, failures: BaseExceptionGroup[CommitFailed]) -> None:
        error: BaseException = failures
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        assert isinstance(error, CommitFailed)
        self._state.fail(error)
        self._accepting.refuse(error)
        self._writing.refuse(error)

    async def _leave(self) -> None:
        if not self.unreachable and self.failed is None:
            try:
                await self._member.leave()
            except StoreError as error:
                _logger.warning("the lease was not given back: %s", error)
        self.close()

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def end_by(self, moment: float) -> None:
        """Wait for nothing after this moment, by trio's time."""
        for client in self._clients:
            client.end_by(moment)

    @property
    def unreachable(self) -> bool:
        return self._state.unreachable

    @property
    def failed(self) -> CommitFailed | None:
        return self._state.failed

    @property
    def broken(self) -> trio.Event:
        return self._state.broken

    # -- writing -----------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        return len(self._accepting) + len(self._writing)

    @property
    def commit_age(self) -> float:
        """0 while the database is unreachable: nothing is under way, it waits."""
        return 0.0 if self.unreachable else self._writing.age

    @property
    def full(self) -> bool:
        return self._state.full

    async def room(self) -> StoreRoom:
        """As last measured."""
        used = self._state.room.used
        return StoreRoom(used, self.full or used > SCARCE * self._state.max_size, self.full)

    async def statistics(self) -> StoreStatistics:
        """As of now; while the database is unreachable, the last known ones."""
        terms = self._member.terms(0)
        with suppress(StoreUnreachable):
            self._statistics = await self._queries.show(
                lambda connection, faults: queries.statistics(connection, terms, self.path), STATISTICS_WITHIN
            )
        return self._statistics or _no_statistics(self.path, self._state.max_size)

    def submit(self, operation: Operation) -> None:
        problem = self._problem_with(operation)
        if problem is None:
            (self._accepting if isinstance(operation, Accept) else self._writing).put(operation)
        elif isinstance(operation.done, DoneOrFailed):
            operation.done(problem)

    def _problem_with(self, operation: Operation) -> StoreError | None:
        """Only outcomes wait for the database: they have happened. Anything else fails at once."""
        state = self._state
        if state.unreachable and state.failed is None and not isinstance(operation, outcomes.TOGETHER):
            return StoreUnreachable(UNREACHABLE)
        return state.failed

    async def perform(self, operation: Operation) -> Any:
        problem = self._problem_with(operation)
        if problem is not None:
            raise problem
        waiter = operation.done = Waiter()
        self.submit(operation)
        return await trio.lowlevel.wait_task_rescheduled(waiter.abandon)

    async def take_in(self, page: Sequence[StoredMessage]) -> list[Any]:
        """Stores messages of another store, with their places, attempts and keys. Results are those of an Accept; a
        message that is or was here is a Duplicate of itself. Raises StoreUnreachable.
        """
        work = partial(transfer.take, page=page, room=self._state.room, terms=self._member.terms(0))
        try:
            results: list[Any] = await self._clients.moves.run(work, within=MOVED_WITHIN)
        except StoreUnreachable as error:
            self._state.disconnected(error)
            raise
        self._feed.add([each.message.id for each in page if self.owns(each.message.host)])
        return results

    # -- the fleet ---------------------------------------------------------------------------------------------------

    @property
    def is_swept_here(self) -> bool:
        """One replica sweeps for all: the owner of the first shard."""
        return 0 in self._shards.owned

    def others(self) -> list[int]:
        return sorted(set(self._shards.owners.values()) - {self._member.number})

    @property
    def are_complete(self) -> bool:
        return self._shards.are_complete

    # -- events of the membership ------------------------------------------------------------------------------------

    def abort(self) -> None:
        for client in self._clients:
            client.abort()

    def lost(self) -> None:
        self._feed.clear()
        self._writer.drop()
        self.listener.ownership_lost()

    def notified(self, payloads: Sequence[str]) -> None:
        for payload in payloads:
            if ids := arrivals.named(payload):
                self._feed.add(ids)
            elif payload in (REQUEST, ANSWER):
                self._requests.look()

    async def look(self, renewal: Renewal) -> None:
        """Nothing that is known is read again."""
        if renewal.requests:
            self._requests.look()
        if renewal.arrived > len(self._feed.known):
            await self._feed.find(self._shards.staying, renewal.arrived + arrivals.SHELVED_AT_ONCE)

    async def shelve_arrived(self, shards: Mapping[int, int]) -> None:
        """What can't be shelved now the beats find; see look."""
        self._feed.known.forget(shards)
        with suppress(StoreUnreachable):
            while await self.perform(arrivals.ShelveArrived(shards)) >= arrivals.SHELVED_AT_ONCE:
                pass

    async def gained(self, shards: Collection[int]) -> None:
        """Nobody was notified of what has arrived meanwhile."""
        self.listener.hosts_gained(lambda host: shard_of(host) in shards)
        await self._feed.find(shards, arrivals.SHELVED_AT_ONCE)

    def let_go(self) -> Collection[int]:
        return {shard_of(host) for host in self.listener.hosts_leaving()}

    async def release(self, shards: Mapping[int, int]) -> None:
        if shards:
            await self.perform(Release({shard: self._shards.owned[shard] for shard in shards}, shards))


def _shown(
    query: Callable[Concatenate[Connection, Faults, Given], Result],
) -> Callable[Concatenate["OperatorQueries", Given], Coroutine[Any, Any, Result]]:
    async def show(self: "OperatorQueries", /, *values: Given.args, **named: Given.kwargs) -> Result:
        return await self.show(lambda connection, faults: query(connection, faults, *values, **named))

    return show


class OperatorQueries:
    """Answers operators. Records that can't be read are reported once."""

    def __init__(self, client: Client, state: StoreState) -> None:
        self._client = client
        self._state = state

    async def show(self, query: Callable[[Connection, Faults], Result], within: float = SHOWN_WITHIN) -> Result:
        if self._state.unreachable:
            raise StoreUnreachable(UNREACHABLE)
        faults: Faults = []
        result = await self._client.run(reading(lambda connection: query(connection, faults)), within=within)
        for fault in faults:
            self._state.report_unreadable(*fault)
        return result

    message_view = _shown(queries.message_view)
    message_views = _shown(queries.message_views)
    dead = _shown(queries.dead)
    waiting = _shown(queries.waiting)
    circuit = _shown(queries.circuit)
    circuits = _shown(queries.circuits)


def _no_statistics(path: str, max_size: int) -> StoreStatistics:
    circuits = dict.fromkeys(CircuitState, 0)
    return StoreStatistics(path, 0, 0, max_size, 0, 0, 0, 0, circuits, None, None, None, False)


def _own_name() -> str:
    """Short enough for a connection's name. The end of a host's name distinguishes it from similar ones."""
    return f"{socket.gethostname()}:{os.getpid()}"[-40:]
