"""Each host has one owner among the replicas, which delivers to it as a single gateway does."""

from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
import trio

from holdfast.core.circuit import CircuitState
from holdfast.core.errors import Fenced, StoreUnreachable
from holdfast.core.message import MessageState
from holdfast.core.ownership import SHARDS, shard_of
from tests.fleet.virtual_replicas import BEAT, LEASE, Replica, fleet
from tests.sim.world import HOST, NO_TRIPS, START, asks_for, hang, settle, slow
from tests.support.database_link import DatabaseLink
from tests.support.repetitions import cases

ENABLED, DISABLED, FROZEN = CircuitState
TRIPS_AT_6 = {"min_attempts": 0, "disable_after": 6, "probe_every": "30s"}


@pytest.fixture
def database(tables: str) -> str:
    return tables


FOUND = 1.5 * BEAT
"""Seconds after which a replica has found what another one accepted for it."""


async def states(replica: Replica, ids: list[str]) -> Counter[MessageState]:
    return Counter([await replica.state(id) for id in ids])


def others(replicas: list[Replica], owner: Replica) -> list[Replica]:
    return [replica for replica in replicas if replica is not owner]


# -- who owns what -----------------------------------------------------------------------------------------------------


async def test_replicas_share_the_hosts_and_no_shard_has_two_owners(database: str, autojump_clock: object) -> None:
    it = fleet(database)
    async with it.running(4) as replicas:
        parts = [replica.shards for replica in replicas]
        assert sum(map(len, parts)) == len(set().union(*parts)) == SHARDS
        assert min(map(len, parts)) > SHARDS / 4 / 2


async def test_a_replica_that_leaves_hands_its_hosts_over_at_once(database: str, autojump_clock: object) -> None:
    it = fleet(database)
    async with it.running(1) as [stays]:
        async with it.replica() as leaves:
            await it.until(lambda: len(leaves.shards) > 50)
            assert len(stays.shards) == SHARDS - len(leaves.shards)
        await it.until(lambda: len(stays.shards) == SHARDS, 3 * BEAT)


async def test_only_the_owner_sends_wherever_a_webhook_was_accepted(database: str, autojump_clock: object) -> None:
    it = fleet(database)
    async with it.running(3) as replicas:
        for replica in replicas:
            await replica.accept_many(5)
        await trio.sleep(FOUND)
        owner = it.owner()
        assert len(owner.made) == 15
        assert not any(replica.made for replica in others(replicas, owner))
        assert max(it.sent().values()) == 1


async def test_first_attempts_start_in_the_order_of_acknowledgement_over_all_replicas(
    database: str, autojump_clock: object
) -> None:
    it = fleet(database, delivery={"per_host": 1})
    it.scripts[HOST] = slow(0.2)
    async with it.running(3) as replicas:
        ids = [await replicas[number % 3].accept() for number in range(30)]
        await it.until(lambda: len(it.requests) == 30)
        assert [request.id for request in it.requests] == ids


@pytest.mark.parametrize("ahead", cases([300], [-300]))
async def test_clocks_that_differ_do_not_change_the_order(ahead: int, database: str, autojump_clock: object) -> None:
    """More than are ever in memory, so that most go through the queue, which has them by their age. Then the owner
    leaves, and the other one goes on.
    """
    it = fleet(database, delivery={"per_host": 1})
    it.scripts[HOST] = slow(0.05)
    async with it.replica() as first:
        async with it.replica(ahead=ahead) as second:
            await it.until(lambda: shard_of(HOST) in second.shards)
            ids = []
            for number in range(400):
                ids.append(await (first, second)[number % 2].accept())
                await trio.sleep(0.002)
            await it.until(lambda: len(it.requests) > 100)
        await it.until(lambda: len(it.requests) > 400)
        assert list(dict.fromkeys(request.id for request in it.requests)) == ids


