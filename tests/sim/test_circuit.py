"""A host's circuit in virtual time: what trips it, what is sent meanwhile, and how it recovers."""

import pytest
import trio

from holdfast.core.circuit import CircuitState, Reason
from holdfast.core.message import AttemptKind, DeadReason, MessageState
from holdfast.store.port import DropMessages, MessageFilter
from tests.sim.stores import embedded_only, long_on_each_store, long_on_postgres
from tests.sim.world import (
    DAY,
    HOST,
    HOUR,
    MINUTE,
    NO_TRIPS,
    TRIPS_AT_3,
    Request,
    asks_for,
    every,
    hang,
    raw_id,
    settle,
    slow,
    until,
    world,
)

pytestmark = long_on_each_store

FREEZES_AT_3 = {"min_attempts": 0, "disable_after": 0, "freeze_at": 3}


# -- what trips it -----------------------------------------------------------------------------------------------------


async def test_100_failed_attempts_do_not_disable_and_101_do(autojump_clock: object) -> None:
    it = world()
    it.scripts[HOST] = 500
    async with it.gateway():
        await it.accept_many(100)
        await it.sleep_to(1)
        assert await it.circuit_state() is CircuitState.ENABLED
        await it.accept()
        await it.sleep_to(2)
        circuit = await it.circuit()
    assert (circuit.state, circuit.reason) == (CircuitState.DISABLED, Reason.FAILURE_RATE)


async def test_70_percent_failed_do_not_disable_and_more_do(autojump_clock: object) -> None:
    it = world()
    async with it.gateway():
        await it.accept_many(60)
        await it.sleep_to(1)
        it.scripts[HOST] = until(3, 500)
        await it.accept_many(140)
        await it.sleep_to(2)
        assert await it.circuit_state() is CircuitState.ENABLED
        await it.accept()
        await it.sleep_to(2.5)
        assert await it.circuit_state() is CircuitState.DISABLED


async def test_a_run_of_consecutive_failures_disables_a_host_with_little_traffic(autojump_clock: object) -> None:
    it = world(circuit={"disable_after": 5})
    it.scripts[HOST] = 500
    async with it.gateway():
        await it.accept()
        await it.sleep_to(1271)
        assert await it.circuit_state() is CircuitState.ENABLED
        await it.sleep_to(1273)
        circuit = await it.circuit()
    assert (circuit.state, circuit.reason) == (CircuitState.DISABLED, Reason.CONSECUTIVE_FAILURES)


async def test_failures_older_than_the_window_do_not_count_for_the_rate(autojump_clock: object) -> None:
    it = world(retry={"max_retries": 0, "expire_after": "48h"})
    it.scripts[HOST] = 500
    async with it.gateway():
        await it.accept_many(60)
        await it.sleep_to(HOUR + 60)
        await it.accept_many(60)
        await it.sleep_to(HOUR + 61)
        assert await it.circuit_state() is CircuitState.ENABLED


async def test_late_answers_after_a_trip_update_the_counters_and_change_no_state(autojump_clock: object) -> None:
    it = world(circuit=TRIPS_AT_3 | {"freeze_at": 4})
    it.scripts[HOST] = slow(10, 500)
    async with it.gateway():
        await it.accept()
        await it.trip()
        await it.sleep_to(11)
        circuit = await it.circuit()
        assert (circuit.state, circuit.consecutive_failures) == (CircuitState.DISABLED, 4)
        it.scripts[HOST] = 500
        await it.sleep_to(601)
        circuit = await it.circuit()
    assert (circuit.state, circuit.consecutive_failures) == (CircuitState.FROZEN, 5)


async def test_a_late_success_after_a_trip_does_not_enable(autojump_clock: object) -> None:
    it = world(circuit=TRIPS_AT_3)
    it.scripts[HOST] = slow(10)
    async with it.gateway():
        late = await it.accept()
        await it.trip()
        await it.sleep_to(11)
        assert await it.state(late) is MessageState.DELIVERED
        circuit = await it.circuit()
        assert (circuit.state, circuit.consecutive_failures) == (CircuitState.DISABLED, 0)
        await it.sleep_to(599)
        assert len(it.requests) == 4


