"""A Desk for a store that replicas share: one replica on a database, unless a test opens another."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import trio

from holdfast.core.errors import CommitFailed, StoreFull
from holdfast.core.message import MessageId, id_text
from holdfast.store.port import (
    Accept,
    Accepted,
    BulkResult,
    LaneQuery,
    Operation,
    ReplayDead,
    Retried,
    RetryNow,
    SaveLane,
    Shelve,
)
from holdfast.store.postgres.store import PostgresStore
from tests.contract import consistency_postgres as consistency
from tests.contract.builders import Desk, lane
from tests.contract.rows import GARBAGE
from tests.support.harness import PATIENCE

FOR_EVER = 1 << 40
"""A lease that outlasts every leap of a test's clock."""


class OwnersStore(PostgresStore):
    """What was accepted or replayed has arrived and stands in no queue: it is seated as the owner of its host does
    it.
    """

    has_gained: trio.Event

    async def gained(self, shards: Collection[int]) -> None:
        await super().gained(shards)
        self.has_gained.set()

    async def perform(self, operation: Operation) -> Any:
        result = await super().perform(operation)
        if isinstance(operation, Accept) and isinstance(result, Accepted):
            return Accepted(active=not await self._seat(operation))
        if isinstance(operation, ReplayDead) and isinstance(result, BulkResult):
            await self._shelve(result.ids)
        if isinstance(operation, RetryNow) and result is Retried.REPLAYED:
            await self._shelve([operation.id])
        return result

    async def _seat(self, operation: Accept) -> bool:
        """Whether it went to its lane's queue: it is due later, or others wait there."""
        message = operation.message
        [view] = await self.survey([_everything_of(message.lane)])
        if view.record is None:
            await super().perform(SaveLane(lane(message.lane, host=message.host)))
        waits = operation.place is not None or message.born > message.accepted_at or view.heads.waiting is not None
        if waits:
            await super().perform(Shelve([message]))
        return waits

    async def _shelve(self, ids: Sequence[MessageId]) -> None:
        for id in ids:
            view = await self.message_view(id)
            assert view is not None, id_text(id)
            await super().perform(Shelve([view.message]))


@dataclass
class SharedDesk(Desk):
    make_engine: None = None
    url: str = ""
    max_size: int = 1 << 30
    threaded: bool = True

    def _make(self) -> PostgresStore:
        store = OwnersStore(
            self.url,
            self.rules,
            self.clock,
            lambda bits: next(self.random),
            max_size=self.max_size,
            threaded=self.threaded,
            lease=FOR_EVER,
        )
        self._gained = store.has_gained = trio.Event()
        return store

    async def open(self) -> None:
        """Until it owns what there is, has taken in what had arrived there, and looks for no more of it."""
        await super().open()
        with trio.fail_after(PATIENCE):
            await self._gained.wait()

    def _dispose(self) -> None:
        """Its connections are closed by its end."""

    async def kill(self) -> None:
        """What it leaves behind, as far as others have found out: its lease is over, and its shards are free."""
        self.ledger._state.failed = CommitFailed("killed")
        await self.close()
        with psycopg.connect(self.url, options="-c search_path=holdfast") as connection:
            connection.execute("DELETE FROM members")
            connection.execute("DELETE FROM fences")
            connection.execute("UPDATE shards SET owner = NULL, epoch = epoch + 1")

    async def together(self, *operations: Operation) -> list[Any]:
        """New messages and all else go by connections of their own: in order only if one waits for the other."""
        return [await self._result(operation) for operation in operations]

    async def _result(self, operation: Operation) -> Any:
        try:
            return await self.ledger.perform(operation)
        except StoreFull as full:
            return full

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


def _everything_of(lane: str) -> LaneQuery:
    return LaneQuery(lane, 1 << 60, 1, 1, None, frozenset())
