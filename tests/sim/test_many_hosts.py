"""Worlds with thousands of hosts that hang, send Retry-After, or share one address. They have their share of attempts
and memory, and do not delay a host that answers.

On the embedded store only: the rules belong to the start order and the memory budget, and thousands of hosts on a real
server take long.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from holdfast.core.budget import DELIVERING_BYTES
from holdfast.core.message import AttemptKind, MessageState
from holdfast.store.embedded.group import Group
from holdfast.store.embedded.ledger import Ledger
from holdfast.store.embedded.writer_thread import Turn
from tests.sim.world import HOST, NO_TRIPS, TRIPS_AT_3, World, asks_for, hang, settle, slow, until, world
from tests.support.repetitions import amount, cases

HEALTHY = "healthy.test:80"
NEW = "new.test:80"
MANY = amount(1_000, 10_000)
RATED = amount(150, 500)
LARGE = b"x" * 250_000
ONE_BODY = 260_000
"""Bytes that a message with such a body counts for at most."""


def hosts(number: int) -> list[str]:
    return [f"h{index}.test:80" for index in range(number)]


def hanging(number: int, **sections: dict[str, object]) -> World:
    it = world(**sections)
    it.scripts.update(dict.fromkeys(hosts(number), hang))
    return it


@asynccontextmanager
async def memory_watched(it: World) -> AsyncIterator[None]:
    """The memory budget holds at every moment, but for one body that was let in while there was room."""

    async def watch() -> None:
        while True:
            assert it.lanes.memory.used <= DELIVERING_BYTES + 8 * ONE_BODY
            await trio.sleep(0.5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        yield
        nursery.cancel_scope.cancel()


# places


async def test_thousands_of_hanging_names_do_not_delay_a_host_that_answers(autojump_clock: object) -> None:
    it = hanging(MANY)
    async with it.gateway():
        await it.accept(HEALTHY)
        await settle()
        await it.accept_for(hosts(MANY))
        for second in range(1, 11):
            await it.sleep_to(second)
            await it.accept(HEALTHY)
        await it.sleep_to(12)
    assert it.times(host=HEALTHY) == [0, *range(1, 11)]


async def test_thousands_of_hanging_names_do_not_delay_a_retry_or_a_probe_of_a_host_that_answers(
    autojump_clock: object,
) -> None:
    it = hanging(MANY, circuit=TRIPS_AT_3)
    it.scripts[HEALTHY] = until(1, 500)
    async with it.gateway():
        retried = await it.accept(HEALTHY)
        await it.trip()
        it.scripts[HOST] = 200
        await it.accept_for(hosts(MANY))
        await it.sleep_to(700)
        assert [attempt.kind for attempt in (await it.message_view(retried)).attempts] == [
            AttemptKind.FIRST,
            AttemptKind.RETRY,
        ]
    assert it.times(retried) == [0, 84.8]
    assert it.times(host=HOST)[3] == 600


async def test_hosts_that_hang_take_no_more_than_their_share_of_the_places(autojump_clock: object) -> None:
    it = hanging(1_000, circuit=NO_TRIPS)
    async with it.gateway():
        await it.accept_for(hosts(1_000))
        await it.sleep_to(1)
        assert sum(it.open.values()) == 128, "not tried yet: half"
        # By then all of them were tried once, and none has answered.
        await it.sleep_to(400)
        await it.accept_for(hosts(1_000))
        await it.sleep_to(401)
        assert sum(it.open[host] for host in hosts(1_000)) <= 64 + 16, "silent: a quarter of each budget"


async def test_thousands_of_names_of_one_hanging_address_do_not_delay_a_host_that_was_never_tried(
    autojump_clock: object,
) -> None:
    it = hanging(MANY)
    it.addresses.update(dict.fromkeys(hosts(MANY), "192.0.2.1:80"))
    async with it.gateway():
        await it.accept_for(hosts(MANY))
        await it.sleep_to(1)
        assert sum(it.open.values()) == 32, "an eighth of the places for one address"
        await it.accept(NEW)
        await it.sleep_to(2)
        assert it.times(host=NEW) == [1]
        await it.sleep_to(65)
    assert len({request.id for request in it.requests if request.host != NEW}) >= 3 * 32, "they take turns"


async def test_messages_that_waited_for_their_address_are_delivered_in_order_once_it_answers(
    autojump_clock: object,
) -> None:
    it = hanging(200, delivery={"per_host": 1})
    it.addresses.update(dict.fromkeys(hosts(200), "192.0.2.1:80"))
    async with it.gateway():
        ids = [id for _ in range(3) for id in await it.accept_for(hosts(200))]
        await it.sleep_to(1)
        it.scripts.clear()
        await it.sleep_to(120)
        assert await it.states(ids) == {MessageState.DELIVERED: 600}
        for number, host in enumerate(hosts(200)):
            assert list(dict.fromkeys(it.ids(host))) == ids[number::200]


# seats


@pytest.mark.parametrize("number", cases([1_100], [5_000]))
async def test_held_hosts_do_not_delay_another_host_s_retry(autojump_clock: object, number: int) -> None:
    it = world(circuit=NO_TRIPS, retry={"base": "2s"})
    it.scripts.update(dict.fromkeys(hosts(number), until(50, asks_for(429, 300))))
    it.scripts[HEALTHY] = until(10, 500)
    async with it.gateway():
        await it.accept_for(hosts(number))
        await it.sleep_to(1)
        await it.accept_for(hosts(number))
        await it.sleep_to(9.5)
        retried = await it.accept(HEALTHY)
        await it.sleep_to(20)
        assert it.times(retried) == [9.5, 11.5]
        assert len(it.lanes.live) <= 1, "a host that is held costs no memory"
        await it.sleep_to(310)
        assert (await it.ledger.statistics()).waiting == 0
    assert min(at for host in hosts(number) for at in it.times(host=host)[1:]) >= 300


async def test_a_fresh_message_to_a_held_host_starts_when_the_hold_ends(autojump_clock: object) -> None:
    it = world(circuit=NO_TRIPS, delivery={"per_host": 1})
    it.scripts[HOST] = until(50, asks_for(503, 200))
    async with it.gateway():
        await it.accept()
        await it.sleep_to(10)
        ids = await it.accept_many(300)
        await it.sleep_to(100)
        assert it.lanes.memory.used == 0
        await it.sleep_to(210)
        assert await it.states(ids) == {MessageState.DELIVERED: 300}
        assert [id for id in it.ids() if id in ids] == ids
    assert it.times()[1] == 200


async def test_hanging_hosts_do_not_stop_another_hosts_retry(autojump_clock: object) -> None:
    it = hanging(MANY, retry={"base": "2s"})
    it.scripts[HEALTHY] = lambda request: 500 if 5 < request.at < 10 else 200
    async with it.gateway():
        await it.accept(HEALTHY)
        for _ in range(3):
            await it.accept_for(hosts(MANY))
        await it.sleep_to(9.5)
        retried = await it.accept(HEALTHY)
        await it.sleep_to(20)
    assert it.times(retried) == [9.5, 11.5]


async def test_a_drain_is_not_over_while_hosts_wait_for_room_in_memory(autojump_clock: object) -> None:
    it = hanging(300)
    async with it.gateway():
        await it.accept_for(hosts(300), body=LARGE)
        await it.sleep_to(1)
        it.scripts.clear()
        await it.dispatcher.wait_quiet()
        assert (await it.ledger.statistics()).first == 0
    assert len(it.requests) == 300


# memory


async def test_hanging_hosts_with_a_large_message_each_stay_within_the_memory_budget(autojump_clock: object) -> None:
    it = hanging(600)
    async with it.gateway():
        await it.accept(HEALTHY)
        await settle()
        async with memory_watched(it):
            await it.accept_for(hosts(600), body=LARGE)
            await it.sleep_to(40)
            await it.accept_many(10, HEALTHY, body=LARGE)
            await it.sleep_to(42)
        assert it.times(host=HEALTHY) == [0, *[40] * 10]
    async with it.gateway(), memory_watched(it):
        await it.sleep_to(60)
        await it.accept(HEALTHY, body=LARGE)
        await it.sleep_to(62)
        assert it.times(host=HEALTHY)[-1] == 60
        it.scripts.clear()
        await it.sleep_to(600)
        assert (await it.ledger.statistics()).waiting == 0
        assert it.lanes.memory.used == 0


async def test_a_backlog_of_large_bodies_on_many_hosts_is_read_within_the_memory_budget(
    autojump_clock: object,
) -> None:
    it = world(circuit=TRIPS_AT_3)
    it.scripts.update(dict.fromkeys(hosts(200), slow(1)))
    async with it.gateway():
        async with memory_watched(it):
            await it.accept_for(hosts(200) * 5, body=LARGE)
            await it.sleep_to(600)
        assert (await it.ledger.statistics()).waiting == 0
    assert len(it.requests) == 1_000


async def test_read_ahead_for_a_host_with_a_rate_is_bounded(autojump_clock: object) -> None:
    it = world(delivery={"rate_per_host": 1})
    async with it.gateway():
        await it.accept_for(hosts(RATED) * 20)
        await it.sleep_to(5)
        assert sum(len(lane.known) for lane in it.lanes.live.values()) <= RATED * (2 * 5 + 1)
        await it.sleep_to(25)
        assert (await it.ledger.statistics()).waiting == 0


# a slow disk


DRAINED = amount(2_000, 6_000)
PUT_SECONDS = 25e-6
"""What the puts of one operation take, as measured on a real store."""


class SlowLedger(Ledger):
    """Each commit takes `seconds` longer."""

    seconds = 0.0

    async def _commit_inline(self, group: Group) -> list[object] | None:
        results = self._writer.commit(group, Turn())
        await trio.sleep(self.seconds)
        self._group_limit.took(len(group.operations), puts=len(group.operations) * PUT_SECONDS, sync=self.seconds)
        return results


class SlowDisk(World):
    ledger_type = SlowLedger


async def drain_time(seconds: float, *, number: int = DRAINED) -> float:
    """How long a backlog of one host takes, with receivers of 10 ms and commits that take so much longer."""
    it = SlowDisk(world(delivery={"per_host": 16}).config)
    it.scripts[HOST] = slow(0.01)
    async with it.gateway():
        await it.delivery.control.freeze(HOST, HOST)
        await it.accept_many(number)
        assert isinstance(it.ledger, SlowLedger)
        it.ledger.seconds = seconds
        began = it.now
        await it.delivery.control.unfreeze(HOST, HOST)
        while len(it.requests) < number:
            await trio.sleep(0.01)
        return it.now - began


async def test_the_rate_of_a_drain_does_not_depend_on_the_disk(autojump_clock: object) -> None:
    quick, with_slow_disk = await drain_time(0.001), await drain_time(0.4)
    assert quick >= 0.6 * (with_slow_disk - 0.4), "the unfreeze itself waits for one commit"


@pytest.mark.parametrize("seed", range(amount(2, 6)))
async def test_the_order_of_first_attempts_holds_on_a_slow_disk(autojump_clock: object, seed: int) -> None:
    """Messages come by hand, are put aside, and are read back, while groups of them are still on their way to disk."""
    it = SlowDisk(world(delivery={"per_host": 1}).config)
    it.scripts[HOST] = slow(0.002)
    body = b"x" * (50_000 * (1 + seed % 3))
    async with it.gateway():
        assert isinstance(it.ledger, SlowLedger)
        it.ledger.seconds = 0.01 * (1 + seed)
        ids: list[str] = []
        for burst in range(20):
            ids += await it.accept_many(7 * (1 + (burst * 31 + seed * 17) % 23), body=body)
            await trio.sleep(0.005 * ((burst * 13 + seed) % 11))
        while len(it.requests) < len(ids):
            await trio.sleep(0.1)
    assert it.ids() == ids


async def test_the_order_over_all_urls_of_a_host_holds_for_messages_read_back(autojump_clock: object) -> None:
    it = SlowDisk(world(delivery={"per_host": 1}, circuit={"scope": "url"}).config)
    it.scripts[HOST] = slow(0.002)
    ids: list[str] = []
    async with it.gateway():
        assert isinstance(it.ledger, SlowLedger)
        it.ledger.seconds = 0.03
        for number in range(amount(600, 1_500)):
            path = f"/{number * number % 7}"
            it.ledger.submit(accept := it.accepting(path=path, by_url=True))
            ids.append("msg_" + accept.message.id.hex())
            if number % 50 == 0:
                await trio.sleep(0.011)
        while len(it.requests) < len(ids):
            await trio.sleep(0.1)
    assert it.ids() == ids
