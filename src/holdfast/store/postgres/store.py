"""The store that replicas share, behind the port.

Five connections, each with what may wait for nothing else: new messages; outcomes and every other change of delivery;
what delivery reads; what operators ask; and the lease, which also listens. A sixth is there while messages come from a
store of this machine's. While the database is unreachable new messages are refused at once, outcomes stay in memory and
are written when it is back, and whoever asked for work waits.
"""

import logging
import os
import socket
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import trio

from holdfast.clock import Clock
from holdfast.core.circuit import CircuitState
from holdfast.core.errors import CommitFailed, Fenced, RowsLocked, StoreError, StoreUnreachable
from holdfast.core.message import Entry, Message, MessageId, MessageState, Place, Standing, next_id
from holdfast.core.ownership import LEASE, RENEW_EVERY, SHARDS, shard_of
from holdfast.core.store_rules import WATERMARK, StoreRules
from holdfast.store.batching import Waiter, group_size
from holdfast.store.port import (
    ALL_CLASSES,
    NEVER,
    NO_LIMIT,
    SCARCE,
    Accept,
    Accepted,
    Agenda,
    BulkResult,
    CircuitView,
    Commit,
    DeadFilter,
    Hearing,
    LaneChange,
    LaneQuery,
    LaneView,
    MessageView,
    OldestFinished,
    Operation,
    ReplayDead,
    Retried,
    RetryNow,
    StoreListener,
    StoreRoom,
    StoreStatistics,
    lane_changes,
)
from holdfast.store.postgres import accept, arrivals, outcomes, queries, reads, rows, schema, transfer
from holdfast.store.postgres.changes import WORKED_WITHIN, Change, group_size_of, is_urgent, left_by
from holdfast.store.postgres.client import Client
from holdfast.store.postgres.connection import Connection, Work, reading
from holdfast.store.postgres.membership import Member
from holdfast.store.postgres.ownership import Release, Renewal
from holdfast.store.postgres.queries import Faults
from holdfast.store.postgres.requests import ANSWER, REQUEST, Requests
from holdfast.store.postgres.rows import Terms
from holdfast.store.postgres.write_queue import TRY_AGAIN_AFTER, WriteQueue
from holdfast.store.transfer import StoredMessage

ANSWER_WITHIN = 5.0
"""Seconds after which whoever sent a webhook is told that the store is unreachable, if it does not say so itself."""
MOVED_WITHIN = 10.0
"""The same for a page of messages that come from another store: someone may wait behind them."""
LOCKED_WITHIN = "200ms"
"""For rows that delivery writes: they are its own, and whoever else has locked some holds up only their lanes."""
SHOWN_WITHIN = 5.0
"""Seconds that an operator waits for what the database has."""
STATISTICS_WITHIN = 2.0
"""Seconds after which the figures are those that were last known."""
LANES_A_SURVEY = 16
FAULTS_TOLD = 10_000
AWAY = "the database can't be reached"

