"""When lanes need attention by time: on disk, and in memory with nothing to send."""

from dataclasses import replace

import pytest

from holdfast.config import build
from holdfast.core.circuit import Circuit, CircuitState
from holdfast.core.lane import Lane
from holdfast.core.lane_times import GRACE, Heads, LaneStep, grace_ends, quiet_lane_step, wake_at
from tests.core.build import HOUR, MINUTE, NOW, RULES, lane

RETRY = build({}).retry
SPAN = RETRY.expire_after
DAY = 24 * HOUR
LONG_AGO = NOW - 30 * DAY
DISABLED, FROZEN = CircuitState.DISABLED, CircuitState.FROZEN


# when a lane on disk needs attention


@pytest.mark.parametrize(
    ("heads", "wake"),
    [
        (Heads(waiting=NOW, oldest=NOW), NOW),
        (Heads(due=NOW + HOUR, oldest=NOW), NOW + HOUR),
        (Heads(waiting=NOW, due=NOW + HOUR, oldest=NOW), NOW),
        (Heads(waiting=NOW + HOUR, due=NOW, oldest=NOW), NOW),
    ],
)
def test_an_enabled_lane_wakes_for_the_first_of_its_waiting_and_due_messages(heads, wake):
    assert wake_at(Circuit(), heads, RULES, RETRY) == wake


@pytest.mark.parametrize(
    ("next_probe_at", "probe_from", "wake"),
    [
        (NOW + 10 * MINUTE, 0, NOW + 10 * MINUTE),
        (NOW + 10 * MINUTE, NOW + HOUR, NOW + HOUR),
        (NOW + 10 * MINUTE, None, NOW + SPAN),
        (NOW + SPAN + 1, 0, NOW + SPAN),
    ],
)
def test_a_disabled_lane_wakes_for_its_probe_or_its_first_expiry(next_probe_at, probe_from, wake):
    circuit = Circuit(state=CircuitState.DISABLED, next_probe_at=next_probe_at)
    heads = Heads(waiting=NOW, oldest=NOW, probe_from=probe_from)
    assert wake_at(circuit, heads, RULES, RETRY) == wake


def test_a_frozen_lane_wakes_only_for_its_first_expiry():
    circuit = Circuit(state=CircuitState.FROZEN, enabled_at=NOW + HOUR, next_probe_at=NOW)
    heads = Heads(waiting=NOW, due=NOW, oldest=NOW, probe_from=0)
    assert wake_at(circuit, heads, RULES, RETRY) == NOW + HOUR + SPAN


@pytest.mark.parametrize("since", [NOW - DAY, NOW + DAY])
def test_an_enabled_lane_with_nothing_waiting_wakes_7_days_after_its_last_attempt_or_change(since):
    circuit = Circuit(since=since, last_attempt_at=NOW)
    assert wake_at(circuit, Heads(), RULES, RETRY) == max(NOW, since) + 7 * DAY


@pytest.mark.parametrize("state", [CircuitState.DISABLED, CircuitState.FROZEN])
def test_only_an_enabled_circuit_is_forgotten(state):
    """0: nothing but a new message or an operator changes it."""
    assert wake_at(Circuit(state=state, since=NOW, last_attempt_at=NOW), Heads(), RULES, RETRY) == 0


# what a lane in memory with nothing to send needs


def step(it: Lane, now: int = NOW, *, started: int = LONG_AGO) -> LaneStep | int | None:
    return quiet_lane_step(it, now, RULES, RETRY, started=started, grace_until=grace_ends(started, RULES))


def waiting(state: CircuitState, *, oldest: int = NOW - SPAN, probe_from: int | None = None, **circuit: int) -> Lane:
    it = lane(state=state)
    it.circuit = Circuit(state, **circuit)
    it.stale, it.oldest, it.probe_from = False, oldest, probe_from
    return it


