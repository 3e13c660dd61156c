"""The same on a store that replicas share: it says what the one in memory says, as far as a dispatcher can tell.

What differs by nature is left out: there no operation finds a message that another one of its group has changed, since
whoever sends it has claimed it, and only what its circuit holds back expires.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amount import amount
from contract.builders import Desk, dump, engine_maker, frozen, ids
from contract.consistency import Tables
from contract.shared import SharedDesk
from contract.test_stateful import LANES, SIZE, Pair, drive, groups
from holdfast.core.circuit import CircuitState
from holdfast.core.message import Entry, MessageId, Standing, State
from holdfast.store.port import (
    Deliver,
    Expire,
    Fail,
    Forget,
    HandOver,
    Operation,
    Purge,
    SaveLane,
    Shelve,
    Swept,
    View,
)
from holdfast.store.tables import Table

NOBODY = 1 << 40
"""The number of a replica that never was."""


@dataclass
class Beside(Pair):
    """The store in memory, and one on a database beside it."""

    fenced: list[Operation] = field(default_factory=list)

    @property
    def shared(self) -> SharedDesk:
        desk = self.desks[1]
        assert isinstance(desk, SharedDesk)
        return desk

    async def group(self, actions: list[tuple[Any, ...]]) -> None:
        """A lane is forgotten when nothing of it is on its way, in memory or in the group."""
        await super().group([action for action in actions if action[0] != "forget"])
        for lane in (action[1] for action in actions if action[0] == "forget"):
            if all(entry.message.lane != lane for entry in self.active.values()):
                await self.perform([Forget(lane)])
                await self.check(dump(self.desks[0].engine), set(), purging=False)

    def feasible(self, operations: list[Operation]) -> list[Operation]:
        met: set[MessageId] = set()
        wanted: list[Operation] = []
        for operation in operations:
            if isinstance(operation, Expire):
                wanted += [SaveLane(frozen(operation.lane)), operation]
            elif isinstance(operation, Purge):
                wanted.append(replace(operation, keys_before=0, limit=1_000))
            elif _claims_only_new(operation, met):
                wanted.append(operation)
        for operation in wanted:
            if isinstance(operation, Expire):
                operation.skip = frozenset(self.active) | met
        return wanted

    def _late(self, within_reach: list[Entry], pick: int, step: str) -> Operation | None:
        """An outcome of a replica that was taken for dead: there is nothing like it in one process."""
        if within_reach:
            self.fenced.append(self._end(within_reach[pick % len(within_reach)]._replace(fence=NOBODY), step))
        return None

    async def perform(self, wanted: list[Operation]) -> list[Any]:
        embedded = await self.desks[0].together(*wanted)
        fenced, self.fenced = self.fenced, []
        for operation in fenced:
            await self.shared.ledger.perform(operation)
        shared = await self.shared.together(*wanted)
        assert [_alike(result) for result in shared] == [_alike(result) for result in embedded]
        return embedded

    def check_twin(self, tables: Tables) -> None:
        kept = self.shared.kept()
        for table, rows in ((Table.MESSAGES, kept["messages"]), (Table.DELIVERED, kept["delivered"])):
            assert {id for id, _ in tables[table]} == {row[0] for row in rows}
        self.shared.check()

    async def answers(self, desk: Desk) -> list[object]:
        """When lanes wake is not the same: a moment may be too early until somebody looks. Active messages wait too."""
        ledger = desk.ledger
        active = Counter(entry.message.lane for entry in self.active.values() if desk is self.desks[0])
        views = [_shown(await desk.look(key)) for key in LANES]
        pages = [await ledger.stories(state, None, None, 100) for state in (None, *State)]
        circuits = [
            [
                (view.record.key, view.record.circuit.state, view.waiting + active[view.record.key], view.dead)
                for view in page
            ]
            for page, _ in [await ledger.circuits(state, None, 10) for state in (None, *CircuitState)]
        ]
        statistics = (await ledger.statistics())._replace(path="", used_bytes=0, reserved_bytes=0)
        page = await ledger.waiting(None, 100)
        return [views, pages, page, circuits, statistics, (await ledger.oldest_finished())[:2]]


def _claims_only_new(operation: Operation, met: set[MessageId]) -> bool:
    """Whether it is about messages that no other operation of its group is about; an attempt that ends without a step
    gives an active one back there.
    """
    if isinstance(operation, Shelve):
        operation.messages = [message for message in operation.messages if message.id not in met]
        met |= {message.id for message in operation.messages}
    elif isinstance(operation, HandOver):
        entries = [entry for entry in operation.entries if entry.place.standing is not Standing.ACTIVE]
        operation.entries = [entry for entry in entries if entry.message.id not in met]
        met |= set(ids(operation.entries))
    elif isinstance(operation, (Deliver, Fail)):
        gives_back = isinstance(operation, Fail) and operation.step is None
        if operation.entry.message.id in met or (gives_back and operation.entry.place.standing is Standing.ACTIVE):
            return False
        met.add(operation.entry.message.id)
    return True


def _alike(result: Any) -> Any:
    return (sorted(result.ids), result.lanes) if isinstance(result, Swept) else result


def _shown(view: View) -> object:
    """Of a circuit that lets nothing through no messages are shown there."""
    enabled = view.record is None or view.record.circuit.state is CircuitState.ENABLED
    return (view.fresh, view.due, view.more_fresh, view.next_due) if enabled else None


async def drive_beside(script: list[Any], url: str, folder: Path) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS holdfast CASCADE")
    async with trio.open_nursery() as nursery:
        embedded = Desk(nursery, engine_maker("memory", folder, SIZE))
        await drive(Beside([embedded, SharedDesk(nursery, url=url, max_size=SIZE, threaded=False)]), script)


@settings(max_examples=amount(12, 25), suppress_health_check=list(HealthCheck))
@given(script=st.lists(groups, max_size=25))
def test_a_shared_store_agrees_and_no_message_is_lost(script: list[Any], database: str, tmp_path: Path) -> None:
    trio.run(drive_beside, script, database, tmp_path)
