"""What a host may be sent holds for all replicas together."""

from collections import Counter

import psycopg
import pytest
import trio

from delivery.fleet import BEAT, Fleet, Replica, fleet
from sim.world import HOST, NO_TRIPS, TRIPS_AT_3, settle, slow

OTHER = "b.test:80"


async def accept_at(replicas: list[Replica], number: int, host: str = HOST) -> list[str]:
    """So many messages at each."""
    return [id for replica in replicas for id in await replica.accept_many(number, host)]


async def all_sent(it: Fleet, ids: list[str], within: float = 120) -> None:
    await it.until(lambda: set(ids) <= set(it.sent()) and not it.open.total(), within)


@pytest.mark.parametrize("per_host", [1, 2, 5])
async def test_no_more_is_open_than_per_host_and_each_message_is_sent_once(
    per_host: int, database: str, autojump_clock: object
) -> None:
    it = fleet(database, delivery={"per_host": per_host})
    it.scripts[HOST] = slow(0.5)
    async with it.running(3) as replicas:
        ids = await accept_at(replicas, 20)
        await all_sent(it, ids)
    assert it.most_open() == per_host
    assert it.sent() == Counter(ids)
    assert sum(it.of("delivered")) == 60


async def test_what_comes_to_a_replica_without_a_share_is_sent_by_one_that_has(
    database: str, autojump_clock: object
) -> None:
    it = fleet(database, delivery={"per_host": 1})
    async with it.running(3) as replicas:
        for replica in replicas:
            await replica.accept()
            await it.until(lambda: not it.open.total(), 3)
        await it.until(lambda: len(it.requests) == 3, 5 * BEAT)
        assert sorted(len(replica.made) for replica in replicas) == [0, 0, 3]
        assert [replica.held for replica in replicas] == [0, 0, 0]


async def test_replicas_that_come_and_go_share_out_the_limit_anew(database: str, autojump_clock: object) -> None:
    it = fleet(database, delivery={"per_host": 4})
    it.scripts[HOST] = slow(0.9)
    async with it.running(1) as [first]:
        ids = await first.accept_many(100)
        await trio.sleep(5)
        assert first.share == 4
        async with it.replica() as second:
            await trio.sleep(5 * BEAT)
            assert (first.share, second.share) == (2, 2)
        await trio.sleep(2 * BEAT)
        assert first.share == 4
        await all_sent(it, ids)
    assert it.most_open() == 4
    # What was under way when the second one ended is sent again.
    assert sum(it.sent().values()) <= 100 + 2


async def test_a_rate_holds_for_the_fleet(database: str, autojump_clock: object) -> None:
    it = fleet(database, delivery={"rate_per_host": 4})
    async with it.running(2) as replicas:
        ids = await accept_at(replicas, 12)
        await all_sent(it, ids)
    times = sorted(request.at for request in it.requests)
    assert all(later - earlier >= 0.49 for earlier, later in zip(times, times[2:], strict=False))
    assert times[-1] - times[0] < 8


async def test_no_replica_sits_on_a_backlog_that_others_could_send(database: str, autojump_clock: object) -> None:
    it = fleet(database, delivery={"per_host": 8}, circuit=TRIPS_AT_3)
    it.scripts[HOST] = slow(1)
    async with it.running(2) as replicas:
        await replicas[0].dispatcher.freeze(HOST, HOST)
        ids = await accept_at(replicas, 100)
        await replicas[0].dispatcher.unfreeze(HOST, HOST)
        most = [0, 0]
        for _ in range(200):
            most = [max(*pair) for pair in zip(most, (replica.held for replica in replicas), strict=True)]
            await trio.sleep(0.1)
        await all_sent(it, ids)
    # In flight, and twice the share ahead.
    assert max(most) <= 4 + 8
    assert [len(replica.made) for replica in replicas] == pytest.approx([100, 100], rel=0.25)


