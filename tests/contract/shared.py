"""A desk at a store that replicas share: a replica on a database, alone there unless a test opens another."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import psycopg

from contract import consistency_postgres as consistency
from contract.builders import HOST, Desk
from contract.inside import GARBAGE
from holdfast.core.circuit import CircuitState
from holdfast.core.errors import CommitFailed
from holdfast.core.message import Entry, MessageId
from holdfast.store.port import Accept, Ask, Deliver, Fail, Operation, Shelve, Switch, Verb, View
from holdfast.store.postgres.store import PostgresStore

FOR_EVER = 1 << 50
"""A lease that outlasts every leap of a test's clock."""
ALL = 1 << 30


@dataclass
class SharedDesk(Desk):
    """What a look finds is claimed, so it is given back: the next look finds it again, as that of an embedded store
    does. An outcome needs a claim, so its message is taken before, and then skipped by looks, as a dispatcher skips
    what it knows.
    """

    make_engine: None = None
    url: str = ""
    max_size: int = 1 << 30
    threaded: bool = True
    taken: set[MessageId] = field(default_factory=set)
    broken: set[MessageId] = field(default_factory=set)

    def _make(self) -> PostgresStore:
        return PostgresStore(
            self.url,
            self.rules,
            self.clock,
            lambda bits: next(self.random),
            max_size=self.max_size,
            threaded=self.threaded,
            lease=FOR_EVER,
        )

    def _dispose(self) -> None:
        """Its connections are closed by its end."""
        self.taken.clear()
        self.broken.clear()

    async def kill(self) -> None:
        """What it leaves behind, as far as others have found out: its lease is over, and its row is gone."""
        number = self.ledger.number
        self.ledger.failed = CommitFailed("killed")
        await self.close()
        self._change("DELETE FROM replicas WHERE number = %s", number)

    # -- writing ---------------------------------------------------------------------------------------------------

    async def take(self, entry: Entry) -> Entry:
        if entry.fence:
            return entry
        message, place, _ = entry
        view = await self._claim(message.lane, max(self.clock.at, place.due), ALL, ALL, self.taken)
        await self._give_back([each for each in _claimed(view) if each.message.id != message.id])
        if view.record is not None and view.record.circuit.state is not CircuitState.ENABLED:
            self._take_as_before(message.id)
        self.taken.add(message.id)
        return entry._replace(fence=self.ledger.number)

    def _take_as_before(self, id: MessageId) -> None:
        """In a circuit that lets nothing through: an attempt that began before."""
        with psycopg.connect(self.url, options="-c search_path=holdfast") as connection:
            connection.execute(
                "UPDATE messages SET owner = %s WHERE id = %s AND owner IS NULL AND standing < 3",
                (self.ledger.number, id),
            )

    async def _claim(self, lane: str, at: int, fresh: int, due: int, skip: Iterable[MessageId]) -> View:
        [view] = await self.ledger.survey([Ask(lane, at, fresh, due, None, frozenset(skip) | self.broken)])
        self.broken |= {id for id, _ in view.broken}
        return view

    async def _give_back(self, entries: Sequence[Entry]) -> None:
        if entries:
            await self.ledger.perform(Shelve([entry.message for entry in entries]))

    async def perform(self, operation: Operation) -> Any:
        result = await super().perform(operation)
        self._forget_taken([operation])
        return result

    def _forget_taken(self, operations: Iterable[Operation]) -> None:
        self.taken -= {each.entry.message.id for each in operations if isinstance(each, (Deliver, Fail))}

    async def together(self, *operations: Operation) -> list[Any]:
        """New messages and all else go by ways of their own: in order only if one waits for the other."""
        results: list[Any] = []
        for _, some in groupby(operations, lambda operation: isinstance(operation, Accept)):
            results += await super().together(*[await self._with_claim(operation) for operation in some])
        self._forget_taken(operations)
        return results

    async def _with_claim(self, operation: Operation) -> Operation:
        if isinstance(operation, (Deliver, Fail)):
            return replace(operation, entry=await self.take(operation.entry))
        return operation

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
    ) -> View:
        """What is to be skipped is claimed before, as far as its circuit lets it through."""
        held = []
        if skip:
            everything = _claimed(await self._claim(lane, 0, ALL, 0, self.taken))
            held = [entry for entry in everything if entry.message.id in skip]
            await self._give_back([entry for entry in everything if entry.message.id not in skip])
        view = await self._claim(lane, self.clock.at if at is None else at, fresh, due, {*skip, *self.taken})
        await self._give_back([*held, *_claimed(view)])
        return view._replace(
            fresh=[_unclaimed(entry) for entry in view.fresh],
            due=[_unclaimed(entry) for entry in view.due],
            probe=_unclaimed(view.probe) if view.probe else None,
        )

    async def next_probe(self, probed: bytes | None = None, *, at: int | None = None, **ask: Any) -> Entry | None:
        """The store remembers what was probed; an operator's word makes it due now."""
        at = self.clock.at if at is None else at
        await self.ledger.perform(Switch(HOST, HOST, Verb.PROBE, at))
        return (await self.look(at=at, **ask)).probe

    async def wakes_at(self, moment: int) -> bool:
        """What needs attention by now may have needed it at any time before."""
        found, now = await self.first_wake(), self.clock.at
        return found == moment or (found is not None and found <= now and moment <= now)

    async def first_wake(self) -> int | None:
        """A lane's moment may be too early until somebody looks and finds nothing."""
        now = self.clock.at
        agenda = await self.ledger.agenda(now, 100, ())
        await self.ledger.survey([Ask(lane, now, 0, 0, None, frozenset()) for lane in agenda.lanes])
        return await super().first_wake()

    # -- what is on disk -----------------------------------------------------------------------------------------------

    def undelivered(self) -> list[MessageId]:
        return [row[0] for row in consistency.dump(self.url)["messages"]]

    def kept(self) -> dict[Any, Any]:
        tables = consistency.dump(self.url)
        return {name: tables[name] for name in ("messages", "attempts", "delivered", "keys")}

    def traces(self, id: MessageId) -> list[str]:
        tables = consistency.dump(self.url).items()
        return [name for name, rows in tables for row in rows if id in row]

    def keys(self) -> int:
        return len(consistency.dump(self.url)["keys"])

    def check(self) -> None:
        consistency.check(self.url, self.rules, self.clock.at)

    def check_shares(self) -> None:
        self.check()

    def spoil_message(self, id: MessageId, value: bytes = GARBAGE) -> None:
        self._change("UPDATE messages SET record = %s WHERE id = %s", value, id)

    def spoil_lane(self, key: str) -> None:
        self._change("UPDATE lanes SET record = %s WHERE lane = %s", GARBAGE, key)

    def spoil_attempt(self, id: MessageId, number: int) -> None:
        self._change("UPDATE attempts SET record = %s WHERE id = %s AND number = %s", GARBAGE, id, number)

    def cut_body(self, id: MessageId) -> None:
        self._change("UPDATE messages SET body = substring(body FROM 2) WHERE id = %s", id)

    def _change(self, statement: str, *values: object) -> None:
        with psycopg.connect(self.url, options="-c search_path=holdfast") as connection:
            assert connection.execute(statement.encode(), values).rowcount == 1


def _claimed(view: View) -> list[Entry]:
    return [*view.fresh, *view.due, *([view.probe] if view.probe else ())]


def _unclaimed(entry: Entry) -> Entry:
    return entry._replace(fence=0)
