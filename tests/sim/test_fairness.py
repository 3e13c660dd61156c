"""Which host is sent to when: by order and by virtual time, never by a stopwatch."""

import pytest
import trio

from holdfast.core.message import AttemptKind, MessageState
from tests.sim.stores import embedded_only, long_on_each_store, long_on_postgres
from tests.sim.world import HOST, NO_TRIPS, SPAN, hang, settle, slow, until, world
from tests.support.repetitions import amount, cases

pytestmark = long_on_each_store

HEALTHY = "healthy.test:80"


def hosts(number: int) -> list[str]:
    return [f"h{index}.test:80" for index in range(number)]


@long_on_postgres
async def test_thousands_of_retries_due_at_once_do_not_delay_a_fresh_message(autojump_clock: object) -> None:
    it = world(circuit=NO_TRIPS)
    it.scripts[HOST] = until(1, 500, slow(5))
    async with it.gateway():
        await it.accept_many(amount(2_000, 20_000))
        await it.sleep_to(100.5)
        assert it.open[HOST] == 8, "the retries are under way"
        await it.accept(HEALTHY)
        fresh = await it.accept()
        await it.sleep_to(200)
    assert it.times(host=HEALTHY) == [100.5]
    assert it.times(fresh) == [100.5], "not even one to the same host"


@pytest.mark.parametrize("each", cases([1, 5], [20]))
async def test_200_hosts_that_accept_and_never_answer_do_not_stop_the_others(autojump_clock: object, each: int) -> None:
    it = world()
    for host in hosts(200):
        it.scripts[host] = hang
    async with it.gateway():
        await it.accept(HEALTHY)
        await settle()
        await it.accept_for(hosts(200) * each)
        await it.sleep_to(1)
        assert sum(it.open.values()) == 128, "hosts not tried yet share half of the places"
        await it.accept(HEALTHY)
        await it.sleep_to(2)
    assert it.times(host=HEALTHY) == [0, 1]


async def test_messages_to_many_hosts_at_once_all_start_at_that_moment(autojump_clock: object) -> None:
    it = world()
    async with it.gateway():
        await it.accept_for(hosts(1_000))
        await settle()
        assert len(it.requests) == 1_000


async def test_one_host_with_thousands_waiting_does_not_delay_another_hosts_one(autojump_clock: object) -> None:
    it = world(delivery={"first_attempts": 16, "per_host": 16})
    it.scripts[HOST] = slow(1)
    async with it.gateway():
        await it.accept(HEALTHY)
        await settle()
        await it.accept_many(amount(1_500, 10_000))
        await it.sleep_to(10.5)
        assert it.open[HOST] == 12, "the last quarter is for others"
        await it.accept_many(3, HEALTHY)
        await it.sleep_to(11)
    assert it.times(host=HEALTHY) == [0, *[10.5] * 3]


async def test_hosts_take_turns(autojump_clock: object) -> None:
    it = world(delivery={"first_attempts": 4, "per_host": 1})
    async with it.gateway():
        await it.accept_for(hosts(8))
        await settle()
        it.requests.clear()
        for host in hosts(8):
            it.scripts[host] = slow(1)
        await it.accept_for([host for host in hosts(8) for _ in range(50)])
        await it.sleep_to(10)
    served = [len(it.times(host=host)) for host in hosts(8)]
    assert sum(served) >= 40
    assert max(served) - min(served) <= 1


@long_on_postgres
async def test_messages_to_one_host_start_in_the_order_they_were_acknowledged(autojump_clock: object) -> None:
    """Far more than are kept in memory, and more of them while those are sent."""
    it = world(delivery={"per_host": 1})
    it.scripts[HOST] = slow(0.01)
    async with it.gateway():
        ids = await it.accept_many(amount(1_000, 2_000))
        for _ in range(200):
            await trio.sleep(0.037)
            ids += await it.accept_many(3)
        await it.sleep_to(100)
    assert it.ids() == ids


@long_on_postgres
async def test_the_order_holds_over_a_trip_and_a_restart(autojump_clock: object) -> None:
    it = world(delivery={"per_host": 1}, circuit={"min_attempts": 0, "disable_after": 1})
    it.scripts[HOST] = slow(0.01)
    async with it.gateway():
        ids = await it.accept_many(1_000)
        await it.sleep_to(1)
        it.scripts[HOST] = 500
        await it.sleep_to(2)
        it.scripts[HOST] = slow(0.01)
        ids += await it.accept_many(1_000)
        await it.sleep_to(605)
    await it.sleep_to(700)
    async with it.gateway():
        ids += await it.accept_many(1_000)
        await it.sleep_to(1_000)
    seen: dict[str, None] = dict.fromkeys(it.ids())
    assert list(seen) == ids


