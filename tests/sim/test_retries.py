"""The retry schedule in virtual time, through all of delivery and the store."""

import errno

import pytest
import trio

from holdfast.core.circuit import CircuitState
from holdfast.core.errors import EgressDenied, NameNotResolved
from holdfast.core.message import AttemptKind, DeadReason, Fault, MessageState
from holdfast.http.exceptions import ConnectError
from tests.sim.stores import long_on_each_store
from tests.sim.world import DAY, HOST, NO_TRIPS, asks_for, date_at, hang, slow, until, world

pytestmark = long_on_each_store

SCHEDULE = [0, 84.8, 254.4, 593.6, 1272, 2628.8, 5342.4, 10769.6, 21624, 43332.8, 86750.4, 173585.6]


async def test_always_503_is_tried_on_schedule_and_then_dead(autojump_clock: object) -> None:
    it = world()
    it.scripts["a.test:80"] = 503
    async with it.gateway():
        id = await it.accept()
        await trio.sleep(200_000)
        assert it.times() == SCHEDULE
        view = await it.message_view(id)
    assert view.state is MessageState.DEAD
    assert view.dead_reason is DeadReason.EXHAUSTED
    assert [attempt.number for attempt in view.attempts] == list(range(1, 13))
    assert [attempt.kind for attempt in view.attempts] == [AttemptKind.FIRST] + [AttemptKind.RETRY] * 11
    assert all(attempt.status == 503 for attempt in view.attempts)


@pytest.mark.parametrize("recovers_at", range(12))
async def test_recovery_delivers_at_that_attempt_and_never_again(autojump_clock: object, recovers_at: int) -> None:
    it = world()
    moment = SCHEDULE[recovers_at]
    it.scripts["a.test:80"] = lambda request: 200 if request.at >= moment else 500
    async with it.gateway():
        id = await it.accept()
        await it.sleep_to(moment + 1)
        assert await it.state(id) is MessageState.DELIVERED
        await it.sleep_to(400_000)
    assert it.times() == SCHEDULE[: recovers_at + 1]


async def test_the_wait_before_a_retry_counts_from_the_end_of_the_attempt_before_it(autojump_clock: object) -> None:
    it = world()
    it.scripts[HOST] = hang
    async with it.gateway():
        id = await it.accept()
        await it.sleep_to(700)
        assert it.times() == [0, 30 + 84.8, 60 + 254.4, 90 + 593.6]
        view = await it.message_view(id)
    assert [attempt.duration for attempt in view.attempts] == [30_000] * 3


async def test_a_redirect_is_a_failed_attempt(autojump_clock: object) -> None:
    it = world()
    it.scripts[HOST] = until(80, 307)
    async with it.gateway():
        await it.accept()
        await it.sleep_to(1000)
    assert it.times() == [0, 84.8]


@pytest.mark.parametrize(
    ("asked", "first_retry"),
    [(300, 300), (date_at(300), 300), (10, 84.8), (date_at(-1000), 84.8), ("soon", 84.8), (30 * DAY, DAY + 84.8)],
)
@pytest.mark.parametrize("status", [429, 500])
async def test_retry_after_can_only_push_a_retry_later_by_at_most_24_h_past_its_own_schedule(
    autojump_clock: object, status: int, asked: str | float, first_retry: float
) -> None:
    it = world()
    it.scripts[HOST] = until(1, asks_for(status, asked))
    async with it.gateway():
        await it.accept()
        await trio.sleep(2 * DAY)
    assert it.times() == [0, first_retry]


async def test_after_a_pushed_retry_the_schedule_goes_on_with_its_own_waits(autojump_clock: object) -> None:
    it = world()
    it.scripts[HOST] = until(1, asks_for(500, 1000), 500)
    async with it.gateway():
        await it.accept()
        await it.sleep_to(1600)
    assert it.times() == [0, 1000, 1000 + 169.6, 1000 + 169.6 + 339.2]


