"""The store that replicas share, behind the port.

Four connections, each with what may wait for nothing else: new messages; outcomes and every other change; claims; what
operators ask. A fifth keeps the lease and listens; a sixth is there while messages come from a store of this machine's.
While the database is away new messages are refused at once,
outcomes stay in memory and are written when it is back, and whoever asked for work waits.
"""

import logging
import os
import socket
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import trio

from holdfast.clock import Clock
from holdfast.core.circuit import CircuitState
from holdfast.core.errors import CommitFailed, StoreAway, StoreError, StoreUnusable
from holdfast.core.fleet import LEASE, RENEW_EVERY, Crew, may_begin
from holdfast.core.message import Entry, Message, MessageId, State, next_id
from holdfast.core.schedule import RetryAt
from holdfast.store.grouping import group_size
from holdfast.store.moving import Moving
from holdfast.store.port import (
    ALL_CLASSES,
    NO_LIMIT,
    Accept,
    Accepted,
    Agenda,
    Ask,
    CircuitView,
    DeadFilter,
    Fail,
    Finished,
    Hearing,
    LaneRecord,
    Operation,
    StoreStatistics,
    Story,
    Switch,
    Verdict,
    View,
)
from holdfast.store.postgres import accepting, claiming, counting, outcomes, presence, rows, schema, showing, taking
from holdfast.store.postgres.channel import TRY_AGAIN_AFTER, Channel
from holdfast.store.postgres.connection import Connection, Line, Work
from holdfast.store.postgres.presence import Beat, Member
from holdfast.store.postgres.showing import Faults
from holdfast.store.postgres.sweeping import SWEEPS
from holdfast.store.postgres.terms import Terms
from holdfast.store.room import WATERMARK
from holdfast.store.summaries import NEVER
from holdfast.store.work import StoreRules
from holdfast.store.writer_thread import Waiter