async def test_the_limit_of_a_host_holds_while_replicas_come_and_go(database: str, autojump_clock: object) -> None:
    it = fleet(database, delivery={"per_host": 3})
    it.scripts[HOST] = slow(0.7)
    async with it.running(2) as replicas:
        for replica in replicas:
            await replica.accept_many(60)
        for _ in range(3):
            async with it.replica():
                await trio.sleep(4)
        await it.until(lambda: sum(it.of("delivered")) == 120, 120)
    assert it.most_open() == 3
    assert max(it.sent().values()) <= 2, "what was interrupted by the end of its replica comes again"


async def test_a_circuit_trips_once_and_is_probed_once_an_interval(database: str, autojump_clock: object) -> None:
    it = fleet(database, circuit=TRIPS_AT_6)
    it.scripts[HOST] = 500
    async with it.running(3) as replicas:
        for replica in replicas:
            await replica.accept_many(10)
        await trio.sleep(2 * BEAT)
        assert sum(replica.counters.trips.total() for replica in replicas) == 1
        sent = len(it.requests)
        await trio.sleep(5 * 30)
        assert len(it.requests) == sent + 5


async def test_a_host_that_hangs_delays_only_its_own_shard(database: str, autojump_clock: object) -> None:
    it = fleet(database)
    it.scripts[HOST] = hang
    async with it.running(1) as [first]:
        await first.accept()
        await settle()
        async with it.replica() as second:
            await it.until(lambda: len(second.shards) > 50, 4 * BEAT)
            moved = len(second.shards)
            await trio.sleep(31)
            assert len(second.shards) in (moved, moved + 1)
    assert len(it.requests) == 1


# -- what goes from one owner to the next ------------------------------------------------------------------------------


