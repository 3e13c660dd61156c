"""When a waiting message is dead: only in a circuit that is not enabled, and only after its time."""

import pytest
import trio

from holdfast.config import build
from holdfast.core.circuit import CircuitState
from holdfast.core.message import DeadReason, MessageState
from tests.sim.stores import long_on_each_store, long_on_postgres
from tests.sim.world import DAY, HOST, HOUR, NO_TRIPS, SPAN, START, TRIPS_AT_3, World, asks_for, every, slow, world

pytestmark = long_on_each_store

FREEZES_AT_3 = {"min_attempts": 0, "disable_after": 0, "freeze_at": 3}

both = pytest.mark.parametrize("circuit", [TRIPS_AT_3, FREEZES_AT_3], ids=["disabled", "frozen"])


async def assert_expires_at(it: World, id: str, moment: float) -> None:
    await it.sleep_to(moment - 0.001)
    assert await it.state(id) is MessageState.HELD
    await it.sleep_to(moment + 0.001)
    view = await it.message_view(id)
    assert (view.state, view.dead_reason) == (MessageState.DEAD, DeadReason.EXPIRED)
    assert view.finished_at == START + round(moment * 1000)


def failing_world(circuit: dict[str, int]) -> World:
    it = world(circuit=circuit)
    it.scripts[HOST] = 500
    return it


@both
async def test_a_plain_message_expires_a_span_after_its_acceptance(
    autojump_clock: object, circuit: dict[str, int]
) -> None:
    it = failing_world(circuit)
    async with it.gateway():
        await it.accept_many(3)
        await it.sleep_to(1000)
        id = await it.accept()
        await assert_expires_at(it, id, 1000 + SPAN)


@long_on_postgres
@both
async def test_a_message_with_retries_behind_it_expires_a_span_after_its_acceptance(
    autojump_clock: object, circuit: dict[str, int]
) -> None:
    it = failing_world(circuit)
    async with it.gateway():
        ids = await it.accept_many(3)
        await assert_expires_at(it, ids[1], SPAN)


@long_on_postgres
@both
async def test_a_delayed_message_expires_a_span_after_its_first_due_time(
    autojump_clock: object, circuit: dict[str, int]
) -> None:
    it = failing_world(circuit)
    async with it.gateway():
        await it.accept_many(3)
        await it.sleep_to(10)
        soon, late = await it.accept(delay=1000), await it.accept(delay=3 * DAY)
        await assert_expires_at(it, soon, 1010 + SPAN)
        await assert_expires_at(it, late, 10 + 3 * DAY + SPAN)


@long_on_postgres
@both
async def test_a_replayed_message_expires_a_span_after_its_replay(
    autojump_clock: object, circuit: dict[str, int]
) -> None:
    it = failing_world(circuit)
    async with it.gateway():
        ids = await it.accept_many(3)
        await it.sleep_to(3 * DAY)
        assert await it.states(ids) == {MessageState.DEAD: 3}
        assert await it.replay_dead() == 3
        await assert_expires_at(it, ids[0], 3 * DAY + SPAN)


@long_on_postgres
@both
async def test_after_a_circuit_was_enabled_the_span_counts_from_there(
    autojump_clock: object, circuit: dict[str, int]
) -> None:
    it = failing_world(circuit)
    async with it.gateway():
        ids = await it.accept_many(3)
        await it.sleep_to(DAY)
        await it.delivery.control.unfreeze(HOST, HOST)
        await it.sleep_to(DAY + 1)
        assert await it.circuit_state() is not CircuitState.ENABLED, "the retries tripped it again"
        await assert_expires_at(it, ids[0], DAY + SPAN)


async def test_in_an_enabled_circuit_only_the_last_retry_ends_a_message(autojump_clock: object) -> None:
    it = world(circuit=NO_TRIPS)
    it.scripts[HOST] = asks_for(500, 10 * DAY)
    async with it.gateway():
        id = await it.accept()
        await it.sleep_to(10 * DAY)
        assert await it.state(id) is MessageState.RETRYING
        await it.sleep_to(20 * DAY)
        assert len(it.times(id)) == 12
        assert (await it.message_view(id)).dead_reason is DeadReason.EXHAUSTED


@long_on_postgres
async def test_a_message_of_a_host_that_comes_back_in_time_does_not_expire(autojump_clock: object) -> None:
    it = failing_world(TRIPS_AT_3)
    async with it.gateway():
        ids = await it.accept_many(3)
        await it.sleep_to(SPAN - 601)
        it.scripts[HOST] = 200
        await it.sleep_to(SPAN + 1)
        assert await it.states(ids) == {MessageState.DELIVERED: 3}


@long_on_postgres
@both
async def test_10_000_messages_expire_within_60_s(autojump_clock: object, circuit: dict[str, int]) -> None:
    it = failing_world(circuit)
    async with it.gateway():
        await it.accept_many(3)
        await it.sleep_to(1)
        await it.accept_many(9_997)
        await it.sleep_to(SPAN - 1)
        assert (await it.ledger.statistics()).dead == 0
        await it.sleep_to(SPAN + 60)
        statistics = await it.ledger.statistics()
    assert (statistics.dead, statistics.waiting) == (10_000, 0)