# -- probes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [500, slow(20, 500)])
async def test_a_disabled_host_gets_exactly_one_request_every_10_minutes(
    autojump_clock: object, answer: object
) -> None:
    it = world(circuit=TRIPS_AT_3)
    it.scripts[HOST] = answer
    async with it.gateway():
        await it.sleep_to(7)
        await it.trip()
        for _ in range(20):
            await it.accept()
            await trio.sleep(311)
        await it.sleep_to(2 * HOUR)
    assert it.times() == [7, 7, 7, *every(600, start=607, number=11)]


async def test_a_probe_takes_the_oldest_not_yet_probed_then_starts_again_from_the_oldest(
    autojump_clock: object,
) -> None:
    """Those with retries behind them, and fresh ones that came since."""
    it = world(circuit=TRIPS_AT_3)
    it.scripts[HOST] = 500
    async with it.gateway():
        ids = await it.trip()
        await it.sleep_to(100)
        ids += [await it.accept() for _ in range(3)]
        await it.sleep_to(600 * 14 + 1)
        view = await it.message_view(ids[0])
    assert it.ids()[3:] == [*ids, *ids, *ids[:2]]
    assert [attempt.kind for attempt in view.attempts] == [
        AttemptKind.FIRST,
        AttemptKind.PROBE,
        AttemptKind.PROBE,
        AttemptKind.PROBE,
    ]


async def test_a_message_that_comes_during_the_round_is_probed_in_its_turn(autojump_clock: object) -> None:
    it = world(circuit=TRIPS_AT_3)
    it.scripts[HOST] = 500
    async with it.gateway():
        ids = await it.trip()
        await it.sleep_to(1900)
        last = await it.accept()
        await it.sleep_to(600 * 5 + 1)
    assert it.ids()[3:] == [*ids, last, ids[0]]


async def test_one_deleted_url_cannot_keep_a_healthy_host_disabled(autojump_clock: object) -> None:
    it = world(circuit=TRIPS_AT_3)
    async with it.gateway():
        deleted, *others = await it.trip()
        it.scripts[HOST] = lambda request: 404 if request.id == deleted else 200
        await it.sleep_to(1300)
        assert await it.circuit_state() is CircuitState.ENABLED
        assert it.times(others[0]) == [0, 1200]
        assert it.times(others[1]) == [0, 1200]
        assert it.times(deleted) == [0, 600, 1200]


async def test_a_probe_never_takes_a_message_held_by_retry_after(autojump_clock: object) -> None:
    it = world(circuit=TRIPS_AT_3)
    async with it.gateway():
        it.scripts[HOST] = asks_for(500, 4000)
        held = await it.accept()
        await settle()
        it.scripts[HOST] = 500
        others = [await it.accept(), await it.accept()]
        await it.sleep_to(600 * 8 + 1)
        assert await it.circuit_state() is CircuitState.DISABLED
    assert it.ids()[3:] == [*others, *others, *others, held, *others[:1]]


async def test_a_probe_never_takes_a_message_held_by_a_delay(autojump_clock: object) -> None:
    it = world(circuit=TRIPS_AT_3, retry={"max_retries": 0, "expire_after": "48h"})
    it.scripts[HOST] = 500
    async with it.gateway():
        await it.trip()
        await it.sleep_to(100)
        id = await it.accept(delay=2000)
        await it.sleep_to(5000)
        assert it.times(id) == [2100, 2700, 3300, 3900, 4500]


async def test_if_nothing_waits_when_a_probe_is_due_the_next_message_is_the_probe_at_once(
    autojump_clock: object,
) -> None:
    it = world(circuit=TRIPS_AT_3, retry={"max_retries": 0, "expire_after": "48h"})
    it.scripts[HOST] = 500
    async with it.gateway():
        await it.trip()
        await it.sleep_to(1000)
        first = await it.accept()
        await it.sleep_to(1100)
        second = await it.accept()
        await it.sleep_to(1700)
        assert it.times(first) == [1000]
        assert it.times(second) == [1600]
        assert (await it.message_view(first)).attempts[-1].kind is AttemptKind.PROBE


async def test_a_message_that_comes_before_the_probe_is_due_waits_for_it(autojump_clock: object) -> None:
    it = world(circuit=TRIPS_AT_3, retry={"max_retries": 0, "expire_after": "48h"})
    async with it.gateway():
        await it.trip()
        await it.sleep_to(599)
        id = await it.accept()
        await it.sleep_to(700)
        assert it.times(id) == [600]


