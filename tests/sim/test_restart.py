"""What survives a shutdown, and what a crash may cost: a repeat, never a message."""

import pytest
import trio

from holdfast.core.circuit import CircuitState
from holdfast.core.errors import CommitFailed, EgressDenied
from holdfast.core.message import AttemptKind, ErrorKind, Fault, MessageState
from tests.sim.stores import on_each_store
from tests.sim.world import HOST, TRIPS_AT_3, Request, World, asks_for, hang, settle, slow, until, world

pytestmark = on_each_store


async def test_retry_numbers_and_due_times_survive_a_restart(autojump_clock: object) -> None:
    it = world()
    it.scripts[HOST] = 500
    async with it.gateway():
        id = await it.accept()
        await it.sleep_to(100)
    await it.sleep_to(200)
    async with it.gateway():
        await it.sleep_to(300)
    await it.sleep_to(600)
    async with it.gateway():
        await it.sleep_to(2_000)
        assert (await it.message_view(id)).place.retry == 5  # type: ignore[union-attr]
    assert it.times() == [0, 84.8, 254.4, 600, 600 + 678.4], "what came due meanwhile is due at the start"


async def test_a_delay_survives_a_restart(autojump_clock: object) -> None:
    it = world()
    async with it.gateway():
        await it.accept(delay=500)
        await it.sleep_to(1)
    async with it.gateway():
        await it.sleep_to(1_000)
    assert it.times() == [500]


async def test_the_counters_of_a_circuit_survive_a_restart(autojump_clock: object) -> None:
    it = world()
    it.scripts[HOST] = 500
    async with it.gateway():
        await it.accept_many(60)
        await it.sleep_to(1)
        before = await it.circuit()
    async with it.gateway():
        after = await it.circuit()
        assert after.window.attempts == before.window.attempts == 60
        assert after.consecutive_failures == 60
        await it.accept_many(40)
        await it.sleep_to(20)
        assert await it.circuit_state() is CircuitState.ENABLED
        await it.accept()
        await it.sleep_to(21)
        assert await it.circuit_state() is CircuitState.DISABLED


async def test_successes_counted_before_a_shutdown_survive(autojump_clock: object) -> None:
    it = world()
    async with it.gateway():
        await it.accept_many(60)
        await it.sleep_to(1)
    async with it.gateway():
        circuit = await it.circuit()
    assert circuit.window.attempts == 60
    assert circuit.last_success_at is not None


@pytest.mark.parametrize("crash", [False, True])
async def test_a_disabled_circuit_its_next_probe_and_their_rotation_survive(
    autojump_clock: object, crash: bool
) -> None:
    it = world(circuit=TRIPS_AT_3)
    async with it.gateway(crash=crash):
        ids = await it.trip()
        it.scripts[HOST] = 500
        await it.sleep_to(700)
    await it.sleep_to(800)
    async with it.gateway(crash=crash):
        assert await it.circuit_state() is CircuitState.DISABLED
        await it.sleep_to(1_300)
    async with it.gateway():
        await it.sleep_to(2_500)
    assert it.times()[3:] == [600, 1_200, 1_800, 2_400]
    assert it.ids()[3:] == [*ids, ids[0]]


async def test_a_frozen_circuit_survives_a_restart(autojump_clock: object) -> None:
    it = world(circuit={"min_attempts": 0, "freeze_at": 3})
    it.scripts[HOST] = 500
    async with it.gateway(crash=True):
        await it.accept_many(3)
        await it.sleep_to(1)
    async with it.gateway():
        await it.accept_many(3)
        await it.sleep_to(10_000)
        assert await it.circuit_state() is CircuitState.FROZEN
    assert len(it.requests) == 3


async def test_a_retry_after_hold_survives_a_restart(autojump_clock: object) -> None:
    it = world()
    it.scripts[HOST] = until(1, asks_for(503, 300))
    async with it.gateway():
        await it.accept()
        await it.sleep_to(10)
    async with it.gateway():
        await it.accept()
        await it.sleep_to(1_000)
    assert it.times() == [0, 300, 300]


@pytest.mark.parametrize("crash", [False, True])
async def test_hosts_begin_in_slow_start_after_a_restart(autojump_clock: object, crash: bool) -> None:
    it = world()
    it.scripts[HOST] = slow(1)
    async with it.gateway(crash=crash):
        await it.accept_many(200)
        await it.sleep_to(1.5)
    await it.sleep_to(10)
    it.scripts["new.test:80"] = slow(1)
    async with it.gateway():
        await it.accept_many(3, "new.test:80")
        await it.sleep_to(30)
    assert [it.most_open(at) for at in (0, 10, 11, 12, 13, 14)] == [16, 1, 2, 4, 8, 16]
    assert it.most_open(10, "new.test:80") == 3, "one that was never seen does not"


async def test_a_host_that_has_nothing_waiting_begins_in_slow_start_too(autojump_clock: object) -> None:
    it = world()
    it.scripts[HOST] = slow(1)
    async with it.gateway():
        await it.accept()
        await it.sleep_to(5)
    async with it.gateway():
        await it.accept_many(20)
        await it.sleep_to(20)
    assert [it.most_open(at) for at in (5, 6, 7)] == [1, 2, 4]