async def test_a_lane_in_memory_expires_when_it_has_left_memory(autojump_clock: object) -> None:
    """As one is while a new message goes to its queue on a slow disk."""
    it = failing_world(FREEZES_AT_3)
    async with it.gateway():
        await it.accept_many(3)
        await it.sleep_to(SPAN - 1)
        lane = it.lanes.make_live(HOST, HOST)
        await it.sleep_to(SPAN + 1)
        it.dispatcher.attend(lane)
        await it.sleep_to(SPAN + 60)
        assert (await it.ledger.statistics()).dead == 3


async def test_messages_held_by_retry_after_expire_during_a_probe(
    autojump_clock: object,
) -> None:
    it = world(circuit=TRIPS_AT_3, retry={"retry_after_limit": "72h"})
    it.scripts[HOST] = asks_for(500, 60 * HOUR)
    async with it.gateway():
        await it.accept_many(3)
        await it.sleep_to(SPAN - 5)
        assert len(it.requests) == 3, "none of them may be a probe"
        it.scripts[HOST] = slow(25, 500)
        await it.accept()
        await it.sleep_to(SPAN + 60)
        assert (await it.ledger.statistics()).dead == 3
        await it.sleep_to(SPAN + 2_000)
    assert it.times()[3:] == every(600, start=SPAN - 5, number=4)


# -- after a start -----------------------------------------------------------------------------------------------------


async def test_after_a_start_a_disabled_circuit_is_probed_before_anything_in_it_expires(autojump_clock: object) -> None:
    it = failing_world(TRIPS_AT_3)
    async with it.gateway():
        ids = await it.accept_many(3)
        await it.sleep_to(1)
    await it.sleep_to(3 * DAY)
    it.scripts[HOST] = 200
    async with it.gateway():
        await trio.sleep(1)
        assert set(it.times()[3:]) == {3 * DAY}
        assert await it.states(ids) == {MessageState.DELIVERED: 3}


@both
async def test_after_a_start_nothing_expires_in_the_first_10_minutes(
    autojump_clock: object, circuit: dict[str, int]
) -> None:
    it = failing_world(circuit)
    async with it.gateway():
        ids = await it.accept_many(3)
        await it.sleep_to(1)
    await it.sleep_to(3 * DAY)
    async with it.gateway():
        await it.sleep_to(3 * DAY + 599.9)
        assert await it.states(ids) == {MessageState.HELD: 3}
        await it.sleep_to(3 * DAY + 660)
        assert await it.states(ids) == {MessageState.DEAD: 3}
        probes = [] if circuit is FREEZES_AT_3 else every(600, start=3 * DAY, number=2)
        assert it.times()[3:] == probes


async def test_after_a_start_nothing_expires_before_probe_every_if_that_is_shorter(autojump_clock: object) -> None:
    it = failing_world(FREEZES_AT_3 | {"probe_every": "1m"})
    async with it.gateway():
        ids = await it.accept_many(3)
        await it.sleep_to(1)
    await it.sleep_to(3 * DAY)
    async with it.gateway():
        await it.sleep_to(3 * DAY + 59.9)
        assert await it.states(ids) == {MessageState.HELD: 3}
        await it.sleep_to(3 * DAY + 62)
        assert await it.states(ids) == {MessageState.DEAD: 3}


@long_on_postgres
async def test_messages_that_would_expire_in_the_grace_period_are_still_probed(autojump_clock: object) -> None:
    """The gateway was away for a moment in which a message's time was over: the next probe keeps its moment."""
    it = failing_world(TRIPS_AT_3)
    async with it.gateway():
        await it.accept_many(3)
        await it.sleep_to(SPAN - 1)
        last = it.times()[-1]
    await it.sleep_to(SPAN + 10)
    async with it.gateway():
        await it.sleep_to(SPAN + 10 + HOUR)
        assert it.times()[-1] == last + 600
        assert (await it.ledger.statistics()).dead == 3


async def test_after_a_start_with_shorter_intervals_a_probe_comes_first_too(autojump_clock: object) -> None:
    """When the next probe is due was written by the old interval."""
    it = world(circuit=TRIPS_AT_3 | {"probe_every": "1h"}, retry={"expire_after": "1m"})
    async with it.gateway():
        ids = await it.trip()
    await it.sleep_to(100)
    it.config = build({"circuit": TRIPS_AT_3 | {"probe_every": "30s"}, "retry": {"expire_after": "1m"}})
    it.scripts[HOST] = 500
    async with it.gateway():
        await it.sleep_to(3_599)
        assert await it.states(ids) == {MessageState.HELD: 3}
        await it.sleep_to(3_700)
        assert await it.states(ids) == {MessageState.DEAD: 3}
    assert it.times()[3:4] == [3_600]