Result = TypeVar("Result")

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
        self._rules = rules
        self._clock = clock
        self._random_bits = random_bits
        self._max_size = max_size
        self._follow_time = follow_time
        name = _own_name()
        self._accepts, self._reads, self._shows, self._moves = (
            Client(url, f"{work} {name}", threaded=threaded) for work in ("accepts", "reads", "status", "moves")
        )
        self._writes = Client(url, f"outcomes {name}", threaded=threaded, lock_timeout=LOCKED_WITHIN)
        self._presence = Client(url, f"presence {name}", threaded=threaded, listens=True)
        self._member = Member(
            self._presence,
            clock,
            random_bits,
            self,
            name=name,
            delivers=delivers,
            listens=threaded,
            lease=lease,
            renew_every=renew_every,
        )
        self._arrived = arrivals.Known()
        self._named: list[MessageId] = []
        self._own: dict[MessageId, Entry] = {}
        """What was accepted here, and has to wait for others that were before."""
        self._arrived_there: list[MessageId] = []
        self._was_named = trio.Event()
        self._hints = arrivals.Hints(self._send_hints, lambda: self._member.listening)
        self._holds_hints = False
        self._room = accept.Room()
        self._last_id = bytes(16)
        self._unsure: Sequence[Operation] = ()
        self._overtaken: Sequence[Operation] = ()
        """What was to be written when nobody heard whether it was."""
        self._earliest_wake = NEVER
        self._statistics: StoreStatistics | None = None
        self._told: set[tuple[str, str]] = set()
        self._accepting = WriteQueue(self._accept, group_size, self._tell_accepts)
        self._writing = WriteQueue(
            self._write,
            group_size_of,
            self._tell,
            patient=(*outcomes.TOGETHER, arrivals.ShelveArrived, Release),
            is_urgent=is_urgent,
            lane_of=outcomes.lane_of,
        )
        self.away = True
        self._trouble = ""
        self._last_contact: int | None = None
        self._is_apart = False
        self.failed: CommitFailed | None = None
        self.broken = trio.Event()
        self.listener = StoreListener()
        self._requests = Requests(
            self._shows, random_bits, lambda: self._number, lambda request: self.listener.requested(request)
        )

    # -- its life ----------------------------------------------------------------------------------------------------

    def configure(self, rules: StoreRules) -> None:
        """Other numbers from the next transaction on."""
        self._rules = rules

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write until cancelled; then go out of the fleet, so that others take over at once."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._accepting.run)
                nursery.start_soon(self._writing.run)
                nursery.start_soon(self._take_arrivals)
                nursery.start_soon(self._hints.run)
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
        self.failed = error
        self.broken.set()
        self.listener.store_failed(error)
        self._accepting.refuse(error)
        self._writing.refuse(error)

    async def _leave(self) -> None:
        if not self.away and self.failed is None:
            try:
                await self._member.leave()
            except StoreError as error:
                _logger.warning("the lease was not given back: %s", error)
        self.close()

    def close(self) -> None:
        for client in self._clients:
            client.close()

    @property
    def _clients(self) -> tuple[Client, ...]:
        return (self._accepts, self._writes, self._reads, self._shows, self._presence, self._moves)

    def end_by(self, moment: float) -> None:
        """Wait for nothing after this moment, by trio's time."""
        for client in self._clients:
            client.end_by(moment)

    # -- what the membership tells -----------------------------------------------------------------------------------

    def owns(self, host: str) -> bool:
        """Whether this replica delivers to a host."""
        return shard_of(host) in self._member.owned

    @property
    def is_swept_here(self) -> bool:
        """One replica does it for all: the owner of the first shard."""
        return 0 in self._member.owned

    def joined(self, time: int) -> None:
        self._follow_time(time, None)

    def connected(self, renewal: Renewal, asked_at: int) -> int:
        jump = self._follow_time(renewal.time, asked_at)
        self.away = False
        self.listener.lease_renewed(self._member.begins_until, renewal.run)
        if self._trouble:
            self._trouble = ""
            self.listener.store_reachable(None)
        if jump and not self._is_apart:
            self.listener.clock_jumped(jump)
        was_cut_off = self._last_contact is None or asked_at - self._last_contact > self._member.lease
        if was_cut_off or self._is_apart != bool(jump):
            self.listener.store_reconnected()
        self._last_contact, self._is_apart = asked_at, bool(jump)
        return jump

    def disconnected(self, error: StoreUnreachable) -> None:
        if not self.away or str(error) != self._trouble:
            self.listener.store_reachable(error)
        self.away, self._trouble = True, str(error)

    def abort(self) -> None:
        for client in self._clients:
            client.abort()

    def lost(self) -> None:
        """What waits to be written was decided for shards that are another's now."""
        self._arrived.clear()
        self._own.clear()
        self._unsure = ()
        self._overtaken = self._writing.under_way
        self._writing.drop(Fenced())
        self.listener.ownership_lost()

    async def shelve_arrived(self, shards: Mapping[int, int]) -> None:
        """What can't go there now the beats find; see look."""
        self._arrived.forget(shards)
        with suppress(StoreUnreachable):
            while await self.perform(arrivals.ShelveArrived(shards)) >= arrivals.SHELVED_AT_ONCE:
                pass

    async def gained(self, shards: Collection[int]) -> None:
        """Nobody was told of what has arrived meanwhile."""
        self.listener.hosts_gained(lambda host: shard_of(host) in shards)
        await self._find_arrived(shards, arrivals.SHELVED_AT_ONCE)

    def is_leaving(self, host: str) -> bool:
        """Whether a host goes to another replica: nothing more begins for it here."""
        return self._member.are_moving and self._member.is_leaving(shard_of(host))

    def left(self) -> None:
        self._member.left()

    def let_go(self) -> Collection[int]:
        return {shard_of(host) for host in self.listener.hosts_leaving()}

    async def release(self, shards: Mapping[int, int]) -> None:
        if shards:
            await self.perform(Release({shard: self._member.owned[shard] for shard in shards}, shards))

    def notified(self, payloads: Sequence[str]) -> None:
        for payload in payloads:
            if ids := arrivals.named(payload):
                self.arrived(ids)
            elif payload in (REQUEST, ANSWER):
                self._requests.look()

    def arrived(self, ids: list[MessageId]) -> None:
        self._named += ids
        self._was_named.set()

    def measured(self, used: int) -> None:
        self._room.measure(used)

    def step_back(self, steps_back: bool) -> None:
        self._member.step_back(steps_back)

    async def look(self, renewal: Renewal) -> None:
        """Notifications may have got lost. Nothing that is known is read again."""
        if renewal.requests:
            self._requests.look()
        if renewal.arrived > len(self._arrived):
            shards = self._member.owned.keys() - self._member.leaving.keys()
            await self._find_arrived(shards, renewal.arrived + arrivals.SHELVED_AT_ONCE)

    async def _find_arrived(self, shards: Collection[int], most: int) -> None:
        find = partial(arrivals.unknown, shards=shards, known=self._arrived, limit=most)
        self.arrived(await self._reads.run(find, within=WORKED_WITHIN))

    async def _take_arrivals(self) -> None:
        """Read the messages that were accepted elsewhere, in the order in which they were told of."""
        while True:
            await self._was_named.wait()
            self._was_named = trio.Event()
            ids, self._named = [id for id in self._named if id not in self._arrived], []
            own, self._own = self._own, {}
            if not ids and not own:
                continue
            try:
                with self._arrived.noting_left() as left:
                    found = await arrivals.read(self._reads, ids, own, self._arrived, within=WORKED_WITHIN)
            except StoreUnreachable as error:
                self.disconnected(error)  # The first beat after it finds them.
                continue
            for id, what in found.broken:
                self._tell_fault("messages", id.hex(), what)
            arrived = [entry for entry in found.entries if entry.message.id not in left and self._is_new(entry)]
            self.listener.committed(Commit(0, 0.0, arrived=arrived))

    def _is_new(self, entry: Entry) -> bool:
        """Whether delivery takes an arrived message: it has it not yet. A host's next owner finds its own on disk."""
        id, host = entry.message.id, entry.message.host
        if not self.owns(host) or self.is_leaving(host) or id in self._arrived:
            return False
        self._arrived.add(entry.message, entry.place.born)
        return True

    # -- what operators ask of other replicas ------------------------------------------------------------------------

    def owner_of(self, host: str) -> int | None:
        return self._member.owners.get(shard_of(host))

    def others(self) -> list[int]:
        return sorted(set(self._member.owners.values()) - {self._number})

    @property
    def are_complete(self) -> bool:
        return len(self._member.owners) == SHARDS

    async def ask(self, owner: int, request: bytes) -> bytes:
        return await self._requests.ask(owner, request)

    @property
    def _number(self) -> int:
        return 0 if self._member.membership is None else self._member.membership.number

    # -- writing -----------------------------------------------------------------------------------------------------

    def mint(self, now: int) -> MessageId:
        self._last_id = next_id(self._last_id, now, self._random_bits(80))
        return self._last_id

    @property
    def pending(self) -> int:
        return len(self._accepting) + len(self._writing)

    @property
    def commit_age(self) -> float:
        """While the database is unreachable nothing is under way: it waits."""
        return 0.0 if self.away else self._writing.age

    @property
    def full(self) -> bool:
        return self._room.used > WATERMARK * self._max_size

    def _trouble_with(self, operation: Operation) -> StoreError | None:
        """Only what has happened waits for the database: whoever wants something to happen had better hear of it."""
        if self.failed is None and self.away and not isinstance(operation, outcomes.TOGETHER):
            return StoreUnreachable(AWAY)
        return self.failed

    def submit(self, operation: Operation) -> None:
        trouble = self._trouble_with(operation)
        if trouble is None:
            (self._accepting if isinstance(operation, Accept) else self._writing).put(operation)
        elif isinstance(operation.done, Hearing):
            operation.done(trouble)

    async def perform(self, operation: Operation) -> Any:
        trouble = self._trouble_with(operation)
        if trouble is not None:
            raise trouble
        waiter = operation.done = Waiter()
        self.submit(operation)
        return await trio.lowlevel.wait_task_rescheduled(waiter.abandon)

    async def _accept(self, operations: Sequence[Operation]) -> list[Any]:
        coming = [
            accept.Arrival(operation, *rows.encode(operation.message))
            for operation in operations
            if isinstance(operation, Accept)
        ]
        terms = self._terms(0)
        self._holds_hints = bool(terms.owners) and not self._hints.go_along()
        if self._holds_hints:
            terms = replace(terms, owners={})
        try:
            with self._arrived.noting_left() as left:
                results, arrived = await accept.accept(self._accepts, coming, self._room, terms, within=ANSWER_WITHIN)
                self._arrived_there = [id for id in arrived if id not in left]
        except StoreUnreachable as error:
            self.disconnected(error)
            raise
        return results

    async def _send_hints(self, ids: Sequence[MessageId], shards: Sequence[int]) -> None:
        channels, payloads = arrivals.notifications(ids, shards, self._terms(0))
        if channels:
            with suppress(StoreUnreachable):  # The owners' next beats find them.
                values = {"channels": channels, "payloads": payloads}
                await self._reads.execute(arrivals.TELL, values, within=WORKED_WITHIN)

    async def take_in(self, page: Sequence[StoredMessage]) -> list[Any]:
        """Messages of another store, with all that is known of them. Results as those of an Accept: one that is here
        or was is a Duplicate of itself. Raises StoreUnreachable.
        """
        work = partial(transfer.take, page=page, room=self._room, terms=self._terms(0))
        try:
            results: list[Any] = await self._moves.run(work, within=MOVED_WITHIN)
        except StoreUnreachable as error:
            self.disconnected(error)
            raise
        self.arrived([each.message.id for each in page if self.owns(each.message.host)])
        return results

    async def _write(self, operations: Sequence[Operation]) -> list[Any]:
        """One transaction. What only the owner may write passes the fence, and is dropped where it does not."""
        if operations is self._overtaken:
            return [Fenced()] * len(operations)
        membership = self._member.membership
        if membership is None:
            raise StoreUnreachable("this replica has not joined the fleet yet")
        if self.away:
            raise StoreUnreachable(AWAY)  # The next beat finds out whether it is back.
        owned = dict(self._member.owned)
        group = outcomes.prepare(operations, membership.run) if isinstance(operations[0], outcomes.TOGETHER) else None
        if group is not None and not group.shards <= owned.keys():
            return await self._write_own(operations, membership.run)
        if isinstance(operations[0], Release) and not operations[0].shards.items() <= owned.items():
            return [Fenced()]
        if group is not None:
            group.younger = self._arrived.younger
        shards = {} if group is None else {shard: owned[shard] for shard in group.shards}
        change = Change(operations, group, membership, shards, self._terms(1), self._unsure)
        try:
            results, self._earliest_wake = await change.run(self._writes)
        except RowsLocked:
            self._unsure = ()
            raise
        except StoreUnreachable as error:
            self._unsure = operations
            self.disconnected(error)
            raise
        except Fenced:
            self._member.lose()
            return [Fenced()] * len(operations)
        self._unsure = ()
        return results

    async def _write_own(self, operations: Sequence[Operation], run: int) -> list[Any]:
        """Without those for hosts that went to another replica since they were put."""
        own = [each for each in operations if outcomes.prepare([each], run).shards <= self._member.owned.keys()]
        written = dict(zip(map(id, own), await self._write(own) if own else (), strict=True))
        return [written.get(id(each), Fenced()) for each in operations]

    def _tell_accepts(self, operations: Sequence[Operation], results: Sequence[Any]) -> None:
        in_order = self._are_first()
        accepted: list[Message] = []
        arrived: list[Entry] = []
        for operation, result in zip(operations, results, strict=True):
            if type(result) is Accepted and isinstance(operation, Accept):
                entry = self._own_entry(operation, in_order)
                if entry is not None and self._is_new(entry):
                    arrived.append(entry)
                accepted.append(operation.message)
            elif isinstance(result, StoreUnreachable) and not isinstance(operation.done, Hearing):
                continue
            if operation.done is not None:
                operation.done(result)
        self.listener.committed(Commit(len(operations), self._accepting.last, accepted, arrived, is_scarce=self.full))

    def _are_first(self) -> bool:
        """Whether nothing that another replica accepted before is still to be heard of."""
        unheard = [id for id in self._arrived_there if id not in self._arrived]
        self._arrived_there = []
        if unheard:
            self.arrived(unheard)
        return not self._named and not self._own

    def _own_entry(self, operation: Accept, in_order: bool) -> Entry | None:
        """An accepted message for this replica's delivery. None: its owner was notified, or it waits for its turn."""
        message = operation.message
        if not self.owns(message.host) or self.is_leaving(message.host):
            if self._holds_hints:
                self._hints.hold(message)
            return None
        if not in_order:
            self._own[message.id] = Entry(message, accept.place_of(operation))
            return None
        if operation.place is not None:
            return Entry(message, operation.place._replace(standing=Standing.ACTIVE))
        return Entry(message, Place(Standing.ACTIVE, message.born, message.born if message.is_delayed else 0))

    def _tell(self, operations: Sequence[Operation], results: Sequence[Any]) -> None:
        changed: list[LaneChange] = []
        for operation, result in zip(operations, results, strict=True):
            if isinstance(result, (Fenced, StoreUnreachable)):
                if isinstance(operation.done, Hearing):
                    operation.done(result)
                continue
            for id in left_by(operation, result):
                self._arrived.leave(id)
            if isinstance(operation, Release):
                self._arrived.forget(operation.shards)
                self._member.released(operation.shards, operation.to)
            if operation.done is not None:
                operation.done(result)
            if isinstance(operation, ReplayDead) and isinstance(result, BulkResult):
                self.arrived(result.ids)  # Each is new to its owner, who sees that it is a replay.
            elif isinstance(result, (BulkResult, Retried)):
                changed += [change for change in lane_changes(operation, result) if self.owns(change.host)]
                if isinstance(operation, RetryNow) and result is Retried.REPLAYED:
                    self.arrived([operation.id])
        commit = Commit(len(operations), self._writing.last, (), (), changed, self._earliest_wake, self.full)
        self.listener.committed(commit)

    def _terms(self, connection: int) -> Terms:
        membership, number = self._member.membership, self._number
        owners = self._member.owners if self._member.notifies else {}
        if membership is not None and membership.run != self._rules.run:
            self._rules = replace(self._rules, run=membership.run)
        owned = self._member.owned.keys()
        return Terms(self._rules, number, 2 * number + connection, self._clock.now(), self._max_size, owners, owned)

    # -- reading -----------------------------------------------------------------------------------------------------

    async def survey(self, asks: Sequence[LaneQuery], bytes_wanted: int = NO_LIMIT) -> list[LaneView]:
        views: list[LaneView] = []
        while len(views) < len(asks) and bytes_wanted >= 0:
            some = asks[len(views) : len(views) + LANES_A_SURVEY]
            read = await self._patiently(reading(partial(reads.survey, asks=some, owned=self._member.owned)))
            bytes_wanted -= sum(view.size for view in read)
            views += read
        return views

    async def agenda(
        self, now: int, limit: int, skip: Container[str], classes: Container[int] = ALL_CLASSES, since: int = 0
    ) -> Agenda:
        def read(connection: Connection) -> Agenda:
            return reads.agenda(connection, self._member.owned, now, limit, skip, classes, since)

        return await self._patiently(reading(read))

    async def oldest_finished(self) -> OldestFinished:
        return await self._patiently(reading(queries.oldest_finished))

    async def _patiently(self, work: Work[Result]) -> Result:
        """For whoever can only wait until the database is back."""
        while True:
            if not self.away:
                try:
                    return await self._reads.run(work, within=WORKED_WITHIN)
                except StoreUnreachable as error:
                    self.disconnected(error)
            await trio.sleep(TRY_AGAIN_AFTER)

    async def _show(self, ask: Callable[[Connection, Faults], Result], within: float = SHOWN_WITHIN) -> Result:
        """For operators; records that can't be read are told of once."""
        if self.away:
            raise StoreUnreachable(AWAY)
        faults: Faults = []
        result = await self._shows.run(reading(lambda connection: ask(connection, faults)), within=within)
        for fault in faults:
            self._tell_fault(*fault)
        return result

    def _tell_fault(self, table: str, key: str, what: str) -> None:
        if (table, key) not in self._told and len(self._told) < FAULTS_TOLD:
            self._told.add((table, key))
            self.listener.record_unreadable(table, key, what)

    async def message_view(self, id: MessageId) -> MessageView | None:
        return await self._show(lambda connection, faults: queries.message_view(connection, id, faults))

    async def message_views(
        self, state: MessageState | None, lane: str | None, after: MessageId | None, limit: int
    ) -> tuple[list[MessageView], MessageId | None]:
        return await self._show(
            lambda connection, faults: queries.message_views(connection, state, lane, after, limit, faults)
        )

    async def dead(self, select: DeadFilter, limit: int) -> tuple[list[MessageView], bytes | None]:
        return await self._show(lambda connection, faults: queries.dead(connection, select, limit, faults))

    async def waiting(self, after: MessageId | None, limit: int) -> tuple[list[Entry], MessageId | None]:
        return await self._show(lambda connection, faults: queries.waiting(connection, after, limit, faults))

    async def circuit(self, key: str) -> CircuitView | None:
        return await self._show(lambda connection, faults: queries.circuit(connection, key, faults))

    async def circuits(
        self, state: CircuitState | None, after: str | None, limit: int
    ) -> tuple[list[CircuitView], str | None]:
        return await self._show(lambda connection, faults: queries.circuits(connection, state, after, limit, faults))

    async def statistics(self) -> StoreStatistics:
        """As of now; while the database is unreachable as they last were."""
        terms = self._terms(0)
        with suppress(StoreUnreachable):
            self._statistics = await self._show(
                lambda connection, faults: queries.statistics(connection, terms, self.path), STATISTICS_WITHIN
            )
        return self._statistics or _nothing_known(self.path, self._max_size)

    async def room(self) -> StoreRoom:
        """As it was last measured."""
        used = self._room.used
        return StoreRoom(used, self.full or used > SCARCE * self._max_size, self.full)


def _nothing_known(path: str, max_size: int) -> StoreStatistics:
    circuits = dict.fromkeys(CircuitState, 0)
    return StoreStatistics(path, 0, 0, max_size, 0, 0, 0, 0, circuits, None, None, None, False)


def _own_name() -> str:
    """As short as a connection's name has to be; the end of a host's name tells it from others like it."""
    return f"{socket.gethostname()}:{os.getpid()}"[-40:]