async def test_a_message_in_flight_at_shutdown_is_interrupted_and_due_at_the_next_start(autojump_clock: object) -> None:
    it = world()
    it.scripts[HOST] = hang
    async with it.gateway():
        id = await it.accept()
        await it.sleep_to(10)
    await it.sleep_to(20)
    it.scripts[HOST] = until(21, 500)
    async with it.gateway():
        await it.sleep_to(21)
        view = await it.message_view(id)
        assert view.place is not None and view.place.retry == 1
        assert (await it.circuit()).consecutive_failures == 1
        await it.sleep_to(200)
    interrupted, failed = view.attempts
    assert (interrupted.error, interrupted.fault) == (ErrorKind.INTERRUPTED, Fault.HERE)
    assert interrupted.kind is failed.kind is AttemptKind.FIRST
    assert it.times() == [0, 20, 104.8], "its first retry comes 84.8 s after its first real failure"


async def test_a_retry_in_flight_at_shutdown_uses_no_further_number(autojump_clock: object) -> None:
    it = world()
    it.scripts[HOST] = until(1, 500, hang)
    async with it.gateway():
        id = await it.accept()
        await it.sleep_to(90)
    await it.sleep_to(100)
    it.scripts[HOST] = 500
    async with it.gateway():
        await it.sleep_to(101)
        view = await it.message_view(id)
    assert view.place is not None and view.place.retry == 2
    assert it.times() == [0, 84.8, 100]
    assert [attempt.error for attempt in view.attempts] == [None, ErrorKind.INTERRUPTED, None]


async def test_a_waiting_message_is_not_recorded_as_tried_at_shutdown(autojump_clock: object) -> None:
    it = world(delivery={"per_host": 2})
    it.scripts[HOST] = hang
    async with it.gateway():
        ids = await it.accept_many(50)
        await it.sleep_to(10)
    assert len(it.requests) == 2
    it.scripts[HOST] = 200
    async with it.gateway():
        await it.sleep_to(20)
        assert await it.states(ids) == {MessageState.DELIVERED: 50}
        assert [id for id in ids if len((await it.message_view(id)).attempts) > 1] == ids[:2]


def power_goes_off_at_the_first_request(it: World, status: int) -> None:
    """The answer comes, and the commit that would record it fails."""

    def answer(request: Request) -> int:
        if len(it.requests) == 1:
            it.engine.fail_next.append(CommitFailed("the disk is gone"))
        return status

    it.scripts[HOST] = answer


@pytest.mark.parametrize("status", [200, 500])
async def test_a_lost_outcome_leads_to_a_repeat_never_to_a_loss(autojump_clock: object, status: int) -> None:
    it = world()
    power_goes_off_at_the_first_request(it, status)
    id = ""
    async with it.gateway():
        id = await it.accept()
        await trio.sleep_forever()
    await it.sleep_to(10)
    async with it.gateway():
        await trio.sleep(it.takeover)
        await settle()
        assert it.times() == [0, 10 + it.takeover]
        await trio.sleep(1)  # Deliveries that change nothing else are recorded together.
        view = await it.message_view(id)
        assert [attempt.number for attempt in view.attempts] == [1], "the lost one used no number"
        assert view.state is (MessageState.DELIVERED if status == 200 else MessageState.RETRYING)


async def test_a_lost_trip_of_a_circuit_happens_again(autojump_clock: object) -> None:
    it = world(circuit=TRIPS_AT_3)
    it.scripts[HOST] = 500
    async with it.gateway():
        await it.accept_many(2)
        await settle()
        it.engine.fail_next.append(CommitFailed("the disk is gone"))
        with pytest.raises(CommitFailed):
            await it.accept()
        await trio.sleep_forever()
    async with it.gateway():
        assert (await it.circuit()).consecutive_failures == 2
        await it.sleep_to(85)
        assert await it.circuit_state() is CircuitState.DISABLED


async def test_a_crash_leaves_no_trace_of_attempts_in_flight(autojump_clock: object) -> None:
    it = world()
    it.scripts[HOST] = hang
    async with it.gateway(crash=True):
        ids = await it.accept_many(300)
        await it.sleep_to(10)
    it.scripts[HOST] = hang
    async with it.gateway():
        assert not [id for id in ids if (await it.message_view(id)).attempts]
        it.scripts[HOST] = 200
        await trio.sleep(3_600)
        assert await it.states(ids) == {MessageState.DELIVERED: 300}


async def test_a_success_counted_after_the_circuit_was_last_written_survives(autojump_clock: object) -> None:
    """The failure of this side's writes the circuit while the other attempt is under way."""
    it = world()
    answers = iter((slow(5), lambda request: EgressDenied("private")))
    it.scripts[HOST] = lambda request: next(answers)(request)
    async with it.gateway():
        await it.accept_many(2)
        await it.sleep_to(10)
    async with it.gateway():
        assert (await it.circuit()).window.attempts == 1