async def test_a_host_that_is_enabled_again_is_approached_slowly_by_the_whole_fleet(
    database: str, autojump_clock: object
) -> None:
    it = fleet(database, delivery={"per_host": 8})
    it.scripts[HOST] = slow(1)
    async with it.running(3) as replicas:
        await replicas[0].dispatcher.freeze(HOST, HOST)
        ids = await accept_at(replicas, 20)
        await replicas[2].dispatcher.unfreeze(HOST, HOST)
        await all_sent(it, ids)
    grown = 0
    for request in sorted(it.requests, key=lambda each: each.at):
        ended = sum(other.at + 1 <= request.at for other in it.requests)
        # 1 success makes it 2, 2 more 4, 4 more 8.
        grown = 1 if ended < 1 else 2 if ended < 3 else 4 if ended < 7 else 8
        assert request.beside <= grown
    assert grown == 8
    assert it.most_open() == 8


async def test_a_share_that_is_gone_gives_back_what_it_claimed(database: str, autojump_clock: object) -> None:
    it = fleet(database, delivery={"per_host": 1})
    it.scripts[HOST] = slow(0.9)
    async with it.running(1) as [first]:
        ids = await first.accept_many(40)
        async with it.replica() as second:
            await trio.sleep(4 * BEAT)
            async with it.replica() as third:
                await all_sent(it, ids)
                made = [len(replica.made) for replica in (first, second, third)]
    assert min(made) == 0
    assert max(made) < 40
    assert it.most_open() == 1
    assert it.sent() == Counter(ids)


async def test_what_waits_for_one_host_does_not_hold_up_another(database: str, autojump_clock: object) -> None:
    it = fleet(database, delivery={"per_host": 1})
    it.scripts[HOST] = slow(20)
    async with it.running(2) as replicas:
        await accept_at(replicas, 20)
        began = it.replicas[0].now
        await accept_at(replicas, 5, OTHER)
        await it.until(lambda: sum(request.host == OTHER for request in it.requests) == 10, 5 * BEAT)
        assert it.replicas[0].now - began < 3
        await settle()


async def test_a_part_of_a_limit_that_is_gone_gives_back_what_was_claimed_by_it(
    database: str, autojump_clock: object
) -> None:
    it = fleet(database, circuit=NO_TRIPS)
    it.scripts[HOST] = slow(0.5)
    async with it.running(2) as replicas:
        await replicas[0].dispatcher.freeze(HOST, HOST)
        await accept_at(replicas, 12)
        await replicas[0].dispatcher.unfreeze(HOST, HOST)
        await it.until(lambda: all(replica.open[HOST] and replica.made for replica in replicas))
        it.scripts[HOST] = slow(0.5, 500)
        await it.until(lambda: sum(it.of("failed")) > 1)
        it.scripts[HOST] = slow(0.5)
        # In slow start a failure leaves a limit of 1: one of the two has no part of it, and holds nothing.
        await it.until(lambda: min(replica.held for replica in replicas) == 0, 3 * BEAT)
        await it.until(lambda: sum(it.of("delivered")) == 24, 200)


async def test_no_more_is_taken_at_once_than_can_start_soon(database: str, autojump_clock: object) -> None:
    it = fleet(database, delivery={"per_host": 4})
    it.scripts[HOST] = slow(1)
    async with it.running(1) as [alone]:
        await alone.accept_many(300)
        await settle()
        with psycopg.connect(database) as connection:
            row = connection.execute("SELECT count(*) FROM holdfast.messages WHERE standing = 0").fetchone()
        assert row is not None
        assert 8 <= row[0] <= 2 * 4 + 8


async def test_one_replica_sends_in_the_order_of_acceptance(database: str, autojump_clock: object) -> None:
    it = fleet(database, delivery={"per_host": 1})
    it.scripts[HOST] = slow(0.01)
    async with it.running(1) as [alone]:
        ids = [id for _ in range(4) for id in await alone.accept_many(25)]
        await all_sent(it, ids)
    assert [request.id for request in it.requests] == ids