ANSWER_WITHIN = 5.0
"""Seconds after which whoever sent a webhook is told that the store is away, if it does not say so itself."""
MOVED_WITHIN = 10.0
"""The same for a page of messages that come from another store: someone may wait behind them."""
MEASURE_EVERY = 10
"""Beats between two looks at how full the store is and at what those who are gone left behind."""
LANES_A_SURVEY = 16
LANES_KNOWN = 50_000
FAULTS_TOLD = 10_000

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
    ) -> None:
        self.path = schema.shown(url)
        self._rules = rules
        self._clock = clock
        self._random_bits = random_bits
        self._max_size = max_size
        self._delivers = delivers
        self._threaded = threaded
        self._lease, self._renew_every = lease, renew_every
        self._accepts, self._writes, self._claims, self._shows, self._moves = (
            Line(url, f"{name} {_own_name()}", threaded=threaded)
            for name in ("accepts", "outcomes", "claims", "status", "moves")
        )
        self._presence = Line(url, f"presence {_own_name()}", threaded=threaded, listens=True)
        self._member = Member(0, rules.run)
        self._lease_until = 0
        self._connected_since = 0
        self._seen_until = 0
        self._spells: dict[str, int] = {}
        self._unsure: dict[MessageId, int] = {}
        self._hints = False
        self._room = accepting.Room()
        self._lanes: set[str] = set()
        self._crew = Crew()
        self._beats = 0
        self._last_id = bytes(16)
        self._statistics: StoreStatistics | None = None
        self._told: set[tuple[str, str]] = set()
        self._accepting = Channel(self._accept, group_size, self._tell_accepts, patient=False)
        self._writing = Channel(self._write, _writes_size, self._tell, patient=True)
        self.away = True
        self._trouble = ""
        self.failed: CommitFailed | None = None
        self.broken = trio.Event()
        self.on_accepted: Callable[[Message, bool], None] = lambda message, active: None
        self.on_commit: Callable[[int], None] = lambda earliest_wake: None
        self.on_scarce: Callable[[], None] = lambda: None
        self.on_broken: Callable[[str, str, str], None] = lambda table, key, what: None
        self.on_group: Callable[[int, float], None] = lambda operations, seconds: None
        self.on_failed: Callable[[CommitFailed], None] = lambda error: None
        self.on_away: Callable[[StoreAway | None], None] = lambda reason: None
        self.on_time: Callable[[int], None] = lambda database_time: None
        self.on_lane: Callable[[LaneRecord], None] = lambda record: None
        self.on_call: Callable[[str], None] = lambda lane: None
        self.on_beat: Callable[[], None] = lambda: None
        self.on_crew: Callable[[Crew], None] = lambda crew: None
        self.on_lost: Callable[[], None] = lambda: None
        self.on_back: Callable[[], None] = lambda: None
        self.on_offer: Callable[[Message], bool] = lambda message: True

    # -- its life ----------------------------------------------------------------------------------------------------

    async def prepare(self) -> int:
        """Connect, make the tables if need be, and tell the database's time. Raises StoreAway or StoreUnusable."""

        def look(connection: Connection) -> int:
            connection.autocommit = True
            schema.bring_up_to_date(connection)
            connection.autocommit = False
            return presence.database_time(connection)

        return await self._presence.run(look)

    def configure(self, rules: StoreRules) -> None:
        """Other numbers from the next transaction on."""
        self._rules = rules

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write until cancelled; then go out of the fleet, so that others take over at once."""
        try:
            async with trio.open_nursery() as nursery:
                try:
                    await self._join()
                except StoreAway as away:
                    self._goes_away(away)
                finally:
                    task_status.started()
                nursery.start_soon(self._accepting.run)
                nursery.start_soon(self._writing.run)
                nursery.start_soon(self._keep_alive)
        except* CommitFailed as errors:
            self._give_up(errors)
        finally:
            with trio.CancelScope(shield=True):
                await self._leave()

    def _give_up(self, errors: BaseExceptionGroup[CommitFailed]) -> None:
        error: BaseException = errors
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        assert isinstance(error, CommitFailed)
        self.failed = error
        self.broken.set()
        self.on_failed(error)
        self._accepting.refuse(error)
        self._writing.refuse(error)

    async def _leave(self) -> None:
        if self._member.number and not self.away and self.failed is None:
            try:
                terms = self._terms(0)
                await self._presence.run(partial(presence.leave, terms=terms))
            except StoreError as error:
                _logger.warning("the lease was not given back: %s", error)
        self.close()

    def close(self) -> None:
        for line in (self._accepts, self._writes, self._claims, self._shows, self._presence, self._moves):
            line.close()

    # -- presence ----------------------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """What this replica's claims are fenced by."""
        return self._member.number

    def may_begin(self, now: int) -> bool:
        return may_begin(self._lease_until, now)

    async def _join(self) -> None:
        """Register under a new number."""
        now = self._clock.now()
        register = partial(presence.register, name=_own_name(), delivers=self._delivers, now=now, lease=self._lease)
        try:
            await self.prepare()
        except StoreUnusable as error:
            raise CommitFailed(str(error)) from error
        self._member = await self._presence.run(register)
        self._lease_until = now + self._lease
        self._connected_since = now
        self._seen_until = now
        self._hints = self._threaded and await self._presence.run(presence.can_listen)
        self._comes_back()
        await self._beat()

    async def _keep_alive(self) -> None:
        while True:
            try:
                await self._wait_for_beat()
                if self._member.number:
                    await self._beat()
                else:
                    await self._join()
            except StoreAway as away:
                self._goes_away(away)
                await trio.sleep(TRY_AGAIN_AFTER)

    async def _wait_for_beat(self) -> None:
        """Listen, where that is possible, until the lease wants to be renewed."""
        next_beat = self._lease_until - self._lease + self._renew_every
        while self._clock.now() < next_beat and not self.away:
            seconds = min(self._renew_every, next_beat - self._clock.now()) / 1000
            if not self._hints:
                await trio.sleep(seconds)
                continue
            for lane in await self._presence.run(presence.heard):
                self.on_call(lane)
            await self._presence.until_told(seconds)

    async def _beat(self) -> None:
        now = self._clock.now()
        terms = self._terms(0)
        beat = await self._presence.run(partial(presence.renew, terms=terms, lease=self._lease, since=self._seen_until))
        if self.away:
            self._connected_since = now
            self._hints = self._threaded and await self._presence.run(presence.can_listen)
            self._comes_back()
        if beat.crew is None:
            await self._lose()
            return
        self._lease_until = now + self._lease
        self._take(beat, now)
        await self._presence.run(presence.cut_off)
        while (
            await self._presence.run(partial(presence.reap, terms=terms, connected_since=self._connected_since))
            >= presence.FREED_AT_ONCE
        ):
            pass
        await self._disown(terms)
        self._beats += 1
        if self._beats % MEASURE_EVERY == 1:
            await self._presence.run(presence.tidy)
            self._room.measure(await self._presence.run(_measure))
        self.on_beat()

    async def _disown(self, terms: Terms) -> None:
        """What may have become this replica's without an answer that says so is for anyone to send: as long as a
        transaction that was given up could still come to its end.
        """
        if self._unsure:
            await self._presence.run(partial(presence.disown, ids=list(self._unsure), terms=terms))
            self._unsure = {id: ends for id, ends in self._unsure.items() if ends > terms.now}

    def _take(self, beat: Beat, now: int) -> None:
        assert beat.crew is not None
        self._member = Member(self._member.number, beat.run)
        self.on_time(beat.time)
        spells = {record.key: record.circuit.spell for record in beat.changed}
        for record in beat.changed:
            if self._spells.get(record.key) != record.circuit.spell:
                self.on_lane(record)
        self._spells = spells
        self._seen_until = now
        if beat.crew != self._crew:
            self._crew = beat.crew
            self.on_crew(beat.crew)

    async def _lose(self) -> None:
        """Taken for dead: nothing that was claimed is this replica's any more."""
        _logger.warning("this replica was taken for dead, and comes back under another number")
        self._member = Member(0, self._member.run)
        self._lease_until = 0
        self.on_lost()
        await self._join()

    def _goes_away(self, error: StoreAway) -> None:
        if not self.away or str(error) != self._trouble:
            self.on_away(error)
        self.away, self._trouble = True, str(error)

    def _comes_back(self) -> None:
        self.away = False
        if self._trouble:
            self._trouble = ""
            self.on_away(None)
        self.on_back()

    # -- writing -----------------------------------------------------------------------------------------------------

    def mint(self, now: int) -> MessageId:
        self._last_id = next_id(self._last_id, now, self._random_bits(80))
        return self._last_id

    @property
    def pending(self) -> int:
        return len(self._accepting) + len(self._writing)

    @property
    def commit_age(self) -> float:
        """While the database is away nothing is under way: it waits."""
        return 0.0 if self.away else self._writing.age

    @property
    def full(self) -> bool:
        return self._room.used > WATERMARK * self._max_size

    def submit(self, operation: Operation) -> None:
        trouble: StoreError | None = self.failed
        if trouble is None and self.away and not isinstance(operation, outcomes.TOGETHER):
            # Only what has happened waits: whoever wants something to happen had better hear of it.
            trouble = StoreAway("the database can't be reached")
        if trouble is None:
            (self._accepting if isinstance(operation, Accept) else self._writing).put(operation)
        elif isinstance(operation.done, Hearing):
            operation.done(trouble)

    async def perform(self, operation: Operation) -> Any:
        waiter = operation.done = Waiter()
        self.submit(operation)
        return await trio.lowlevel.wait_task_rescheduled(waiter.abandon)

    async def _accept(self, operations: Sequence[Operation]) -> list[Any]:
        arrivals = [
            accepting.Arrival(operation, *rows.encode(operation.message), self._is_offered(operation))
            for operation in operations
            if isinstance(operation, Accept)
        ]
        if len(self._lanes) > LANES_KNOWN:
            self._lanes.clear()
        terms = self._terms(0)
        work = partial(accepting.accept, arrivals=arrivals, room=self._room, lanes=self._lanes, terms=terms)
        try:
            results: list[Any] = await self._accepts.run(work, within=ANSWER_WITHIN)
        except StoreAway as away:
            self._goes_away(away)
            ends = self._clock.now() + presence.LONGEST_TRANSACTION
            self._unsure.update({arrival.message.id: ends for arrival in arrivals if arrival.offered})
            raise
        if terms.number != self._member.number:
            # Taken for dead meanwhile: what was taken under that number is free.
            return [Accepted(active=False) if type(result) is Accepted else result for result in results]
        return results

    async def take_in(self, page: Sequence[Moving]) -> list[Any]:
        """Messages of another store, with all that is known of them. Results as those of an Accept: one that is here
        or was is a Duplicate of itself. Raises StoreAway.
        """
        work = partial(taking.take, page=page, room=self._room, lanes=self._lanes, terms=self._terms(0))
        try:
            # Whoever closes the store has to wait for it: a connection is not closed under a thread that uses it.
            with trio.CancelScope(shield=True):
                results: list[Any] = await self._moves.run(work, within=MOVED_WITHIN)
        except StoreAway as away:
            self._goes_away(away)
            raise
        return results

    def _is_offered(self, operation: Accept) -> bool:
        """Whether this replica takes a message at once: it delivers, has room, and what it holds is safely its own."""
        if not self._delivers or operation.place is not None or not self.may_begin(self._clock.now()):
            return False
        return self.on_offer(operation.message)

    async def _write(self, operations: Sequence[Operation]) -> list[Any]:
        terms = self._terms(1)
        try:
            return await self._writes.run(lambda connection: _carry_out(connection, operations, terms))
        except StoreAway as away:
            self._goes_away(away)
            raise

    def _tell_accepts(self, operations: Sequence[Operation], results: Sequence[Any]) -> None:
        for operation, result in zip(operations, results, strict=True):
            if type(result) is Accepted and isinstance(operation, Accept):
                self.on_accepted(operation.message, result.active)
            elif isinstance(result, StoreAway) and not isinstance(operation.done, Hearing):
                continue
            if operation.done is not None:
                operation.done(result)
        self._told_all(operations, results, self._accepting)

    def _tell(self, operations: Sequence[Operation], results: Sequence[Any]) -> None:
        for operation, result in zip(operations, results, strict=True):
            if operation.done is not None:
                operation.done(result)
        self._told_all(operations, results, self._writing)

    def _told_all(self, operations: Sequence[Operation], results: Sequence[Any], channel: Channel) -> None:
        self.on_group(len(operations), channel.last)
        now = self._clock.now()  # what needs attention by now is in memory, or everyone was called to it
        moments = chain.from_iterable(map(_moments, operations, results))
        self.on_commit(min((moment for moment in moments if moment > now), default=NEVER))
        if self.full:
            self.on_scarce()

    def _terms(self, connection: int) -> Terms:
        number, run = self._member.number, self._member.run
        now = self._clock.now()
        return Terms(self._rules, number, 2 * number + connection, run, now, self._hints, self._max_size)

    # -- reading -----------------------------------------------------------------------------------------------------

    async def survey(self, asks: Sequence[Ask], bytes_wanted: int = NO_LIMIT) -> list[View]:
        views: list[View] = []
        while len(views) < len(asks) and bytes_wanted >= 0:
            some = await self._patiently(partial(self._survey, asks[len(views) : len(views) + LANES_A_SURVEY]))
            bytes_wanted -= sum(view.size for view in some)
            views += some
        return views

    def _survey(self, asks: Sequence[Ask], connection: Connection) -> list[View]:
        """Under the number that this replica has when it comes to it."""
        return claiming.survey(connection, asks, self._terms(1))

    async def agenda(
        self, now: int, limit: int, skip: Container[str], classes: Container[int] = ALL_CLASSES, since: int = 0
    ) -> Agenda:
        return await self._patiently(_reading(lambda connection: claiming.agenda(connection, now, limit, skip, since)))

    async def oldest_finished(self) -> Finished:
        return await self._patiently(_reading(showing.oldest_finished))

    async def _patiently(self, work: Work[Result]) -> Result:
        """For whoever can only wait until the database is back, and until this replica is in the fleet."""
        while True:
            if self._member.number:
                try:
                    return await self._claims.run(work)
                except StoreAway as away:
                    self._goes_away(away)
            await trio.sleep(TRY_AGAIN_AFTER)

    async def _show(self, ask: Callable[[Connection, Faults], Result]) -> Result:
        """For operators; records that can't be read are told of once."""
        faults: Faults = []
        result = await self._shows.run(_reading(lambda connection: ask(connection, faults)))
        for table, key, what in faults:
            if (table, key) not in self._told and len(self._told) < FAULTS_TOLD:
                self._told.add((table, key))
                self.on_broken(table, key, what)
        return result

    async def story(self, id: MessageId) -> Story | None:
        return await self._show(lambda connection, faults: showing.story(connection, id, faults))

    async def stories(
        self, state: State | None, lane: str | None, after: MessageId | None, limit: int
    ) -> tuple[list[Story], MessageId | None]:
        return await self._show(
            lambda connection, faults: showing.stories(connection, state, lane, after, limit, faults)
        )

    async def dead(self, select: DeadFilter, limit: int) -> tuple[list[Story], bytes | None]:
        return await self._show(lambda connection, faults: showing.dead(connection, select, limit, faults))

    async def waiting(self, after: MessageId | None, limit: int) -> tuple[list[Entry], MessageId | None]:
        return await self._show(lambda connection, faults: showing.waiting(connection, after, limit, faults))

    async def circuit(self, key: str) -> CircuitView | None:
        terms = self._terms(0)
        return await self._show(lambda connection, faults: showing.circuit(connection, key, terms, faults))

    async def circuits(
        self, state: CircuitState | None, after: str | None, limit: int
    ) -> tuple[list[CircuitView], str | None]:
        terms = self._terms(0)
        return await self._show(
            lambda connection, faults: showing.circuits(connection, state, after, limit, terms, faults)
        )

    async def statistics(self) -> StoreStatistics:
        """As of now; while the database is away as they last were."""
        terms = self._terms(0)
        try:
            self._statistics = await self._show(
                lambda connection, faults: showing.statistics(connection, terms, self.path)
            )
        except StoreAway:
            if self._statistics is None:
                return _nothing_known(self.path, self._max_size)
        assert self._statistics is not None
        return self._statistics


