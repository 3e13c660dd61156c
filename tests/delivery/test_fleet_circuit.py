"""A circuit is one for all replicas: counted together, changed once, probed once an interval."""

from collections import Counter

import psycopg
import trio

from delivery.fleet import BEAT, Fleet, Replica, fleet
from holdfast.core.circuit import CircuitState
from holdfast.core.message import State
from sim.world import HOST, NO_TRIPS, asks_for, settle, slow

ENABLED, DISABLED, FROZEN = CircuitState
TRIPS_AT_6 = {"min_attempts": 0, "disable_after": 6, "probe_every": "30s"}


async def trip(it: Fleet, replicas: list[Replica]) -> list[str]:
    """Have the circuit disabled by failures at all replicas, none of which has enough for it alone."""
    script, it.scripts[HOST] = it.scripts.get(HOST, 200), 500
    ids = []
    while not ids or await replicas[0].circuit_state() is ENABLED:
        ids += [await replica.accept() for replica in replicas]
        await settle()
    it.scripts[HOST] = script
    return ids


async def test_failures_of_all_replicas_add_up_and_trip_once(database: str, autojump_clock: object) -> None:
    it = fleet(database, circuit=TRIPS_AT_6)
    async with it.running(3) as replicas:
        await trip(it, replicas)
        assert len(it.requests) == 6
        assert sum(replica.tally.trips.total() for replica in replicas) == 1
        assert (await replicas[0].circuit()).consecutive_failures == 6
        await trio.sleep(2 * BEAT)
        for replica in replicas:
            await replica.accept_many(5)
        await trio.sleep(5)
        assert len(it.requests) == 6
        assert [replica.held for replica in replicas] == [0, 0, 0]


async def test_a_burst_at_all_replicas_trips_once(database: str, autojump_clock: object) -> None:
    it = fleet(database, circuit=TRIPS_AT_6, delivery={"per_host": 8})
    it.scripts[HOST] = slow(0.3, 500)
    async with it.running(2) as replicas:
        for replica in replicas:
            await replica.accept_many(40)
        await trio.sleep(10)
        assert sum(replica.tally.trips.total() for replica in replicas) == 1
        assert len(it.requests) <= 6 + 2 * 8
        stories = await replicas[0].ledger.stories(None, None, None, 100)
        assert Counter(story.state for story in stories[0])[State.DEAD] == 0


async def test_the_fleet_sends_one_probe_an_interval(database: str, autojump_clock: object) -> None:
    it = fleet(database, circuit=TRIPS_AT_6)
    it.scripts[HOST] = 500
    async with it.running(3) as replicas:
        await trip(it, replicas)
        since = replicas[0].now
        del it.requests[:]
        await trio.sleep(5 * 30 + 15)
        times = [request.at - since for request in it.requests]
        assert len(times) == 5
        assert all(30 * number <= at < 30 * number + 5 for number, at in enumerate(times, 1))
        assert max(it.sent().values()) == 1


async def test_a_probe_that_is_answered_well_enables_the_circuit_for_all(database: str, autojump_clock: object) -> None:
    it = fleet(database, circuit=TRIPS_AT_6)
    async with it.running(2) as replicas:
        await trip(it, replicas)
        for replica in replicas:
            await replica.accept_many(50)
        it.scripts[HOST] = slow(0.5)
        del it.requests[:]
        await trio.sleep(29)
        assert not it.requests
        await it.until(lambda: sum(it.of("delivered")) >= 100)
        assert it.requests[0].beside == it.requests[1].beside == 1
        assert all(replica.made[-1] > 29 for replica in replicas)
        assert max(it.sent().values()) == 1
        assert await replicas[0].circuit_state() is ENABLED


async def test_unfreezing_at_one_replica_starts_the_others(database: str, autojump_clock: object) -> None:
    it = fleet(database)
    it.scripts[HOST] = slow(1)
    async with it.running(2) as replicas:
        assert await replicas[0].dispatcher.freeze(HOST, HOST) is not None
        assert await replicas[1].dispatcher.freeze(HOST, HOST) is None
        for replica in replicas:
            await replica.accept_many(20)
        await trio.sleep(10)
        assert not it.requests
        change = await replicas[1].dispatcher.unfreeze(HOST, HOST)
        assert change is not None
        assert change.after is ENABLED
        began = it.replicas[0].now
        await it.until(lambda: bool(it.requests), 1.5 * BEAT)
        await it.until(lambda: sum(it.of("delivered")) == 40)
        assert min(replica.made[0] for replica in replicas) - began < 1.5 * BEAT
        assert min(len(replica.made) for replica in replicas) > 5