def test_the_grace_is_ten_minutes_or_the_time_between_two_probes_if_that_is_shorter():
    assert grace_ends(NOW, replace(RULES, probe_every=HOUR)) == NOW + GRACE == NOW + 10 * MINUTE
    assert grace_ends(NOW, replace(RULES, probe_every=MINUTE)) == NOW + MINUTE


@pytest.mark.parametrize("state", CircuitState)
@pytest.mark.parametrize(("hydrated", "stale"), [(False, False), (True, True)])
def test_nothing_is_decided_by_a_lane_that_is_to_be_read(state, hydrated, stale):
    it = waiting(state, oldest=NOW - 10 * SPAN)
    it.hydrated, it.stale = hydrated, stale
    assert step(it) is None


def test_an_enabled_circuit_is_forgotten_once_it_was_idle_for_long_enough():
    it = waiting(CircuitState.ENABLED, last_attempt_at=NOW - 7 * DAY)
    assert step(it) is None
    it.oldest = None
    assert step(it, NOW - 1) is None
    assert step(it) is LaneStep.FORGET


def test_an_idle_lane_that_was_not_written_lately_is_saved():
    it = waiting(CircuitState.ENABLED, last_attempt_at=NOW)
    it.oldest, it.dirty = None, True
    assert step(it) is LaneStep.SAVE


@pytest.mark.parametrize("state", [DISABLED, FROZEN])
def test_messages_expire_to_the_millisecond(state):
    it = waiting(state)
    assert step(it, NOW - 1) is None
    assert step(it) is LaneStep.EXPIRE


@pytest.mark.parametrize("state", [DISABLED, FROZEN])
def test_where_nothing_waits_nothing_expires(state):
    it = waiting(state)
    it.oldest = None
    assert step(it, NOW + 10 * SPAN) is None


@pytest.mark.parametrize("state", [DISABLED, FROZEN])
@pytest.mark.parametrize("enabled_at", [0, NOW - DAY, NOW + DAY])
def test_the_span_counts_from_the_latest_of_a_messages_birth_and_its_circuits_enabling(state, enabled_at):
    it = waiting(state, oldest=NOW, enabled_at=enabled_at)
    expiry = max(NOW, enabled_at) + SPAN
    assert (step(it, expiry - 1), step(it, expiry)) == (None, LaneStep.EXPIRE)


def test_in_an_enabled_circuit_nothing_expires():
    assert step(waiting(CircuitState.ENABLED), NOW + 10 * SPAN) is None


def test_nothing_expires_in_the_grace_after_a_start():
    it = waiting(FROZEN)
    assert step(it, started=NOW) == NOW + 10 * MINUTE
    assert step(it, NOW + 10 * MINUTE, started=NOW) is LaneStep.EXPIRE


def test_a_disabled_circuit_is_probed_before_its_messages_expire():
    it = waiting(DISABLED, probe_from=0, next_probe_at=NOW + HOUR)
    assert step(it, started=NOW) == NOW + HOUR
    it.circuit.last_attempt_at = NOW + HOUR
    assert step(it, NOW + HOUR, started=NOW) is LaneStep.EXPIRE


def test_a_circuit_that_was_disabled_in_this_run_needs_no_further_probe():
    it = waiting(DISABLED, probe_from=0, next_probe_at=NOW + HOUR, since=NOW)
    assert step(it, NOW + 10 * MINUTE, started=NOW) is LaneStep.EXPIRE


def test_without_a_message_that_may_be_a_probe_expiry_waits_only_for_the_grace():
    it = waiting(DISABLED, next_probe_at=NOW + HOUR)
    assert step(it, NOW + 10 * MINUTE, started=NOW) is LaneStep.EXPIRE


@pytest.mark.parametrize(
    ("probe_from", "again_at"), [(NOW, None), (NOW + MINUTE, NOW + MINUTE), (NOW + 9 * SPAN, NOW + SPAN)]
)
def test_a_lane_whose_messages_are_all_held_is_looked_at_when_the_first_may_be_a_probe(probe_from, again_at):
    assert step(waiting(DISABLED, oldest=NOW, probe_from=probe_from)) == again_at
