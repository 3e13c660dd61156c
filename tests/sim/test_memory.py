"""A waiting host costs no CPU and no memory, however long its queue."""

import trio

from holdfast.core.budget import MESSAGE_OVERHEAD
from holdfast.core.circuit import CircuitState
from tests.sim.stores import long_on_each_store, long_on_postgres
from tests.sim.world import DAY, HOST, HOUR, TRIPS_AT_3, World, slow, world
from tests.support.repetitions import amount

pytestmark = long_on_each_store

MANY = amount(3_000, 50_000)
KEEPS_ALL = {"retention": {"delivered": "60d", "dead": "60d"}, "ingest": {"idempotency": "60d"}}
"""So that no sweep comes in between: one looks once a day, however many hosts wait."""


def held_in_memory(it: World) -> tuple[int, int, int]:
    """Live lanes, bytes of bodies, and messages of the host's lane."""
    lane = it.lanes.find(HOST)
    return len(it.lanes.live), it.lanes.memory.used, 0 if lane is None else len(lane.known)


async def test_thousands_of_messages_for_a_disabled_host_hold_nothing_in_memory(autojump_clock: object) -> None:
    it = world(circuit=TRIPS_AT_3)
    async with it.gateway():
        await it.trip()
        it.scripts[HOST] = 500
        await it.accept_many(MANY)
        await it.sleep_to(1)
        assert held_in_memory(it) == (0, 0, 0)
        assert (await it.ledger.statistics()).waiting == MANY + 3
        await it.sleep_to(6001)
        assert len(it.times()) == 3 + 10
        assert held_in_memory(it) == (0, 0, 0)


async def test_only_the_head_of_a_slow_host_s_backlog_is_in_memory(autojump_clock: object) -> None:
    it = world()
    it.scripts[HOST] = slow(1)
    async with it.gateway():
        await it.accept_many(amount(2_500, 5_000), body=b"x" * 1_000)
        for _ in range(20):
            await trio.sleep(5)
            _, held, known = held_in_memory(it)
            assert known <= 256 + 16
            assert held == known * (MESSAGE_OVERHEAD + len("/hook") + 1_000)
        await it.sleep_to(400)
        assert held_in_memory(it) == (0, 0, 0)
        assert (await it.ledger.statistics()).waiting == 0


async def test_for_a_frozen_host_nothing_runs_in_30_days(autojump_clock: object) -> None:
    it = world(circuit={"min_attempts": 0, "freeze_at": 3}, retry={"expire_after": "60d"}, **KEEPS_ALL)
    it.scripts[HOST] = 500
    async with it.gateway():
        await it.accept_many(100)
        await it.sleep_to(10 * DAY)
        assert await it.circuit_state() is CircuitState.FROZEN
        before = it.engine.commits, trio.lowlevel.current_statistics().tasks_living
        reads = it.engine.reads
        await it.sleep_to(40 * DAY)
        after = it.engine.commits, trio.lowlevel.current_statistics().tasks_living
        reads = it.engine.reads - reads
    assert before == after
    assert reads <= it.looks(30 * DAY)


@long_on_postgres
async def test_frozen_and_disabled_hosts_with_nothing_waiting_cost_nothing(autojump_clock: object) -> None:
    it = world(circuit=TRIPS_AT_3, **KEEPS_ALL)
    it.scripts[HOST] = 500
    async with it.gateway():
        await it.trip()
        it.scripts[HOST] = 500
        await it.sleep_to(6 * DAY)
        before = it.engine.reads
        await it.sleep_to(30 * DAY)
        assert await it.circuit_state() is CircuitState.DISABLED
    assert it.engine.reads - before <= 2 + it.looks(24 * DAY)


async def test_an_idle_gateway_does_nothing(autojump_clock: object) -> None:
    it = world()
    async with it.gateway():
        await it.accept()
        await it.sleep_to(HOUR)
        reads, commits = it.engine.reads, it.engine.commits
        await it.sleep_to(23 * HOUR)
        assert it.engine.reads - reads <= it.looks(22 * HOUR)
        assert it.engine.commits == commits