async def test_freezing_at_one_replica_stops_the_others(database: str, autojump_clock: object) -> None:
    it = fleet(database, delivery={"rate_per_host": 0.25})
    async with it.running(2) as replicas:
        for replica in replicas:
            await replica.accept_many(5)
        await trio.sleep(3)
        await replicas[0].dispatcher.freeze(HOST, HOST)
        await trio.sleep(20)
        assert [len(replica.made) for replica in replicas] == [1, 1]
        assert [replica.held for replica in replicas] == [0, 0]
        await replicas[1].dispatcher.unfreeze(HOST, HOST)
        await it.until(lambda: sum(it.of("delivered")) == 10)
    assert max(it.sent().values()) == 1


async def test_an_operators_probe_goes_now_and_only_to_a_disabled_circuit(
    database: str, autojump_clock: object
) -> None:
    it = fleet(database, circuit=TRIPS_AT_6)
    it.scripts[HOST] = 500
    async with it.running(2) as replicas:
        await replicas[0].accept()
        await settle()
        assert not await replicas[1].dispatcher.probe(HOST, HOST)
        await trip(it, replicas)
        del it.requests[:]
        assert await replicas[1].dispatcher.probe(HOST, HOST)
        await it.until(lambda: len(it.requests) == 1, 1.5 * BEAT)
        await trio.sleep(25)
        assert len(it.requests) == 1


async def test_a_retry_after_holds_the_host_for_all_replicas(database: str, autojump_clock: object) -> None:
    it = fleet(database, circuit=NO_TRIPS)
    async with it.running(2) as replicas:
        for replica in replicas:
            await replica.accept()
        await settle()
        it.scripts[HOST] = asks_for(503, 20)
        await replicas[0].accept()
        await settle()
        it.scripts[HOST] = 200
        held_until = replicas[0].now + 20
        await trio.sleep(1.5 * BEAT)
        del it.requests[:]
        for replica in replicas:
            await replica.accept_many(5)
        await it.until(lambda: len(it.requests) >= 10)
        assert min(request.at for request in it.requests) >= held_until


async def test_a_retry_is_made_by_whoever_is_there_when_it_is_due(database: str, autojump_clock: object) -> None:
    it = fleet(database, retry={"base": "20s"})
    it.scripts[HOST] = 500
    async with it.running(1) as [first]:
        async with it.replica() as second:
            await trio.sleep(3.5 * BEAT)
            id = await second.accept()
            await settle()
        failed = it.requests[0].at
        it.scripts[HOST] = 200
        await it.until(lambda: it.of("delivered")[0] == 1)
        assert failed + 20 <= it.requests[1].at < failed + 20 + 1.5 * BEAT
        assert await first.state(id) is State.DELIVERED
        assert [attempt.number for attempt in (await first.story(id)).attempts] == [1, 2]


async def test_a_probe_that_could_not_start_is_given_back_when_its_circuit_is_enabled(
    database: str, autojump_clock: object
) -> None:
    others = [f"{name}.test:80" for name in "bcde"]
    it = fleet(database, circuit=TRIPS_AT_6, delivery={"retries": 4}, retry={"base": "25s"})
    it.scripts.update(dict.fromkeys((HOST, *others), 500))
    async with it.running(1) as [alone]:
        await alone.accept_for(others)
        await settle()
        it.scripts.update(dict.fromkeys(others, slow(29, 500)))
        ids = await trip(it, [alone])
        it.scripts[HOST] = 200
        await trio.sleep(35)
        # All places for retries and probes are taken.
        assert it.sent()[ids[0]] == 1
        assert alone.held == 4 + 1
        await alone.dispatcher.unfreeze(HOST, HOST)
        await it.until(lambda: alone.tally.delivered == len(ids), 60)
        assert alone.tally.fenced == 0
        assert Counter(alone.ids()) == Counter(ids * 2)


async def test_what_comes_for_a_frozen_host_is_not_taken_at_once(database: str, autojump_clock: object) -> None:
    it = fleet(database)
    async with it.running(1) as [alone]:
        await alone.dispatcher.freeze(HOST, HOST)
        await trio.sleep(3.5 * BEAT)
        await alone.accept_many(20)
        with psycopg.connect(database) as connection:
            standings = connection.execute("SELECT standing, count(*) FROM holdfast.messages GROUP BY 1").fetchall()
        assert standings == [(1, 20)]