@pytest.mark.parametrize(("status", "asked", "second_at"), [(429, 300, 300), (503, 300, 300), (503, 3600, 600)])
async def test_on_429_and_503_retry_after_holds_the_whole_host_at_most_probe_every(
    autojump_clock: object, status: int, asked: float, second_at: float
) -> None:
    it = world()
    it.scripts[HOST] = until(1, asks_for(status, asked))
    async with it.gateway():
        first = await it.accept()
        await it.sleep_to(10)
        second = await it.accept()
        other = await it.accept("b.test:80")
        await it.sleep_to(7200)
    assert it.times(first) == [0, asked]
    assert it.times(second) == [second_at]
    assert it.times(other) == [10]


@pytest.mark.parametrize("status", [500, 404, 302])
async def test_on_other_statuses_retry_after_holds_only_the_message(autojump_clock: object, status: int) -> None:
    it = world()
    it.scripts[HOST] = until(1, asks_for(status, 300))
    async with it.gateway():
        first = await it.accept()
        await it.sleep_to(10)
        second = await it.accept()
        await it.sleep_to(7200)
    assert it.times(first) == [0, 300]
    assert it.times(second) == [10]


@pytest.mark.parametrize(("chance", "first_retry"), [(0.0, 84.8), (0.5, 93.28), (0.99, 93.28 + 8.3104)])
async def test_jitter_can_only_add_as_a_fraction_of_the_wait(
    autojump_clock: object, chance: float, first_retry: float
) -> None:
    it = world(retry={"jitter": 0.2})
    it.chance = lambda: chance
    it.scripts[HOST] = until(1, 500)
    async with it.gateway():
        await it.accept()
        await it.sleep_to(200)
    assert it.times() == [0, pytest.approx(first_retry, abs=0.001)]


async def test_a_delay_holds_the_first_attempt_back_and_the_schedule_counts_from_there(autojump_clock: object) -> None:
    it = world()
    it.scripts[HOST] = 500
    async with it.gateway():
        id = await it.accept(delay=30)
        await it.sleep_to(29.999)
        assert await it.state(id) is MessageState.QUEUED
        await it.sleep_to(120)
        view = await it.message_view(id)
    assert it.times() == [30, 114.8]
    assert [attempt.kind for attempt in view.attempts] == [AttemptKind.FIRST, AttemptKind.RETRY]


HERE = [
    EgressDenied("10.0.0.1 is not on the public internet"),
    NameNotResolved("a.test: try again", here=True),
    ConnectError("no descriptors", None, errno.EMFILE),
    ConnectError("no route", None, errno.ENETUNREACH),
]


@pytest.mark.parametrize("error", HERE, ids=lambda error: type(error).__name__)
async def test_a_local_failure_uses_a_retry_number_and_does_not_count_against_the_host(
    autojump_clock: object, error: Exception
) -> None:
    it = world()
    it.scripts[HOST] = error
    async with it.gateway():
        ids = await it.accept_many(150)
        await it.sleep_to(100)
        assert len(it.requests) == 300
        view = await it.message_view(ids[-1])
        circuit = await it.circuit()
    assert view.place is not None and view.place.retry == 2
    assert [attempt.fault for attempt in view.attempts] == [Fault.HERE] * 2
    assert circuit.state is CircuitState.ENABLED
    assert circuit.consecutive_failures == circuit.window.attempts == 0


@pytest.mark.parametrize(
    "error", [NameNotResolved("a.test: unknown name", here=False), ConnectError("refused", None, errno.ECONNREFUSED)]
)
async def test_every_other_failure_counts_against_the_host(autojump_clock: object, error: Exception) -> None:
    it = world()
    it.scripts[HOST] = error
    async with it.gateway():
        await it.accept_many(101)
        await it.sleep_to(1)
        assert await it.circuit_state() is CircuitState.DISABLED


async def test_an_answer_after_the_deadline_is_a_failure_and_one_before_it_is_not(autojump_clock: object) -> None:
    it = world(circuit=NO_TRIPS)
    it.scripts[HOST] = until(1, slow(30.001), slow(29.999))
    async with it.gateway():
        id = await it.accept()
        await it.sleep_to(200)
        assert it.times() == [0, 114.8]
        assert await it.state(id) is MessageState.DELIVERED
