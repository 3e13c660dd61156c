"""Tables of the version before, in which replicas claimed messages: nothing is lost or changed on the way from there,
and nobody sends while a replica of that version does.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from secrets import randbits
from typing import Any

import psycopg
import trio
from pytest import mark, raises

from holdfast.core.circuit import CircuitState
from holdfast.core.errors import StoreUnusable
from holdfast.core.message import DeadReason, Message, MessageState, id_text
from holdfast.core.ownership import SHARDS
from holdfast.store import records
from holdfast.store.port import Accept, Accepted, Duplicate, LaneQuery
from holdfast.store.postgres import schema
from holdfast.store.postgres.migration import bring_up_to_date, migrate
from holdfast.store.postgres.schema import STEPS, VERSION
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.postgres.transactions import Connection, connect
from tests.contract import consistency_postgres as consistency
from tests.contract.builders import HOST, NOW, RULES, idempotency
from tests.fleet.virtual_replicas import Replica, fleet
from tests.sim.world import START
from tests.store import version_one as v1
from tests.store.populated import SIZE
from tests.store.version_one import Old, counted, version_one
from tests.support.harness import PATIENCE
from tests.support.trio_clock import TrioClock

EVERYTHING = 1 << 40


@asynccontextmanager
async def replica(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, RULES, TrioClock(NOW), randbits, max_size=SIZE, renew_every=20)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield store
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], Any]) -> None:
    with trio.fail_after(PATIENCE):
        while not condition():
            await trio.sleep(0.01)


def owned(*stores: PostgresStore) -> int:
    return sum(len(store._shards.owned) for store in stores)


def versions(old: Old) -> list[object]:
    return [version for (version,) in old.execute("SELECT version FROM versions ORDER BY version")]


def message(store: PostgresStore, host: str) -> Message:
    return Message(store.mint(NOW), host, host, "http", host, b"/hook", "POST", (), b"{}", NOW, NOW)


async def beats(old: Old, number: int) -> None:
    before = dict(old.execute("SELECT number, renewals FROM members"))

    def passed() -> bool:
        found = dict(old.execute("SELECT number, renewals FROM members"))
        return all(found.get(key, 0) >= renewals + number for key, renewals in before.items())  # type: ignore[operator]

    await until(passed)


async def read(store: PostgresStore, lane: str, now: int = EVERYTHING * 2) -> list[bytes]:
    [view] = await store.survey([LaneQuery(lane, now, 100, 100, None, frozenset())])
    return [entry.message.id for entry in (*view.fresh, *view.due)]


async def test_while_an_older_replica_is_alive_a_newer_one_accepts_and_owns_nothing(database: str) -> None:
    old = version_one(database, NOW)
    async with replica(database) as store, replica(database) as other:
        fresh = message(store, v1.BUSY)
        assert await store.perform(Accept(fresh)) == Accepted(active=True)
        assert await other.perform(Accept(message(other, HOST), idempotency("k"))) == Duplicate(old["delivered"])
        await beats(old, 5)
        assert (owned(store, other), versions(old)) == (0, [1, 2])
        claimed = "SELECT count(*) FROM messages WHERE owner IS NOT NULL"
        assert old.execute(claimed) == [(4,)]
        old.replica_is_alive(lease=0)
        await until(lambda: owned(store, other) == SHARDS)
        assert versions(old) == [1, 2, 3]
        owner = store if store.owns(v1.BUSY) else other
        told = await owner.message_view(fresh.id)
        assert told is not None
        assert told.state is MessageState.QUEUED
    consistency.check(database, RULES, NOW)


async def test_nothing_is_lost_or_changed_on_the_way(database: str) -> None:
    old = version_one(database, NOW)
    old.replica_is_alive(lease=0)
    before = counted(old)
    async with replica(database) as store:
        await until(lambda: owned(store) == SHARDS)
        assert {name for (name,) in old.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'")} == {
            *("messages", "attempts", "delivered", "keys", "lanes", "counters", "members", "fences", "shards"),
            *("requests", "meta", "versions"),
        }
        assert counted(old) == before
        consistency.check(database, RULES, NOW)

        fresh = ["active", *(f"waiting {number}" for number in range(3)), "claimed"]
        assert await read(store, v1.BUSY) == [old[name] for name in (*fresh, "claimed retry", "retry", "delayed")]
        assert await read(store, v1.BUSY, NOW) == [old[name] for name in (*fresh, "claimed retry")]
        for name, original in old.named.items():
            view = await store.message_view(original.id)
            assert view is not None, name
            expected = original._replace(body=b"") if name == "delivered" else original
            assert view.message == expected, name
        for name, due in (("retry", NOW + v1.RETRY_IN), ("delayed", NOW + v1.DELAYED)):
            view = await store.message_view(old[name])
            assert view is not None
            assert view.place is not None
            assert (view.place.due, view.place.held) == (due, name == "delayed")
        dead = await store.message_view(old["dead"])
        assert dead is not None
        assert (dead.state, dead.dead_reason, len(dead.attempts)) == (MessageState.DEAD, DeadReason.EXHAUSTED, 4)

        found, _ = await store.circuits(None, None, 100)
        assert {view.record.key for view in found} == set(old.circuits)
        for view in found:
            unchanged = view.record._replace(circuit=old.circuits[view.record.key])
            assert records.encode_lane(view.record) == records.encode_lane(unchanged)
        holds = {view.record.host: (view.record.limit, view.record.hold_until) for view in found}
        assert holds.pop(v1.LIMITED) == (4, NOW + v1.HOLD)
        assert set(holds.values()) == {(1, 0)}
        # The only claimed message of a lane has it looked at now, not in a month.
        assert v1.CLAIMED in (await store.agenda(NOW, 100, ())).lanes


async def test_what_was_there_is_delivered_in_order_and_not_before_its_time(
    database: str, autojump_clock: object
) -> None:
    old = version_one(database, START)
    it = fleet(database, delivery={"per_host": 1})
    async with it.replica() as first, it.replica() as second:
        new = [await first.accept(v1.BUSY), await second.accept(v1.BUSY)]
        await trio.sleep(5)
        assert it.requests == []
        old.replica_is_alive(lease=0)
        await it.until(lambda: len(first.shards | second.shards) == SHARDS)
        await trio.sleep(10)
        assert first.now < v1.RETRY_IN / 1000
        by_host = {
            host: [each.id for each in it.requests if each.host == host] for host in {r.host for r in it.requests}
        }

        def ids(*names: str) -> list[str]:
            return [id_text(old[name]) for name in names]

        sent = by_host.pop(v1.BUSY)
        [retried] = ids("claimed retry")
        assert [id for id in sent if id != retried] == [
            *ids("active", "waiting 0", "waiting 1", "waiting 2", "claimed"),
            *new,
        ]
        assert retried in sent
        assert by_host == {v1.CLAIMED: ids("only claimed"), v1.SHARED: ids("by url 0", "by url 1")}
        await first.sleep_to(v1.DELAYED / 1000 + 5)
        assert first.times(host=v1.LIMITED) == [v1.HOLD / 1000]
        assert first.times(id=ids("retry")[0]) == [v1.RETRY_IN / 1000]
        assert first.times(id=ids("delayed")[0]) == [v1.DELAYED / 1000]
        # The first probe enables the circuit, and the other one follows.
        assert [each.id for each in it.requests if each.host == v1.DOWN] == ids("held 0", "held 1")
        assert first.times(host=v1.DOWN)[0] == v1.PROBE_IN / 1000
        assert first.times(host=v1.ICE) == []
        assert await states(first, ids("frozen", "frozen retry", "dead")) == [
            MessageState.HELD,
            MessageState.HELD,
            MessageState.DEAD,
        ]
        assert await first.circuit_state(v1.ICE) is CircuitState.FROZEN
        assert max(it.sent().values()) == 1


async def states(replica: Replica, ids: list[str]) -> list[MessageState]:
    return [await replica.state(id) for id in ids]


# -- what gets in the way ----------------------------------------------------------------------------------------------


def outside(url: str) -> Connection:
    connection = connect(url, "test")
    connection.autocommit = True
    return connection


def test_migrate_names_the_older_replicas_that_are_alive(database: str) -> None:
    old = version_one(database, NOW)
    with raises(StoreUnusable, match=r"step 3 removes what older replicas use, and these are alive: old:1 \(0.9\)"):
        migrate(database)
    assert versions(old) == [1, 2]
    old.replica_is_alive(lease=0)
    assert migrate(database) == (2, VERSION)


@mark.parametrize("late", ["accepts", "starts"])
def test_what_an_older_replica_did_at_the_last_moment_is_made_up_for(database: str, late: str) -> None:
    """It stood still past its lease, or started just then."""
    old = version_one(database, NOW)
    old.replica_is_alive(lease=0)
    passes: list[str] = []

    def interfered(connection: psycopg.Connection) -> None:
        schema.convert_claims(connection)
        passes.append(late)
        if len(passes) == 1:
            old.lane("late.test:80", old.circuits[v1.BUSY], NOW)
            old.put("late", "late.test:80", 0, owner=v1.OLD)
            if late == "starts":
                old.replica_is_alive()

    steps = (*STEPS[:2], replace(STEPS[2], convert=interfered))
    with outside(database) as connection:
        assert bring_up_to_date(connection, steps) == (1, 2 if late == "starts" else VERSION)
    if late == "starts":
        old.replica_is_alive(lease=0)
        migrate(database)
    consistency.check(database, RULES, NOW)
    assert old.execute("SELECT standing FROM messages WHERE id = %s", old["late"]) == [(1,)]
