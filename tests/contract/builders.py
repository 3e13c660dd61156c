"""Short ways to drive a store: a Desk is a Ledger that runs, on an engine that outlives it as a disk does.

What tests look for on disk they ask the desk for, in words that any engine can answer: see inside.py.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import trio

from holdfast.config import build
from holdfast.core.circuit import Circuit, CircuitState
from holdfast.core.errors import CommitFailed
from holdfast.core.lane import Host, Lane
from holdfast.core.message import (
    Attempt,
    AttemptKind,
    DeadReason,
    Entry,
    Fault,
    Headers,
    Message,
    MessageId,
    Place,
    Standing,
)
from holdfast.core.schedule import Dead, RetryAt
from holdfast.core.store_rules import StoreRules
from holdfast.store.embedded.ledger import Ledger
from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.embedded.tables import Engine
from holdfast.store.port import (
    Accept,
    Deliver,
    Fail,
    IdempotencyKey,
    LaneQuery,
    LaneView,
    MessageView,
    Operation,
    SaveLane,
    Shelve,
    Store,
)
from tests.contract.rows import Inside
from tests.contract.rows import dump as dump
from tests.store.memory import MemoryEngine
from tests.store.recorder import Recorder

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
EPOCH = DAY
NOW = 20_000 * DAY + 10 * HOUR
EVER = 1 << 60
HOST = "h:443"

RULES = replace(build({}).store_rules(NOW), idempotency=EPOCH)
EXPIRE_AFTER = RULES.retry.expire_after
EXHAUSTED = Dead(DeadReason.EXHAUSTED)


@dataclass
class HandClock:
    """Time that moves when a test says so."""

    at: int = NOW

    def now(self) -> int:
        return self.at

    uptime = now

    async def sleep_until(self, moment: int) -> None:
        raise AssertionError("no store sleeps")


def lane(key: str = HOST, circuit: Circuit | None = None, *, host: str | None = None, limit: int = 16) -> Lane:
    return Lane(key, Host(host or key, 16, limit), circuit or Circuit(since=NOW, enabled_at=NOW), hydrated=True)


def lane_of(entry: Entry) -> Lane:
    return lane(entry.message.lane, host=entry.message.host)


def disabled(key: str = HOST, *, probe_at: int = NOW + 10 * MINUTE, probed: bytes | None = None) -> Lane:
    circuit = Circuit(CircuitState.DISABLED, since=NOW, enabled_at=NOW, next_probe_at=probe_at, probed=probed)
    return lane(key, circuit)


def frozen(key: str = HOST) -> Lane:
    return lane(key, Circuit(CircuitState.FROZEN, since=NOW, enabled_at=NOW))


def attempt(
    number: int = 1, *, at: int = NOW, kind: AttemptKind = AttemptKind.FIRST, answer: bytes | None = b"busy"
) -> Attempt:
    return Attempt(number, kind, at, 20, "192.0.2.1:443", 503, None, "answered 503", Fault.HOST, answer)


def success(number: int = 1, *, at: int = NOW) -> Attempt:
    return Attempt(number, AttemptKind.FIRST, at, 20, "192.0.2.1:443", 200)


def tried(entry: Entry, attempts: int) -> Entry:
    """The same after so many attempts that left it where it was."""
    return entry._replace(place=entry.place._replace(attempts=attempts))


def retry_at(retry: int, due: int, *, held: bool = False) -> RetryAt:
    return RetryAt(retry, due, held)


def idempotency(name: str, body: str = "body") -> IdempotencyKey:
    return IdempotencyKey(name.encode().ljust(16, b"-"), body.encode().ljust(16, b"-"))


def active(message: Message) -> Entry:
    return Entry(message, Place(Standing.ACTIVE, message.born))


def ids(entries: Iterable[Entry]) -> list[MessageId]:
    return [entry.message.id for entry in entries]


@dataclass
class Desk(Inside):
    """A running ledger. What was accepted by it is remembered in `messages`, in the order of acceptance."""

    nursery: trio.Nursery
    make_engine: Callable[[], Engine]
    rules: StoreRules = RULES
    clock: HandClock = field(default_factory=HandClock)
    messages: list[Message] = field(default_factory=list)
    random: Any = field(default_factory=lambda: count(1))

    async def open(self) -> None:
        self.ledger: Any = self._make()
        self.recorder = self.ledger.listener = Recorder()
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        await self.nursery.start(self._run)

    def _make(self) -> Store:
        self.engine = self.make_engine()
        ledger = Ledger(self.engine, self.rules, self.clock, lambda bits: next(self.random))
        ledger.open()
        return ledger

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """In the app everything ends with a store whose commit failed; here the test goes on."""
        try:
            with self._scope:
                await self.ledger.run(task_status=task_status)
        except CommitFailed:
            assert self.ledger.failed is not None
        finally:
            self._ended.set()

    async def close(self) -> None:
        self._scope.cancel()
        await self._ended.wait()
        self._dispose()

    def _dispose(self) -> None:
        self.engine.close()

    async def restart(self, **rules: Any) -> None:
        await self.close()
        self.rules = replace(self.rules, **rules)
        await self.open()

    async def restart_after_a_kill(self) -> None:
        await self.kill()
        await self.open()

    async def kill(self) -> None:
        """A ledger that failed writes nothing at its end: the next one finds what a killed process left."""
        self.ledger.failed = CommitFailed("killed")
        await self.close()

    @property
    def commits(self) -> int:
        """Groups written by the store that runs now."""
        return sum(commit.operations > 0 for commit in self.recorder.commits)

    # -- writing ---------------------------------------------------------------------------------------------------

    def message(
        self,
        lane: str = HOST,
        body: bytes = b"{}",
        *,
        host: str | None = None,
        delay: int = 0,
        path: bytes = b"/hook",
        headers: Headers = ((b"content-type", b"application/json"),),
        route: str | None = None,
    ) -> Message:
        now = self.clock.at
        host = host or lane
        return Message(
            self.ledger.mint(now), lane, host, "https", host, path, "POST", headers, body, now, now + delay, route
        )

    async def accept(
        self, lane: str = HOST, body: bytes = b"{}", *, key: IdempotencyKey | None = None, **of: Any
    ) -> Entry:
        """A message on disk, with the place that the dispatcher would be told of."""
        message = self.message(lane, body, **of)
        self.messages.append(message)
        result = await self.ledger.perform(Accept(message, key))
        return active(message) if result.active else Entry(message, Place(Standing.WAITING, message.born))

    async def accept_waiting(self, lane: str = HOST, number: int = 1, **of: Any) -> list[Entry]:
        """Messages in the lane's queue, one millisecond apart."""
        for _ in range(number):
            entry = await self.accept(lane, **of)
            if entry.place.standing is Standing.ACTIVE:
                await self.ledger.perform(Shelve([entry.message]))
            self.clock.at += 1
        return [entry for entry in await self.all_waiting(lane) if entry.place.standing is Standing.WAITING]

    async def perform(self, operation: Operation) -> Any:
        return await self.ledger.perform(operation)

    async def take(self, entry: Entry) -> Entry:
        """An attempt begins: until its outcome the message is ours."""
        return entry

    async def deliver(self, entry: Entry, number: int = 1, lane: Lane | None = None) -> None:
        entry = await self.take(entry)
        await self.perform(Deliver(entry, success(number, at=self.clock.at), lane))

    async def fail(self, entry: Entry, step: Any = None, *, number: int | None = None, on: Lane | None = None) -> None:
        number = entry.place.attempts + 1 if number is None else number
        made = attempt(number, at=self.clock.at, answer=b"answer %d" % number)
        entry = await self.take(entry)
        await self.perform(Fail(entry, made, step, on or lane_of(entry)))

    async def retrying(self, due: int, *, lane: str = HOST, held: bool = False, retry: int = 1) -> Entry:
        """A message that failed and is due then."""
        entry = await self.accept(lane)
        await self.fail(entry, retry_at(retry, due, held=held), on=lane_of(entry))
        self.clock.at += 1
        return Entry(entry.message, Place(Standing.RETRY, entry.message.born, due, retry, 1, held))

    async def add_dead(self, entry: Entry) -> None:
        await self.fail(entry, EXHAUSTED)

    async def save(self, *lanes: Lane) -> None:
        for each in lanes:
            await self.ledger.perform(SaveLane(each))

    async def together(self, *operations: Operation) -> list[Any]:
        """Operations in one group, in this order; what each of them was told."""
        results: list[Any] = []
        told = trio.Event()
        for operation in operations:
            operation.done = results.append
            self.ledger.submit(operation)
        operations[-1].done = lambda result: (results.append(result), told.set())
        with trio.fail_after(30):
            await told.wait()
        return results

    # -- reading ---------------------------------------------------------------------------------------------------

    async def look(
        self,
        lane: str = HOST,
        *,
        at: int | None = None,
        fresh: int = 100,
        due: int = 100,
        probed: bytes | None = None,
        skip: Sequence[MessageId] = (),
    ) -> LaneView:
        now = self.clock.at if at is None else at
        [view] = await self.ledger.survey([LaneQuery(lane, now, fresh, due, probed, frozenset(skip))])
        return view

    async def next_probe(self, probed: bytes | None = None, **ask: Any) -> Entry | None:
        """The probe after the last one in this state, or after the one that the lane's record names."""
        return (await self.look(probed=probed, **ask)).probe

    async def all_waiting(self, lane: str = HOST) -> list[Entry]:
        """All that is neither delivered nor dead, whatever its circuit lets through."""
        entries, after = [], None
        while True:
            page, after = await self.ledger.waiting(after, 1_000)
            entries += [entry for entry in page if entry.message.lane == lane]
            if after is None:
                return entries

    async def message_view(self, of: Entry | Message) -> MessageView:
        message = of.message if isinstance(of, Entry) else of
        view = await self.ledger.message_view(message.id)
        assert view is not None
        return view

    async def wakes_at(self, moment: int) -> bool:
        """Whether the first lane of all needs attention then."""
        return await self.first_wake() == moment

    async def first_wake(self) -> int | None:
        """When the first lane of all needs attention."""
        return (await self.ledger.agenda(0, 100, ())).next


def engine_maker(kind: str, folder: Path, max_size: int = 1 << 30) -> Callable[[], Engine]:
    if kind == "lmdb":
        return lambda: LmdbEngine(folder / "store", max_size)
    engine = MemoryEngine(max_size)
    return lambda: engine
