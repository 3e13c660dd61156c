"""Only waiting and dead messages can fill the store: delivered records are evicted for them, then idempotency keys."""

import trio

from tests.sim.stores import embedded_only, long_on_each_store
from tests.sim.world import HOST, world
from tests.support.repetitions import amount
from tests.support.trio_clock import TrioClock

pytestmark = long_on_each_store

SIZE = 200_000
WEBHOOKS = amount(700, 1_500)
OTHER = "b.test:80"


@embedded_only("on PostgreSQL neither takes part of `store.max_size`")
async def test_delivered_records_and_keys_are_evicted_even_in_the_first_minutes(autojump_clock: object) -> None:
    it = world(store={"host_share": 1.0})
    it.engine.max_size = SIZE
    async with it.gateway():
        for number in range(WEBHOOKS):
            await it.accept(key=number.to_bytes(16, "big"))
            await trio.sleep(0.2)
            assert it.engine.room().needed < 0.9 * SIZE
        assert it.now < 600
        statistics = await it.ledger.statistics()
        assert not statistics.full
        assert len(it.requests) == WEBHOOKS


class TickingClock(TrioClock):
    """Time passes between two looks, as on a real machine: a group's moment is after those in its operations."""

    looks = 0

    def now(self) -> int:
        self.looks += 1
        return super().now() + self.looks

    def deadline(self, moment: int) -> float:
        return super().deadline(moment - self.looks)


@embedded_only("on PostgreSQL keys take no part of `store.max_size`")
async def test_a_flood_of_keys_never_fills_the_store_while_time_passes(autojump_clock: object) -> None:
    it = world(store={"host_share": 1.0})
    it.engine.max_size = SIZE // 2
    it.clock = TickingClock(it.clock.now())
    async with it.gateway():
        for number in range(WEBHOOKS):
            await it.accept(key=number.to_bytes(16, "big"))
            await trio.sleep(0.2)
        assert not (await it.ledger.statistics()).full
        assert len(it.requests) == WEBHOOKS


async def test_a_store_full_of_waiting_messages_recovers_by_itself(autojump_clock: object) -> None:
    it = world(store={"host_share": 1.0}, delivery={"per_host": 1}, circuit={"min_attempts": 100_000})
    it.engine.max_size = SIZE
    it.scripts[HOST] = it.scripts[OTHER] = 500
    async with it.gateway():
        ids = await it.accept_for([HOST, HOST, OTHER, OTHER], body=bytes(46_000))
        await trio.sleep(2)
        assert (await it.ledger.statistics()).full
        it.scripts[HOST] = it.scripts[OTHER] = 200
        await it.sleep_to(3_600)
        statistics = await it.ledger.statistics()
        assert (statistics.waiting, statistics.dead, statistics.full) == (0, 0, False)
        assert {request.id for request in it.requests} == set(ids)


@embedded_only("circuits take no part of `store.max_size` on PostgreSQL")
async def test_a_new_circuit_for_each_message_never_fills_the_store(autojump_clock: object) -> None:
    it = world(store={"host_share": 1.0}, circuit={"scope": "url"})
    it.engine.max_size = SIZE
    async with it.gateway():
        for number in range(WEBHOOKS):
            await it.accept(path=f"/{number}", by_url=True)
            await trio.sleep(0.2)
        assert not (await it.ledger.statistics()).full
        assert len(it.requests) == WEBHOOKS
        assert it.delivery.control.lane_of("http://" + HOST + "/0") is None