async def test_waiting_and_probing_use_up_no_retry_number_and_move_no_due_time(autojump_clock: object) -> None:
    it = world(circuit=TRIPS_AT_3)
    async with it.gateway():
        first, *_ = await it.trip()
        it.scripts[HOST] = lambda request: 500 if request.id == first else 200
        await it.sleep_to(599)
        before = (await it.message_view(first)).place
        await it.sleep_to(1199)
        probed = (await it.message_view(first)).place
        await it.sleep_to(2000)
        view = await it.message_view(first)
    assert before is not None and probed is not None
    assert (probed.retry, probed.due, probed.born) == (before.retry, before.due, before.born)
    assert it.times(first) == [0, 600, 1200, 1369.6, 1708.8]
    assert [attempt.kind for attempt in view.attempts] == [
        AttemptKind.FIRST,
        AttemptKind.PROBE,
        *[AttemptKind.RETRY] * 3,
    ]


async def test_a_retry_that_is_due_after_the_circuit_came_back_keeps_its_time(autojump_clock: object) -> None:
    it = world(circuit=TRIPS_AT_3 | {"disable_after": 7})
    it.scripts[HOST] = 500
    async with it.gateway():
        id = await it.accept()
        await it.sleep_to(1273)
        await it.trip(number=2)
        it.scripts[HOST] = lambda request: 500 if request.id == id else 200
        await it.sleep_to(2700)
        assert await it.circuit_state() is CircuitState.ENABLED
    assert it.times(id) == [0, 84.8, 254.4, 593.6, 1272, 1873, 2628.8], "the one at 1873 is a probe"


async def test_a_probe_interval_shorter_than_an_attempt_leaves_one_probe_at_a_time(autojump_clock: object) -> None:
    it = world(circuit=TRIPS_AT_3 | {"probe_every": "10s"})
    it.scripts[HOST] = slow(25, 500)
    async with it.gateway():
        ids = await it.trip()
        await it.sleep_to(101)
    assert it.times()[3:] == [10, 35, 60, 85]
    assert it.ids()[3:] == [*ids, ids[0]]


async def test_while_all_that_waits_is_in_flight_there_is_nothing_to_probe_with(autojump_clock: object) -> None:
    it = world(circuit=TRIPS_AT_3 | {"disable_after": 7, "probe_every": "10s"}, retry={"max_retries": 1, "base": "15s"})
    it.scripts[HOST] = 500
    async with it.gateway():
        late, *_ = await it.accept_many(4)
        await it.sleep_to(14)
        it.scripts[HOST] = lambda request: slow(25, 500)(request) if request.id == late else 500
        await it.sleep_to(30)
        await it.accept(delay=1000)
        await it.sleep_to(39)
        assert await it.circuit_state() is CircuitState.DISABLED
        assert (await it.ledger.statistics()).dead == 3
        assert len(it.requests) == 8
        await it.sleep_to(50)
        last = await it.accept()
        await it.sleep_to(51)
        assert it.times(last) == [50]


# -- back again --------------------------------------------------------------------------------------------------------


async def test_when_a_probe_gets_2xx_all_of_the_backlog_is_delivered_in_slow_start(autojump_clock: object) -> None:
    it = world(circuit=TRIPS_AT_3)
    async with it.gateway():
        ids = await it.trip()
        it.scripts[HOST] = slow(1)
        ids += await it.accept_many(200)
        await it.sleep_to(650)
        assert await it.states(ids) == {MessageState.DELIVERED: 203}
        assert await it.circuit_state() is CircuitState.ENABLED
    most: dict[float, int] = {}
    for request in it.requests[3:]:
        most[request.at] = max(most.get(request.at, 0), request.beside)
    assert list(most.items())[:7] == [(600, 1), (601, 1), (602, 2), (603, 4), (604, 8), (605, 16), (606, 16)]
    assert max(most.values()) == 16


async def test_a_failure_of_the_hosts_returns_slow_start_to_1(autojump_clock: object) -> None:
    it = world(circuit=TRIPS_AT_3 | {"disable_after": 10})

    async def fails_at_603(request: Request) -> int:
        await trio.sleep(1)
        return 500 if request.at == 603 else 200

    async with it.gateway():
        await it.trip(number=10)
        it.scripts[HOST] = fails_at_603
        await it.accept_many(100)
        await it.sleep_to(607)
    at = [max(request.beside for request in it.requests if request.at == second) for second in range(601, 607)]
    assert at == [1, 2, 4, 1, 2, 4]


