"""Random operations in any order: both engines give the same results, the indexes agree, and no message is lost."""

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.circuit import CircuitState
from holdfast.core.idempotency import handoff_digest
from holdfast.core.message import Entry, MessageId, MessageState, Place, Standing
from holdfast.store.embedded.tables import Table
from holdfast.store.port import (
    Accept,
    Accepted,
    DeadFilter,
    Deliver,
    Expire,
    Fail,
    Forget,
    HandOver,
    IdempotencyKey,
    LaneQuery,
    Operation,
    Purge,
    ReplayDead,
    SaveLane,
    Shelve,
)
from tests.contract.builders import (
    EPOCH,
    EVER,
    EXHAUSTED,
    HOUR,
    MINUTE,
    RULES,
    Desk,
    active,
    attempt,
    disabled,
    dump,
    engine_maker,
    frozen,
    idempotency,
    lane,
    retry_at,
    success,
)
from tests.contract.consistency import Tables, check
from tests.support.repetitions import amount

LANES = ("a:443", "b:443")
SIZE = 64 << 20
CIRCUITS = {"enabled": lane, "disabled": disabled, "frozen": frozen}

lanes = st.sampled_from(LANES)
numbers = st.integers(0, 30)
limits = st.sampled_from([1, 3, 100])
steps = st.sampled_from(["deliver", "retry", "held", "dead", "none"])

accepts = st.tuples(
    st.just("accept"),
    lanes,
    st.sampled_from([0, 0, 0, HOUR]),
    st.sampled_from([0, 100, 3_000, 9_000]),
    st.sampled_from([None, None, "k", "l"]),
)
actions = st.one_of(
    accepts,
    accepts,
    st.tuples(st.just("outcome"), numbers, steps),
    st.tuples(st.just("outcome"), numbers, steps),
    st.tuples(st.just("late"), numbers, steps),
    st.tuples(st.just("shelve"), st.integers(1, 3)),
    st.tuples(st.just("circuit"), lanes, st.sampled_from(sorted(CIRCUITS))),
    st.tuples(st.just("expire"), lanes, limits),
    st.tuples(st.just("replay"), lanes, limits),
    st.tuples(st.just("forget"), lanes),
    st.tuples(st.just("hand_over"), numbers, limits),
    st.tuples(st.just("take_over"), lanes, st.sampled_from([0, 1, HOUR]), st.sampled_from([0, 9_000])),
    st.tuples(st.just("purge"), limits),
)
between = st.one_of(
    st.tuples(st.just("pass"), st.sampled_from([1, MINUTE, HOUR, 2 * EPOCH])),
    st.tuples(st.just("restart"), st.booleans()),
)
groups = st.one_of(st.lists(actions, min_size=1, max_size=5), between)


