"""A drain waits until nothing is due and nothing is in flight. A store may take a moment to record the last outcome."""

import trio

from tests.sim.stores import on_each_store
from tests.sim.world import HOST, asks_for, slow, until, world

pytestmark = on_each_store


async def test_all_waiters_are_notified_when_nothing_is_due_or_in_flight(autojump_clock: object) -> None:
    it = world()
    it.scripts[HOST] = slow(5)
    heard: list[float] = []

    async def wait() -> None:
        await it.dispatcher.wait_quiet()
        heard.append(it.now)

    async with it.gateway(), trio.open_nursery() as nursery:
        await it.accept_many(20)
        nursery.start_soon(wait)
        await it.sleep_to(2)
        nursery.start_soon(wait)
    assert [int(moment * 10) for moment in heard] == [100, 100]


async def test_a_retry_that_is_due_later_is_not_waited_for(autojump_clock: object) -> None:
    it = world()
    it.scripts[HOST] = until(1, 500)
    async with it.gateway():
        await it.accept()
        await trio.sleep(0.5)
        assert it.dispatcher.is_quiet
        await it.sleep_to(84.8)
        await it.dispatcher.wait_quiet()
        assert it.now == 84.8
        assert it.times() == [0, 84.8]


async def test_a_message_delayed_by_its_host_s_rate_is_waited_for(autojump_clock: object) -> None:
    it = world(delivery={"rate_per_host": 2})
    async with it.gateway():
        await it.accept_many(6)
        await it.dispatcher.wait_quiet()
        assert it.times() == [0, 0.5, 1, 1.5, 2, 2.5]
        assert int(it.now * 10) == 25


async def test_a_message_held_by_retry_after_is_not_waited_for(autojump_clock: object) -> None:
    it = world()
    it.scripts[HOST] = until(1, asks_for(503, 300))
    async with it.gateway():
        await it.accept()
        await it.sleep_to(10)
        await it.accept()
        await it.dispatcher.wait_quiet()
        assert it.now == 10