async def test_a_late_failure_does_not_disturb_an_enabled_circuit(autojump_clock: object) -> None:
    """The window counts since the circuit was last enabled."""
    it = world()
    it.scripts[HOST] = until(600, 500)
    async with it.gateway():
        ids = await it.accept_many(101)
        await it.sleep_to(599)
        assert await it.circuit_state() is CircuitState.DISABLED
        await it.sleep_to(700)
        circuit = await it.circuit()
        assert await it.states(ids) == {MessageState.DELIVERED: 101}
    assert circuit.state is CircuitState.ENABLED
    assert circuit.window.failures == 0


# -- frozen ------------------------------------------------------------------------------------------------------------


async def test_a_frozen_host_gets_nothing_in_30_days_and_keeps_accepting(autojump_clock: object) -> None:
    it = world(circuit=FREEZES_AT_3, retention={"dead": "60d"})
    it.scripts[HOST] = 500
    async with it.gateway():
        old = await it.accept_many(3)
        for _ in range(29):
            await trio.sleep(DAY)
            old.append(await it.accept())
        late = old[-2:]
        await it.sleep_to(30 * DAY)
        assert it.times() == [0, 0, 0]
        it.scripts[HOST] = 200
        change = await it.delivery.control.unfreeze(HOST, HOST)
        assert change is not None
        await trio.sleep(1)
        assert it.ids()[3:] == late
        assert set(it.times()[3:]) == {30 * DAY}
        assert {(await it.message_view(id)).dead_reason for id in old[:-2]} == {DeadReason.EXPIRED}
        assert await it.replay_dead() == len(old) - 2
        await trio.sleep(1)
        assert await it.states(old[3:]) == {MessageState.DELIVERED: 29}
        assert max(request.beside for request in it.requests[3:]) == 1


async def test_replays_go_in_slow_start(autojump_clock: object) -> None:
    it = world(circuit=NO_TRIPS, retry={"max_retries": 0, "expire_after": "48h"})
    it.scripts[HOST] = until(1, 500, slow(1))
    async with it.gateway():
        ids = await it.accept_many(40)
        await it.sleep_to(10)
        await it.accept_many(20)
        await it.sleep_to(20)
        assert it.most_open(10) == 16
        assert await it.replay_dead() == 40
        await it.sleep_to(40)
        assert await it.states(ids) == {MessageState.DELIVERED: 40}
        view = await it.message_view(ids[0])
    assert [it.most_open(at) for at in (20, 21, 22, 23, 24)] == [1, 2, 4, 8, 16]
    assert [attempt.number for attempt in view.attempts] == [1, 2], "attempt numbers run on"


async def test_50_000_consecutive_failures_freeze(autojump_clock: object) -> None:
    it = world(circuit=TRIPS_AT_3 | {"freeze_at": 8})
    it.scripts[HOST] = 500
    async with it.gateway():
        await it.trip()
        it.scripts[HOST] = 500
        await it.sleep_to(10 * HOUR)
        circuit = await it.circuit()
    assert it.times()[3:] == every(600, start=600, number=5)
    assert (circuit.state, circuit.reason) == (CircuitState.FROZEN, Reason.CONSECUTIVE_LIMIT)


@long_on_postgres
async def test_more_failures_than_freeze_after_and_72_h_of_silence_freeze(autojump_clock: object) -> None:
    it = world(circuit=TRIPS_AT_3 | {"freeze_after": 5})
    it.scripts[HOST] = 500
    async with it.gateway():
        await it.trip()
        it.scripts[HOST] = 500
        for day in (1, 2):
            await it.sleep_to(day * DAY)
            await it.accept()
        await it.sleep_to(4 * DAY)
        circuit = await it.circuit()
    assert it.times()[-1] == 72 * HOUR + 600, "at 72 h it is not yet more than 72 h"
    assert (circuit.state, circuit.reason) == (CircuitState.FROZEN, Reason.SILENCE)