def _carry_out(connection: Connection, operations: Sequence[Operation], terms: Terms) -> list[Any]:
    first = operations[0]
    if isinstance(first, outcomes.TOGETHER):
        return outcomes.record(connection, operations, terms)
    if isinstance(first, Switch):
        return [outcomes.switch(connection, first, terms)]
    result = SWEEPS[type(first)](connection, first, terms)
    connection.commit()
    return [result]


def _writes_size(operations: Sequence[Operation]) -> int:
    """Outcomes share a transaction; anything else has its own."""
    return max(1, outcomes.share_a_transaction(operations[: group_size(operations)]))


def _moments(operation: Operation, result: Any) -> Iterator[int]:
    """When what was written may need attention: a delayed message, a retry, the next probe."""
    if isinstance(operation, Accept) and isinstance(result, Accepted):
        yield operation.message.born
    if isinstance(operation, Fail) and isinstance(operation.step, RetryAt):
        yield operation.step.due
    if isinstance(result, Verdict) and result.record is not None:
        yield result.record.circuit.next_probe_at or 0


def _reading(work: Work[Result]) -> Work[Result]:
    """A short transaction that changes nothing."""

    def read(connection: Connection) -> Result:
        try:
            return work(connection)
        finally:
            connection.rollback()

    return read


def _measure(connection: Connection) -> int:
    used = counting.total(connection).bytes
    connection.rollback()
    return used


def _nothing_known(path: str, max_size: int) -> StoreStatistics:
    circuits = dict.fromkeys(CircuitState, 0)
    return StoreStatistics(path, 0, 0, max_size, 0, 0, 0, 0, circuits, None, None, None, False)


def _own_name() -> str:
    """As short as a connection's name has to be; the end of a host's name tells it from others like it."""
    return f"{socket.gethostname()}:{os.getpid()}"[-40:]
