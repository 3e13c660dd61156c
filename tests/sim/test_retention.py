"""What is deleted by time: delivered records, dead letters, idempotency keys, idle circuits."""

import pytest
import trio

from holdfast.core.message import MessageState
from tests.sim.stores import long_on_postgres, on_each_store
from tests.sim.world import DAY, HOST, HOUR, World, raw_id, settle, world

pytestmark = on_each_store


async def is_there(it: World, id: str) -> bool:
    return await it.ledger.message_view(raw_id(id)) is not None


async def is_known(it: World, key: str = HOST) -> bool:
    return await it.ledger.circuit(key) is not None


async def test_delivered_records_are_gone_after_24_h(autojump_clock: object) -> None:
    it = world()
    async with it.gateway():
        await it.sleep_to(HOUR)
        first = await it.accept()
        await it.sleep_to(5 * HOUR)
        second = await it.accept()
        await it.sleep_to(25 * HOUR - 1)
        assert await is_there(it, first)
        await it.sleep_to(25 * HOUR + 2)
        assert not await is_there(it, first)
        assert await is_there(it, second)


async def test_dead_letters_are_gone_after_30_days(autojump_clock: object) -> None:
    it = world(retry={"max_retries": 0, "expire_after": "48h"})
    it.scripts[HOST] = 500
    async with it.gateway():
        ids = await it.accept_many(50)
        await it.sleep_to(30 * DAY - 1)
        assert await it.states(ids) == {MessageState.DEAD: 50}
        await it.sleep_to(30 * DAY + 5)
        assert not [id for id in ids if await is_there(it, id)]
        assert (await it.ledger.statistics()).dead == 0


@long_on_postgres
async def test_thousands_of_finished_records_are_purged_in_steps(autojump_clock: object) -> None:
    it = world()
    async with it.gateway():
        ids = await it.accept_many(3_000)
        await it.sleep_to(DAY + 60)
        assert not [id for id in ids if await is_there(it, id)]
        assert (await it.ledger.oldest_finished()).delivered is None


async def test_an_idempotency_key_holds_for_24_h_and_then_leaves(autojump_clock: object) -> None:
    it = world()
    async with it.gateway():
        first = await it.accept(key=b"order-7")
        await it.sleep_to(DAY - 1)
        assert await it.accept(key=b"order-7") == first
        await it.sleep_to(DAY + 1)
        again = await it.accept(key=b"order-7")
        assert again != first
        await it.sleep_to(4 * DAY)
        assert (await it.ledger.oldest_finished()).key is None


async def test_nothing_is_purged_in_the_first_10_minutes_after_a_start(autojump_clock: object) -> None:
    it = world()
    async with it.gateway():
        id = await it.accept()
        await it.sleep_to(HOUR)
    await it.sleep_to(3 * DAY)
    async with it.gateway():
        await it.sleep_to(3 * DAY + 599)
        assert await is_there(it, id)
        await it.sleep_to(3 * DAY + 602)
        assert not await is_there(it, id)


async def test_an_enabled_circuit_with_nothing_waiting_and_no_attempt_for_7_days_is_forgotten(
    autojump_clock: object,
) -> None:
    it = world()
    async with it.gateway():
        await it.accept()
        await it.sleep_to(3 * DAY)
        await it.accept()
        await it.sleep_to(10 * DAY - 1)
        assert await is_known(it)
        await it.sleep_to(10 * DAY + 60)
        assert not await is_known(it)
        id = await it.accept()
        await trio.sleep(1)
        assert await it.state(id) is MessageState.DELIVERED


async def test_a_circuit_with_traffic_is_not_forgotten(autojump_clock: object) -> None:
    it = world()
    async with it.gateway():
        await it.accept()
        await settle()
        first = (await it.circuit()).since
        for day in range(1, 20):
            await it.sleep_to(day * DAY)
            await it.accept()
        assert (await it.circuit()).since == first
        await it.sleep_to(27 * DAY)
        assert not await is_known(it)


async def test_a_circuit_with_something_waiting_is_not_forgotten(autojump_clock: object) -> None:
    it = world()
    async with it.gateway():
        id = await it.accept(delay=20 * DAY)
        await it.sleep_to(19 * DAY)
        assert await is_known(it)
        await it.sleep_to(20 * DAY + 1)
        assert await it.state(id) is MessageState.DELIVERED


@long_on_postgres
@pytest.mark.parametrize("circuit", [{"disable_after": 3}, {"freeze_at": 3}])
async def test_a_circuit_that_is_not_enabled_is_not_forgotten(autojump_clock: object, circuit: dict[str, int]) -> None:
    it = world(circuit={"min_attempts": 0} | circuit)
    it.scripts[HOST] = 500
    async with it.gateway():
        await it.accept_many(3)
        await it.sleep_to(60 * DAY)
        assert await is_known(it)


async def test_a_message_that_comes_while_its_circuit_is_forgotten_is_delivered(autojump_clock: object) -> None:
    it = world()
    async with it.gateway():
        await it.accept()
        await it.sleep_to(7 * DAY)
        ids = [await it.accept(), await it.accept(delay=10)]
        await trio.sleep(20)
        assert await it.states(ids) == {MessageState.DELIVERED: 2}