async def test_unfreezing_resets_the_counters_and_the_72_h_count_from_there(autojump_clock: object) -> None:
    it = world(circuit=TRIPS_AT_3 | {"freeze_after": 5, "freeze_silence": "2h"})
    it.scripts[HOST] = 500
    async with it.gateway():
        await it.trip()
        it.scripts[HOST] = 500
        await it.sleep_to(3 * HOUR)
        assert await it.circuit_state() is CircuitState.FROZEN
        await it.delivery.control.unfreeze(HOST, HOST)
        assert (await it.circuit()).consecutive_failures <= 1
        await trio.sleep(2 * HOUR)
        assert await it.circuit_state() is CircuitState.DISABLED
        await trio.sleep(0.5 * HOUR)
        assert await it.circuit_state() is CircuitState.FROZEN


async def test_unfreezing_an_enabled_circuit_changes_nothing(autojump_clock: object) -> None:
    it = world()
    async with it.gateway():
        await it.accept()
        assert await it.delivery.control.unfreeze(HOST, HOST) is None
        assert await it.delivery.control.unfreeze("new.test:80", "new.test:80") is None


async def test_unfreezing_a_disabled_circuit_sends_what_waits_at_once(autojump_clock: object) -> None:
    it = world(circuit=TRIPS_AT_3)
    async with it.gateway():
        ids = await it.trip()
        waiting = await it.accept()
        await it.sleep_to(100)
        await it.delivery.control.unfreeze(HOST, HOST)
        await it.sleep_to(101)
        assert await it.states([*ids, waiting]) == {MessageState.DELIVERED: 4}
        assert it.times(waiting) == [100]


async def test_asking_for_a_probe_of_an_enabled_circuit_leaves_its_retries_alone(autojump_clock: object) -> None:
    it = world()
    it.scripts[HOST] = 500
    async with it.gateway():
        await it.accept()
        await it.sleep_to(30)
    async with it.gateway():
        await it.sleep_to(40)
        assert not await it.delivery.control.probe(HOST, HOST)
        await it.sleep_to(100)
    assert it.times() == [0, 84.8]


async def test_a_replay_to_a_circuit_that_was_forgotten_begins_in_slow_start(autojump_clock: object) -> None:
    it = world(retry={"base": "1s", "max_retries": 1})
    it.scripts[HOST] = until(DAY, 500, slow(1))
    async with it.gateway():
        await it.accept_many(5)
        await it.sleep_to(8 * DAY)
        assert await it.ledger.circuit(HOST) is None
        assert await it.replay_dead() == 5
        await it.sleep_to(8 * DAY + 10)
    assert it.times()[10:] == [8 * DAY + seconds for seconds in (0, 1, 1, 2, 2)]


async def test_a_probe_asked_for_while_one_is_under_way_is_that_one(autojump_clock: object) -> None:
    it = world(circuit=TRIPS_AT_3)
    async with it.gateway():
        await it.trip()
        it.requests.clear()
        it.scripts[HOST] = slow(5, 500)
        await it.sleep_to(10 * MINUTE + 1)
        assert await it.delivery.control.probe(HOST, HOST)
        await it.sleep_to(19 * MINUTE)
        assert it.times() == [600], "the one that was due, and no other right behind it"


@embedded_only("replicas give a probe back that was dropped")
async def test_a_probe_that_waits_for_a_place_and_is_dropped_is_not_sent(autojump_clock: object) -> None:
    it = world(circuit=TRIPS_AT_3, delivery={"retries": 4})
    busy = [f"{name}.test:80" for name in "bcde"]
    it.scripts.update(dict.fromkeys(busy, until(1, 500, hang)))
    async with it.gateway():
        dropped, *others = await it.trip()
        await it.accept_for(busy)
        await it.sleep_to(90)
        assert [it.open[host] for host in busy] == [1] * 4, "all places for retries and probes are taken"
        await it.delivery.control.probe(HOST, HOST)
        await settle()
        lane = it.lanes.find(HOST)
        assert lane is not None and lane.probe is not None and lane.probe.message.id == raw_id(dropped)
        await it.ledger.perform(DropMessages(MessageFilter(id=raw_id(dropped)), 1))
        await it.sleep_to(200)
    assert it.times(dropped) == [0]
    assert [len(it.times(id)) for id in others] == [2, 2], "one of them was the probe, the other its retry"