async def test_a_circuit_and_its_probes_go_on_at_the_next_owner(database: str, autojump_clock: object) -> None:
    it = fleet(database, circuit=TRIPS_AT_6)
    it.scripts[HOST] = 500
    async with it.running(1) as [stays]:
        async with it.replica() as leaves:
            await it.until(lambda: shard_of(HOST) in leaves.shards)
            await leaves.accept_many(10)
            await it.until(lambda: leaves.counters.trips.total() == 1)
            begun = len(leaves.made)
            await trio.sleep(30)
            assert len(leaves.made) == begun + 1
        await it.until(lambda: shard_of(HOST) in stays.shards, 3 * BEAT)
        since = (await stays.circuit()).since / 1000 - START / 1000
        await trio.sleep(3 * 30)
        assert stays.counters.trips.total() == 0
        probes = [at - since for at in stays.made]
        assert [int(at // 30) for at in probes] == [2, 3, 4], probes


async def test_a_retry_and_a_hold_are_kept_by_the_next_owner(database: str, autojump_clock: object) -> None:
    it = fleet(database, retry={"base": "20s"}, circuit=NO_TRIPS)
    it.scripts[HOST] = asks_for(503, 20)
    async with it.running(1) as [stays]:
        async with it.replica() as leaves:
            await it.until(lambda: shard_of(HOST) in leaves.shards)
            ids = [await leaves.accept()]
            await settle()
            held_until = leaves.now + 20
        it.scripts[HOST] = 200
        ids.append(await stays.accept())
        await it.until(lambda: stays.counters.delivered == 2)
        await trio.sleep(BEAT)
        assert held_until <= min(stays.made) < held_until + 2 * BEAT
        assert [attempt.number for attempt in (await stays.message_view(ids[0])).attempts] == [1, 2]


async def test_messages_without_an_attempt_are_sent_by_the_next_owner(database: str, autojump_clock: object) -> None:
    it = fleet(database, delivery={"per_host": 2})
    it.scripts[HOST] = slow(5)
    async with it.running(1) as [stays]:
        async with it.replica() as leaves:
            await it.until(lambda: shard_of(HOST) in leaves.shards)
            ids = await leaves.accept_many(9)
            await settle()
            begun = len(leaves.made)
            assert leaves.held == 9 > begun
            it.scripts[HOST] = 200
        await it.until(lambda: stays.counters.delivered == 9, 3 * BEAT)
        await trio.sleep(BEAT)
        assert await states(stays, ids) == {MessageState.DELIVERED: 9}
    assert len(it.requests) == 9 + begun


async def test_a_host_whose_hand_over_is_cancelled_misses_nothing(database: str, autojump_clock: object) -> None:
    """Whoever it was to go to is gone before what hangs there has ended."""
    it = fleet(database, delivery={"per_host": 1})
    it.scripts[HOST] = hang
    async with it.running(1) as [stays]:
        ids = await stays.accept_many(3)
        await settle()
        it.scripts[HOST] = 200
        async with it.replica() as goes:
            await it.until(lambda: shard_of(HOST) in stays.ledger._shards.leaving)
            ids += [await goes.accept(), await stays.accept()]
        await it.until(lambda: stays.counters.delivered == 4, 45)
        assert list(dict.fromkeys(request.id for request in it.requests)) == ids
    assert it.most_open() == 1


async def test_a_drain_ends_even_if_other_replicas_have_work(database: str, autojump_clock: object) -> None:
    it = fleet(database, delivery={"per_host": 1})
    it.scripts[HOST] = slow(2)
    async with it.running(2) as replicas:
        for replica in replicas:
            await replica.accept_many(10)
        await trio.sleep(3)
        [idle] = others(replicas, it.owner())
        with trio.fail_after(2 * BEAT):
            await idle.dispatcher.wait_quiet()
        assert it.open[HOST] == 1


# -- what is lost ------------------------------------------------------------------------------------------------------


async def test_another_replica_sends_the_messages_of_a_dead_one(
    database: str, link: DatabaseLink, autojump_clock: object
) -> None:
    it = fleet(database, delivery={"per_host": 4})
    it.scripts[HOST] = hang
    async with it.replica(link) as gone:
        ids = await gone.accept_many(10)
        await settle()
        begun = len(gone.made)
        assert begun
        async with it.replica() as there:
            link.cut()
            it.scripts[HOST] = 200
            await it.until(lambda: there.counters.delivered == 10, 2 * LEASE)
            await trio.sleep(BEAT)
            assert await states(there, ids) == {MessageState.DELIVERED: 10}
            assert len(gone.made) == begun, "nothing begins after the end of a lease"
            link.restore()
            await it.until(lambda: gone.counters.fenced == begun, 40)
            assert gone.held == 0
            assert (await there.circuit()).consecutive_failures == 0
    assert max(it.sent().values()) <= 2


async def test_no_attempt_starts_after_the_lease_ends(
    database: str, link: DatabaseLink, autojump_clock: object
) -> None:
    it = fleet(database, delivery={"per_host": 1}, circuit=NO_TRIPS)
    it.scripts[HOST] = slow(0.5)
    async with it.replica(link) as alone:
        await alone.accept_many(40)
        await trio.sleep(3.2)
        link.cut()
        cut_at = alone.now
        await trio.sleep(20)
        assert cut_at < alone.made[-1] < cut_at + LEASE
        link.restore()
        await it.until(lambda: alone.counters.delivered >= 40)
        assert alone.counters.fenced == 0
    assert max(it.sent().values()) == 1


async def test_outcomes_are_recorded_when_the_store_is_back(
    database: str, link: DatabaseLink, autojump_clock: object
) -> None:
    it = fleet(database)
    it.scripts[HOST] = slow(2)
    async with it.replica(link) as alone:
        ids = await alone.accept_many(5)
        await settle()
        link.cut()
        await trio.sleep(3)
        with pytest.raises(StoreUnreachable):
            await alone.accept()
        link.restore()
        await trio.sleep(2)
        assert await states(alone, ids) == {MessageState.DELIVERED: 5}
    assert max(it.sent().values()) == 1


async def test_nothing_expires_for_ten_minutes_after_an_outage(
    database: str, link: DatabaseLink, autojump_clock: object
) -> None:
    it = fleet(database, circuit={"probe_every": "20s"}, retry={"expire_after": "40s"})
    async with it.replica(link) as alone:
        await it.until(lambda: len(alone.shards) == SHARDS)
        await alone.delivery.control.freeze(HOST, HOST)
        ids = await alone.accept_many(4)
        await trio.sleep(25)
        link.cut()
        await trio.sleep(60)
        link.restore()
        await trio.sleep(18)
        assert await states(alone, ids) == {MessageState.HELD: 4}
        await trio.sleep(10)
        assert await states(alone, ids) == {MessageState.DEAD: 4}


@pytest.mark.parametrize("finds_out_by", cases(["an outcome", "handing over", "a renewal"], ["a freeze", "a review"]))
async def test_a_replica_that_was_declared_dead_joins_again_and_loses_nothing(
    finds_out_by: str, database: str, autojump_clock: object
) -> None:
    it = fleet(database, circuit=NO_TRIPS, delivery={"per_host": 2})
    it.scripts[HOST] = slow(0.5)
    async with it.running(1) as [alone], AsyncExitStack() as stack:
        before = alone.member
        ids = await alone.accept_many(6)
        await trio.sleep(0.1)
        if finds_out_by == "handing over":
            await stack.enter_async_context(it.replica())
        it.bury(alone)
        if finds_out_by == "an outcome":
            await it.until(lambda: alone.counters.fenced > 0, BEAT)
        elif finds_out_by == "a freeze":
            with pytest.raises(Fenced):
                await alone.delivery.control.freeze("other.test:80", "other.test:80")
        elif finds_out_by == "a review":
            alone.delivery._upkeep.review()
        await it.until(lambda: alone.member not in (0, before))
        await it.until(lambda: sum(it.of("delivered")) >= 6)
        await trio.sleep(BEAT)
        assert await states(alone, ids) == {MessageState.DELIVERED: 6}
        assert max(it.sent().values()) <= 2


@pytest.mark.parametrize("what", ["accept", "outcome"])
async def test_a_commit_whose_answer_is_lost_loses_and_repeats_nothing(
    what: str, database: str, link: DatabaseLink, autojump_clock: object
) -> None:
    it = fleet(database)
    it.scripts[HOST] = slow(0.3)
    async with it.replica(link) as alone:
        await trio.sleep(1.5)
        if what == "accept":
            link.loses_answer_to = HOST.encode()
            with pytest.raises(StoreUnreachable):
                await alone.accept()
        else:
            await alone.accept()
            await settle()
            await trio.sleep(0.1)
            link.loses_answer_to = HOST.encode()
        await trio.sleep(10)
        assert link.loses_answer_to is None
        assert len(it.requests) == 1
        assert (await alone.ledger.statistics()).waiting == 0
        assert not alone.held


async def test_a_clone_of_a_replica_is_detected(database: str, autojump_clock: object) -> None:
    it = fleet(database)
    it.scripts[HOST] = hang
    async with it.replica() as original:
        await original.accept()
        await settle()
        async with it.replica() as clone:
            clone.ledger._member.membership = replace(original.ledger._member.membership)
            clone.ledger._shards.owned.update(original.ledger._shards.owned)
            first = original.member
            await it.until(lambda: {original.member, clone.member} != {first}, 3 * BEAT)
            await it.until(lambda: original.member != clone.member, 3 * BEAT)


async def test_a_circuit_is_as_old_as_the_first_message_for_its_host(database: str, autojump_clock: object) -> None:
    it = fleet(database)
    async with it.running(1) as [alone]:
        await alone.accept()
        await it.until(lambda: alone.counters.delivered == 1)
        circuit = await alone.circuit()
        assert circuit.since == circuit.enabled_at == circuit.first_attempt_at