@dataclass
class Pair:
    """Two stores in lockstep, and what a dispatcher would hold of them in memory."""

    desks: list[Desk]
    active: dict[MessageId, Entry] = field(default_factory=dict)
    seen: list[Entry] = field(default_factory=list)
    accepted: set[MessageId] = field(default_factory=set)
    killed: bool = False

    @property
    def now(self) -> int:
        return self.desks[0].clock.at

    async def between(self, kind: str, value: int) -> None:
        for desk in self.desks:
            if kind == "pass":
                desk.clock.at += value
            elif value:
                await desk.restart_after_a_kill()
            else:
                await desk.restart()
        if kind == "restart":
            self.active.clear()
            for desk in self.desks:
                desk.check_shares()

    async def group(self, actions: list[tuple[Any, ...]]) -> None:
        within_reach = [*self.active.values(), *await self.queued()]
        made = [getattr(self, f"_{kind}")(within_reach, *of) for kind, *of in actions]
        wanted = self.feasible([operation for operation in made if operation is not None])
        if not wanted:
            return
        before = dump(self.desks[0].engine)
        for operation, result in zip(wanted, await self.perform(wanted), strict=True):
            self._learn(operation, result)
        handed = {e.message.id for each in wanted if isinstance(each, HandOver) for e in each.entries}
        await self.check(before, handed, purging=any(isinstance(operation, Purge) for operation in wanted))

    def feasible(self, operations: list[Operation]) -> list[Operation]:
        """What may come in one group."""
        return operations

    async def perform(self, wanted: list[Operation]) -> list[Any]:
        results = [await desk.together(*wanted) for desk in self.desks]
        assert results[0] == results[1]
        return results[0]

    async def queued(self) -> list[Entry]:
        views = await self.desks[0].ledger.survey([_ask(key, EVER) for key in LANES])
        return [entry for view in views for entry in (*view.fresh, *view.due)]

    # -- what may happen ---------------------------------------------------------------------------------------

    def _accept(self, _: list[Entry], key: str, delay: int, size: int, name: str | None) -> Operation:
        message, _twin = [desk.message(key, bytes(size), delay=delay) for desk in self.desks]
        return Accept(message, idempotency(name) if name else None)

    def _outcome(self, within_reach: list[Entry], pick: int, step: str) -> Operation | None:
        if not within_reach:
            return None
        entry = within_reach[pick % len(within_reach)]
        self.seen.append(entry)
        return self._end(entry, step)

    def _late(self, _: list[Entry], pick: int, step: str) -> Operation | None:
        return self._end(self.seen[pick % len(self.seen)], step) if self.seen else None

    def _end(self, entry: Entry, step: str) -> Operation:
        number, on = entry.place.attempts + 1, lane(entry.message.lane)
        if step == "deliver":
            return Deliver(entry, success(number, at=self.now), on)
        retry = retry_at(entry.place.retry + 1, self.now + HOUR, held=step == "held")
        follows = {"dead": EXHAUSTED, "none": None}.get(step, retry)
        return Fail(entry, attempt(number, at=self.now), follows, on)

    def _shelve(self, _: list[Entry], count: int) -> Operation:
        return Shelve([entry.message for entry in list(self.active.values())[:count]])

    def _circuit(self, _: list[Entry], key: str, state: str) -> Operation:
        return SaveLane(CIRCUITS[state](key))

    def _expire(self, _: list[Entry], key: str, limit: int) -> Operation:
        return Expire(key, self.now, self.now, limit, skip=frozenset(self.active))

    def _replay(self, _: list[Entry], key: str, limit: int) -> Operation:
        return ReplayDead(DeadFilter(key), self.now, limit)

    def _forget(self, _: list[Entry], key: str) -> Operation:
        return Forget(key)

    def _hand_over(self, within_reach: list[Entry], pick: int, count: int) -> Operation:
        return HandOver(within_reach[pick : pick + count])

    def _take_over(self, _: list[Entry], key: str, later: int, size: int) -> Operation:
        """One of another store, waiting or with a retry behind it."""
        message, _twin = [desk.message(key, bytes(size)) for desk in self.desks]
        retrying = Place(Standing.RETRY, message.born, self.now + later, 2, 3)
        place = retrying if later else Place(Standing.WAITING, message.born)
        return Accept(message, IdempotencyKey(handoff_digest(message.id), bytes(16)), place)

    def _purge(self, _: list[Entry], limit: int) -> Operation:
        return Purge(self.now, self.now, self.now, limit)

    def _learn(self, operation: Operation, result: Any) -> None:
        """What a dispatcher would know after the commit."""
        if isinstance(operation, Accept) and isinstance(result, Accepted):
            self.accepted.add(operation.message.id)
            if result.active:
                self.active[operation.message.id] = active(operation.message)
        elif isinstance(operation, (Deliver, Fail)):
            entry = self.active.pop(operation.entry.message.id, None)
            if entry is not None and isinstance(operation, Fail) and operation.step is None:
                place = Place(Standing.ACTIVE, entry.place.born, attempts=operation.attempt.number)
                self.active[entry.message.id] = Entry(entry.message, place)
        elif isinstance(operation, Shelve):
            for message in operation.messages:
                self.active.pop(message.id, None)
        elif isinstance(operation, HandOver):
            for entry in operation.entries:
                self.active.pop(entry.message.id, None)

    # -- what must hold --------------------------------------------------------------------------------------------

    async def check(self, before: Tables, handed: set[MessageId], *, purging: bool) -> None:
        tables = dump(self.desks[0].engine)
        self.check_twin(tables)
        check(tables, RULES)
        there = {id for table in (Table.MESSAGES, Table.DELIVERED) for id, _ in tables[table]}
        gone = self.accepted - there
        ended = {id for id, _ in before[Table.DELIVERED]} | {key[8:] for key, _ in before[Table.DEAD]}
        assert gone <= (ended | handed if purging else handed)
        self.accepted -= gone
        assert there == self.accepted
        answers = [await self.answers(desk) for desk in self.desks]
        assert answers[0] == answers[1]

    def check_twin(self, tables: Tables) -> None:
        twin = dump(self.desks[1].engine)
        assert all(tables[table] == twin[table] for table in Table if table is not Table.META)

    async def answers(self, desk: Desk) -> list[object]:
        """All that can be asked of a store, but for what differs by nature: paths and bytes."""
        ledger = desk.ledger
        asks = [_ask(key, now) for key in LANES for now in (self.now, EVER)]
        views = [view._replace(record=None) for view in await ledger.survey(asks)]
        pages = [await ledger.message_views(state, None, None, 100) for state in (None, *MessageState)]
        circuits = [
            [(view.record.key, view.record.circuit.state, view.waiting, view.dead) for view in page]
            for page, _ in [await ledger.circuits(state, None, 10) for state in (None, *CircuitState)]
        ]
        statistics = (await ledger.statistics())._replace(path="", used_bytes=0, reserved_bytes=0)
        agendas = [await ledger.agenda(now, 1, ()) for now in (0, self.now, EVER)]
        page = await ledger.waiting(None, 100)
        return [views, pages, page, circuits, statistics, agendas, await ledger.oldest_finished()]


def _ask(key: str, now: int) -> LaneQuery:
    return LaneQuery(key, now, 100, 100, None, frozenset())


async def drive(pair: Pair, script: list[Any]) -> None:
    for desk in pair.desks:
        await desk.open()
    for each in script:
        await (pair.group(each) if isinstance(each, list) else pair.between(*each))
    await pair.between("restart", 0)
    for desk in pair.desks:
        await desk.close()


async def drive_engines(script: list[Any], folder: Path) -> None:
    async with trio.open_nursery() as nursery:
        desks = [Desk(nursery, engine_maker(kind, folder, SIZE)) for kind in ("memory", "lmdb")]
        await drive(Pair(desks), script)


@settings(max_examples=amount(30, 60), suppress_health_check=list(HealthCheck))
@given(st.lists(groups, max_size=25))
def test_both_engines_agree_and_no_message_is_lost(script: list[Any]) -> None:
    with TemporaryDirectory() as folder:
        trio.run(drive_engines, script, Path(folder))