async def test_on_one_host_fresh_and_due_retries_alternate_when_both_wait(autojump_clock: object) -> None:
    it = world(circuit=NO_TRIPS, delivery={"per_host": 1})
    it.scripts[HOST] = until(1, 500, slow(1))
    async with it.gateway():
        retries = await it.accept_many(10)
        await it.sleep_to(84.5)
        fresh = await it.accept_many(11)
        await it.sleep_to(120)
    order = [id in fresh for id in it.ids()[10:]]
    assert order == [True, False] * 10 + [True]
    assert [id for id in it.ids()[10:] if id in retries] == retries


async def test_retries_hold_at_most_half_of_per_host(autojump_clock: object) -> None:
    it = world(circuit=NO_TRIPS)
    it.scripts[HOST] = until(1, 500, slow(5))
    async with it.gateway():
        await it.accept_many(100)
        await it.sleep_to(86)
        assert it.open[HOST] == 8
        fresh = await it.accept_many(20)
        await settle()
        assert it.open[HOST] == 16
        assert sum(1 for id in fresh if it.times(id) == [86]) == 8


async def test_a_host_gets_at_most_per_host_requests_at_once(autojump_clock: object) -> None:
    it = world(delivery={"per_host": 5})
    it.scripts[HOST] = slow(1)
    async with it.gateway():
        await it.accept_many(100)
        await it.sleep_to(30)
    assert [len([at for at in it.times() if at == second]) for second in range(20)] == [5] * 20


@pytest.mark.parametrize(
    ("rate", "times"), [(2, [0, 0.5, 1, 1.5]), (3, [0, 0.334, 0.668, 1.002]), (0.25, [0, 4, 8, 12])]
)
async def test_rate_per_host_spaces_the_starts(autojump_clock: object, rate: float, times: list[float]) -> None:
    it = world(delivery={"rate_per_host": rate})
    async with it.gateway():
        await it.accept_many(4)
        await it.accept(HEALTHY)
        await it.sleep_to(20)
    assert it.times(host=HOST) == times
    assert it.times(host=HEALTHY) == [0]


async def test_a_rate_holds_and_wakes_a_host_that_was_quiet(autojump_clock: object) -> None:
    it = world(delivery={"rate_per_host": 1})
    async with it.gateway():
        await it.accept()
        await it.sleep_to(10)
        await it.accept_many(3)
        await it.sleep_to(20)
    assert it.times() == [0, 10, 11, 12]


@long_on_postgres
async def test_more_hosts_than_lanes_are_kept_in_memory_leave_a_due_retry_its_turn(autojump_clock: object) -> None:
    it = world()
    it.scripts[HEALTHY] = until(1, 500)
    for host in hosts(2_000):
        it.scripts[host] = hang
    async with it.gateway():
        retried = await it.accept(HEALTHY)
        await it.accept_for(hosts(2_000))
        await it.sleep_to(121)
        assert len(it.times(retried)) == 2


@long_on_postgres
async def test_many_delayed_messages_that_are_due_at_once_are_read_as_they_are_sent(autojump_clock: object) -> None:
    it = world(delivery={"per_host": 1})
    it.scripts[HOST] = slow(1)
    async with it.gateway():
        ids = await it.accept_many(1_000, delay=10)
        await it.sleep_to(20)
        lane = it.lanes.find(HOST)
        assert lane is not None and len(lane.known) < 200
        await it.sleep_to(1_100)
        assert await it.states(ids) == {MessageState.DELIVERED: 1_000}
        assert {(await it.message_view(id)).attempts[-1].kind for id in ids} == {AttemptKind.FIRST}


@embedded_only("a replica looks at what it has in memory with every beat, whatever the time between retries")
async def test_a_failing_host_is_not_read_between_its_retries(autojump_clock: object) -> None:
    """Retries far apart cost reads by their number, not by the time between them."""
    it = world(circuit=NO_TRIPS)
    it.scripts[HOST] = 500
    async with it.gateway():
        await it.accept()
        await it.sleep_to(SPAN + 1)
    assert it.engine.reads < 12 * 6 + it.looks(SPAN)
