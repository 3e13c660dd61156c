from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.circuit import (
    TRANSITIONS,
    Circuit,
    CircuitChange,
    CircuitRules,
    CircuitState,
    Event,
    Reason,
    Window,
)
from tests.core.build import HOUR, MINUTE, NOW, RULES, SECOND

ENABLED, DISABLED, FROZEN = CircuitState
OFF = replace(
    RULES,
    min_attempts=0,
    failure_rate=0,
    disable_after=0,
    freeze_after=0,
    freeze_silence=0,
    freeze_at=0,
)
RATE = replace(OFF, min_attempts=100, failure_rate=0.70)
RUN = replace(OFF, disable_after=2_000)
SILENCE = replace(OFF, freeze_after=2_000, freeze_silence=72 * HOUR)
LIMIT = replace(OFF, freeze_at=50_000)
TEN = replace(OFF, disable_after=10)
"""Disables after ten failures: for tests of what follows."""


def fail(
    circuit: Circuit, rules: CircuitRules, now: int = NOW, times: int = 1, *, probe: bool = False
) -> CircuitChange | None:
    change = None
    for _ in range(times):
        assert change is None, "changed before the last failure"
        generation = circuit.begin(rules, now, probe=probe)
        change = circuit.failed(rules, now, generation=generation)
    return change


def succeed(
    circuit: Circuit, rules: CircuitRules, now: int = NOW, times: int = 1, *, probe: bool = False
) -> CircuitChange | None:
    change = None
    for _ in range(times):
        assert change is None, "changed before the last success"
        generation = circuit.begin(rules, now, probe=probe)
        change = circuit.succeeded(rules, now, generation=generation, probe=probe)
    return change


def tripped(rules: CircuitRules = TEN, now: int = NOW) -> Circuit:
    circuit = Circuit()
    assert fail(circuit, rules, now, rules.disable_after)
    assert circuit.state is DISABLED
    return circuit


# enabled: at first sight, everything


def test_a_new_circuit_is_enabled():
    circuit = Circuit()
    assert (circuit.state, circuit.reason, circuit.next_probe_at) == (ENABLED, None, None)


def test_the_default_numbers_are_the_published_ones():
    assert (
        CircuitRules(
            scope="host",
            url_hosts=(),
            window=HOUR,
            min_attempts=100,
            failure_rate=0.70,
            disable_after=2_000,
            freeze_after=2_000,
            freeze_silence=72 * HOUR,
            freeze_at=50_000,
            probe_every=10 * MINUTE,
            forget_after=7 * 24 * HOUR,
        )
        == RULES
    )


# disabled by the rate


@pytest.mark.parametrize("rules", [RATE, RULES])
def test_100_attempts_all_failed_do_not_disable_and_101_do(rules):
    circuit = Circuit()
    assert fail(circuit, rules, times=100) is None
    assert circuit.state is ENABLED
    assert fail(circuit, rules) == CircuitChange(ENABLED, DISABLED, Event.RATE_EXCEEDED, Reason.FAILURE_RATE, NOW)
    assert (circuit.state, circuit.reason, circuit.since) == (DISABLED, Reason.FAILURE_RATE, NOW)


@pytest.mark.parametrize("total", [110, 120, 130, 170, 200, 370, 1_000, 1_990, 12_340])
def test_exactly_70_percent_does_not_disable_and_one_failure_more_does(total):
    circuit = Circuit()
    succeed(circuit, RATE, times=total * 3 // 10)
    assert fail(circuit, RATE, times=total * 7 // 10) is None
    assert (circuit.window.attempts, circuit.window.failures) == (total, total * 7 // 10)
    change = fail(circuit, RATE)
    assert change is not None
    assert change.reason is Reason.FAILURE_RATE


@given(st.integers(1, 99), st.data())
def test_more_than_any_whole_percentage_is_judged_exactly(percent, data):
    attempts = data.draw(st.integers(101, 30_000) | st.integers(2, 300).map(lambda number: number * 100))
    at_the_line = attempts * percent // 100
    failures = data.draw(st.integers(1, attempts) | st.sampled_from([at_the_line, at_the_line + 1]))
    failures = max(1, failures)
    circuit = Circuit(window=Window([[NOW // MINUTE, attempts - 1, failures - 1]]))
    change = fail(circuit, replace(RATE, failure_rate=percent / 100))
    assert (change is not None) == (failures * 100 > attempts * percent)


def test_a_rate_under_the_line_never_disables_however_many_attempts():
    circuit = Circuit()
    for _ in range(1_000):
        succeed(circuit, RATE, times=3)
        assert fail(circuit, RATE, times=7) is None
    assert circuit.state is ENABLED


# disabled by a run of failures


def test_1999_consecutive_failures_do_not_disable_and_2000_do():
    circuit = Circuit()
    assert fail(circuit, RUN, times=1_999) is None
    assert circuit.state is ENABLED
    change = fail(circuit, RUN)
    assert change == CircuitChange(ENABLED, DISABLED, Event.RUN_OF_FAILURES, Reason.CONSECUTIVE_FAILURES, NOW)


def test_a_run_of_failures_counts_however_slowly_they_come():
    """One an hour: the window never fills, so the rate does not apply."""
    circuit = Circuit()
    rules = replace(RULES, freeze_silence=0)
    for number in range(1_999):
        assert fail(circuit, rules, NOW + number * HOUR) is None
    change = fail(circuit, rules, NOW + 1_999 * HOUR)
    assert change is not None
    assert change.reason is Reason.CONSECUTIVE_FAILURES


def test_one_success_ends_a_run_of_failures():
    circuit = Circuit()
    fail(circuit, RUN, times=1_999)
    succeed(circuit, RUN)
    assert circuit.consecutive_failures == 0
    assert fail(circuit, RUN, times=1_999) is None


# frozen


@pytest.mark.parametrize(
    ("failures", "silence", "freezes"),
    [
        (2_001, 71 * HOUR + 59 * MINUTE, False),
        (2_001, 72 * HOUR, False),
        (2_001, 72 * HOUR + 1, True),
        (2_001, 72 * HOUR + 1 * MINUTE, True),
        (2_000, 72 * HOUR + 1 * MINUTE, False),
        (5_000, 71 * HOUR + 59 * MINUTE, False),
    ],
)
def test_over_2000_failures_freeze_only_with_the_last_success_over_72_h_ago(failures, silence, freezes):
    circuit = Circuit()
    fail(circuit, SILENCE, NOW - 90 * HOUR)
    succeed(circuit, SILENCE, NOW)
    fail(circuit, SILENCE, NOW + MINUTE, failures - 1)
    change = fail(circuit, SILENCE, NOW + silence)
    expected = CircuitChange(ENABLED, FROZEN, Event.SILENT_TOO_LONG, Reason.SILENCE, NOW + silence)
    assert change == (expected if freezes else None)


def test_a_disabled_circuit_freezes_when_a_probe_fails_after_72_h():
    circuit = Circuit()
    succeed(circuit, RULES, NOW)
    rules = replace(RULES, failure_rate=0)
    assert fail(circuit, rules, NOW + HOUR, 2_000).after is DISABLED
    assert fail(circuit, rules, NOW + 72 * HOUR, probe=True) is None
    change = fail(circuit, rules, NOW + 72 * HOUR + 10 * MINUTE, probe=True)
    assert (change.before, change.after, change.reason) == (DISABLED, FROZEN, Reason.SILENCE)


@pytest.mark.parametrize(("after", "freezes"), [(72 * HOUR, False), (72 * HOUR + 1, True)])
def test_a_host_that_never_succeeded_counts_its_72_h_from_the_start_of_the_first_attempt(after, freezes):
    circuit = Circuit()
    generation = circuit.begin(SILENCE, NOW, probe=False)
    circuit.failed(SILENCE, NOW + 30 * SECOND, generation=generation)
    fail(circuit, SILENCE, NOW + MINUTE, 1_999)
    assert circuit.first_attempt_at == NOW
    change = fail(circuit, SILENCE, NOW + after)
    assert (change is not None) == freezes


def test_49999_consecutive_failures_do_not_freeze_and_50000_freeze_at_once():
    circuit = Circuit()
    succeed(circuit, LIMIT)
    assert fail(circuit, LIMIT, times=49_999) is None
    change = fail(circuit, LIMIT)
    assert change == CircuitChange(ENABLED, FROZEN, Event.RUN_AT_LIMIT, Reason.CONSECUTIVE_LIMIT, NOW)
    assert circuit.next_probe_at is None


def test_50000_failures_freeze_a_disabled_circuit_when_the_next_probe_fails():
    rules = replace(LIMIT, disable_after=49_000)
    circuit = Circuit()
    late = [circuit.begin(rules, NOW, probe=False) for _ in range(1_500)]
    fail(circuit, rules, times=49_000)
    assert circuit.state is DISABLED
    assert [circuit.failed(rules, NOW, generation=generation) for generation in late] == [None] * 1_500
    assert circuit.consecutive_failures == 50_500
    change = fail(circuit, rules, NOW + 10 * MINUTE, probe=True)
    assert (change.after, change.reason) == (FROZEN, Reason.CONSECUTIVE_LIMIT)


def test_the_strictest_broken_rule_decides():
    rules = replace(RULES, min_attempts=4, disable_after=5, freeze_after=4, freeze_silence=HOUR, freeze_at=5)
    circuit = Circuit()
    fail(circuit, rules, times=4)
    assert fail(circuit, rules, NOW + 2 * HOUR).reason is Reason.CONSECUTIVE_LIMIT
    rules = replace(rules, freeze_at=0)
    circuit = Circuit()
    fail(circuit, rules, times=4)
    assert fail(circuit, rules, NOW + 2 * HOUR).reason is Reason.SILENCE


# 0 turns a rule off


@pytest.mark.parametrize(
    "rules",
    [
        OFF,
        replace(RATE, failure_rate=0),
        replace(RATE, min_attempts=0),
        replace(RUN, disable_after=0),
        replace(SILENCE, freeze_after=0),
        replace(SILENCE, freeze_silence=0),
        replace(LIMIT, freeze_at=0),
    ],
    ids=[
        "all",
        "failure_rate",
        "min_attempts",
        "disable_after",
        "freeze_after",
        "freeze_silence",
        "freeze_at",
    ],
)
def test_0_turns_a_rule_off(rules):
    circuit = Circuit()
    fail(circuit, rules)
    assert fail(circuit, rules, NOW + 100 * HOUR, times=50_001) is None
    assert circuit.state is ENABLED


# late answers


@pytest.mark.parametrize("freezing", [{"freeze_at": 12}, {"freeze_after": 11, "freeze_silence": HOUR}])
def test_a_late_failure_counts_and_changes_no_state(freezing):
    limit = replace(TEN, **freezing)
    circuit = Circuit()
    late = [circuit.begin(limit, NOW, probe=False) for _ in range(20)]
    fail(circuit, limit, NOW, 10)
    assert circuit.state is DISABLED
    since, next_probe_at = circuit.since, circuit.next_probe_at
    for generation in late:
        assert circuit.failed(limit, NOW + 30 * HOUR, generation=generation) is None
    assert (circuit.state, circuit.since, circuit.next_probe_at) == (DISABLED, since, next_probe_at)
    assert circuit.consecutive_failures == 30
    assert (circuit.window.attempts, circuit.window.failures) == (20, 20)


def test_a_late_failure_does_not_trip_a_circuit_that_was_enabled_meanwhile():
    circuit = Circuit()
    late = [circuit.begin(TEN, NOW, probe=False) for _ in range(20)]
    fail(circuit, TEN, NOW, 10)
    succeed(circuit, TEN, NOW + 10 * MINUTE, probe=True)
    assert [circuit.failed(TEN, NOW + 11 * MINUTE, generation=generation) for generation in late] == [None] * 20
    assert (circuit.state, circuit.consecutive_failures) == (ENABLED, 20)
    assert fail(circuit, TEN, NOW + 11 * MINUTE).after is DISABLED


def test_a_late_success_counts_and_enables_nothing():
    circuit = Circuit()
    generation = circuit.begin(TEN, NOW, probe=False)
    fail(circuit, TEN, NOW, 10)
    assert circuit.succeeded(TEN, NOW + SECOND, generation=generation, probe=False) is None
    assert (circuit.state, circuit.consecutive_failures, circuit.last_success_at) == (
        DISABLED,
        0,
        NOW + SECOND,
    )
    assert (circuit.window.attempts, circuit.window.failures) == (11, 10)


def test_a_late_success_of_an_older_generations_probe_enables_nothing():
    circuit = tripped()
    older = circuit.begin(TEN, NOW + 10 * MINUTE, probe=True)
    circuit.unfreeze(TEN, NOW + 10 * MINUTE)
    fail(circuit, TEN, NOW + 10 * MINUTE, 10)
    assert circuit.state is DISABLED
    assert circuit.succeeded(TEN, NOW + 11 * MINUTE, generation=older, probe=True) is None
    assert (circuit.state, circuit.consecutive_failures) == (DISABLED, 0)


def test_a_late_success_of_a_probe_does_not_unfreeze_a_circuit_that_froze_meanwhile():
    circuit = tripped()
    generation = circuit.begin(TEN, NOW + 10 * MINUTE, probe=True)
    circuit.freeze(TEN, NOW + 10 * MINUTE)
    assert circuit.succeeded(TEN, NOW + 11 * MINUTE, generation=generation, probe=True) is None
    assert (circuit.state, circuit.last_success_at) == (FROZEN, NOW + 11 * MINUTE)


def test_every_change_of_state_begins_a_new_generation():
    circuit = Circuit()
    spells = [circuit.generation]
    for change in (
        lambda: fail(circuit, TEN, times=10),
        lambda: succeed(circuit, TEN, probe=True),
        lambda: circuit.freeze(TEN, NOW),
        lambda: circuit.unfreeze(TEN, NOW),
    ):
        assert change() is not None
        spells.append(circuit.generation)
    assert len(set(spells)) == 5


# only a failure disables or freezes, only a probe's success enables


def test_only_a_probes_success_enables():
    circuit = tripped()
    assert succeed(circuit, TEN, NOW + MINUTE, times=50) is None
    assert circuit.state is DISABLED
    change = succeed(circuit, TEN, NOW + 10 * MINUTE, probe=True)
    assert change == CircuitChange(DISABLED, ENABLED, Event.PROBE_SUCCEEDED, None, NOW + 10 * MINUTE)
    assert (circuit.reason, circuit.next_probe_at, circuit.enabled_at) == (None, None, NOW + 10 * MINUTE)


def test_a_failed_probe_leaves_the_circuit_disabled():
    circuit = tripped()
    assert fail(circuit, TEN, NOW + 10 * MINUTE, probe=True) is None
    assert (circuit.state, circuit.consecutive_failures, circuit.since) == (DISABLED, 11, NOW)


def test_a_success_never_trips():
    """The 101st attempt is a success: 99 % of over 100 attempts failed, but only a failure trips."""
    circuit = Circuit()
    fail(circuit, RATE, times=100)
    assert succeed(circuit, RATE) is None
    assert (circuit.window.attempts, circuit.window.failures, circuit.state) == (101, 100, ENABLED)
    assert fail(circuit, RATE).reason is Reason.FAILURE_RATE


def test_no_state_changes_by_time_passing():
    circuit = Circuit()
    fail(circuit, SILENCE, NOW, 2_001)
    circuit.begin(SILENCE, NOW + 1_000 * HOUR, probe=False)
    assert circuit.state is ENABLED
    circuit = tripped()
    circuit.begin(TEN, NOW + 1_000 * HOUR, probe=True)
    assert (circuit.state, circuit.since) == (DISABLED, NOW)


def test_failures_of_this_side_are_not_recorded_at_all():
    """Such an attempt begins, and its end is not reported to the circuit."""
    circuit = Circuit()
    fail(circuit, RULES, times=5)
    for _ in range(3_000):
        circuit.begin(RULES, NOW, probe=False)
    assert (circuit.state, circuit.consecutive_failures) == (ENABLED, 5)
    assert (circuit.window.attempts, circuit.window.failures) == (5, 5)


def test_retries_and_probes_count_like_first_attempts():
    circuit = tripped()
    fail(circuit, TEN, NOW, probe=True)
    assert (circuit.consecutive_failures, circuit.window.attempts, circuit.window.failures) == (11, 11, 11)


# the window


def window_at(circuit: Circuit, now: int) -> tuple[int, int]:
    circuit.window.trim(now, MINUTE)
    return circuit.window.attempts, circuit.window.failures


def test_the_window_is_the_current_bucket_and_the_59_before_it():
    circuit = Circuit()
    fail(circuit, OFF, NOW)
    assert window_at(circuit, NOW + 59 * MINUTE + 59_999) == (1, 1)
    assert window_at(circuit, NOW + 60 * MINUTE) == (0, 0)


def test_buckets_are_aligned_to_the_clock_not_to_the_attempt():
    circuit = Circuit()
    fail(circuit, OFF, NOW + 59_999)
    succeed(circuit, OFF, NOW + 60_000)
    assert window_at(circuit, NOW + 60 * MINUTE - 1) == (2, 1)
    assert window_at(circuit, NOW + 60 * MINUTE) == (1, 0)


def test_looking_at_the_window_later_counts_only_what_is_still_in_it_and_changes_nothing():
    window = Window()
    window.add(NOW, MINUTE, failed=True)
    window.add(NOW + MINUTE, MINUTE, failed=False)
    looked = [window.sums(NOW + minutes * MINUTE, OFF) for minutes in (1, 59, 60, 61)]
    assert looked == [(2, 1), (2, 1), (1, 0), (0, 0)]
    assert (window.attempts, window.failures) == (2, 1)


def test_failures_that_left_the_window_do_not_disable():
    circuit = Circuit()
    fail(circuit, RATE, NOW, 100)
    assert fail(circuit, RATE, NOW + 60 * MINUTE) is None
    circuit = Circuit()
    fail(circuit, RATE, NOW, 100)
    assert fail(circuit, RATE, NOW + 60 * MINUTE - 1).reason is Reason.FAILURE_RATE


@pytest.mark.parametrize("window", [60 * SECOND, 10 * MINUTE, HOUR, 24 * HOUR])
def test_the_window_has_the_length_of_the_config_in_60_buckets(window):
    rules = replace(RATE, window=window)
    start = NOW - NOW % window
    for after, trips in ((window - 1, True), (window, False)):
        circuit = Circuit()
        fail(circuit, rules, start, 100)
        assert (fail(circuit, rules, start + after) is not None) == trips


@pytest.mark.parametrize("enable", ["a probe", "an operator"])
def test_the_window_starts_anew_when_the_circuit_is_enabled(enable):
    circuit = Circuit()
    fail(circuit, RATE, times=101)
    if enable == "a probe":
        succeed(circuit, RATE, probe=True)
    else:
        circuit.unfreeze(RATE, NOW)
    assert (circuit.window.attempts, circuit.window.failures) == (0, 0)
    assert fail(circuit, RATE, times=100) is None
    assert fail(circuit, RATE) is not None


def test_the_window_goes_on_while_the_circuit_is_disabled():
    circuit = tripped()
    fail(circuit, TEN, NOW + 10 * MINUTE, probe=True)
    assert (circuit.window.attempts, circuit.window.failures) == (11, 11)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3 * MINUTE) | st.sampled_from([0, 1, MINUTE, 59 * MINUTE, HOUR, 2 * HOUR]),
        st.booleans(),
    )
)


@given(STEPS, st.sampled_from([1, 7, SECOND, MINUTE]))
def test_the_windows_sums_are_those_of_a_naive_count(steps, width):
    window, told, now = Window(), [], NOW
    for step, failed in steps:
        now += step
        window.add(now, width, failed)
        told.append((now, failed))
        counted = [failed for at, failed in told if now // width - at // width < 60]
        assert (window.attempts, window.failures) == (len(counted), sum(counted))
        assert len(window.buckets) <= 60
        assert window.sums(now, replace(OFF, window=60 * width)) == (len(counted), sum(counted))
        again = Window([list(bucket) for bucket in window.buckets])
        assert (again.attempts, again.failures) == (window.attempts, window.failures)


# operators


def test_unfreezing_resets_the_counters_and_the_72_h_count_from_it():
    circuit = Circuit()
    fail(circuit, SILENCE, NOW, 2_000)
    thawed = NOW + 100 * HOUR
    assert fail(circuit, SILENCE, thawed).after is FROZEN
    change = circuit.unfreeze(SILENCE, thawed)
    assert change == CircuitChange(FROZEN, ENABLED, Event.OPERATOR_UNFREEZES, None, thawed)
    assert (circuit.state, circuit.reason, circuit.enabled_at) == (ENABLED, None, thawed)
    assert (circuit.consecutive_failures, circuit.window.attempts, circuit.window.failures) == (0, 0, 0)
    assert fail(circuit, SILENCE, thawed, 2_001) is None
    assert fail(circuit, SILENCE, thawed + 72 * HOUR) is None
    assert fail(circuit, SILENCE, thawed + 72 * HOUR + 1).after is FROZEN


def test_an_operator_freezes_whatever_the_counters_say_and_also_a_host_not_yet_seen():
    circuit = Circuit()
    change = circuit.freeze(RULES, NOW)
    assert change == CircuitChange(ENABLED, FROZEN, Event.OPERATOR_FREEZES, Reason.OPERATOR, NOW)
    assert (circuit.state, circuit.reason, circuit.since, circuit.next_probe_at) == (
        FROZEN,
        Reason.OPERATOR,
        NOW,
        None,
    )


def test_freezing_what_is_frozen_and_unfreezing_what_is_enabled_change_nothing():
    circuit = Circuit()
    fail(circuit, RULES, times=5)
    assert circuit.unfreeze(RULES, NOW + 1) is None
    assert (circuit.consecutive_failures, circuit.enabled_at) == (5, 0)
    circuit.freeze(RULES, NOW)
    assert circuit.freeze(RULES, NOW + 1) is None
    assert circuit.since == NOW


# probes


def test_the_first_probe_is_due_probe_every_after_the_trip():
    assert tripped(now=NOW + SECOND).next_probe_at == NOW + SECOND + 10 * MINUTE


def test_the_next_probe_is_due_probe_every_after_the_last_ones_start():
    circuit = tripped()
    generation = circuit.begin(TEN, NOW + 13 * MINUTE, probe=True)
    circuit.failed(TEN, NOW + 14 * MINUTE, generation=generation)
    assert circuit.next_probe_at == NOW + 23 * MINUTE


def test_late_answers_and_other_attempts_move_no_probe():
    circuit = tripped()
    succeed(circuit, TEN, NOW + MINUTE)
    fail(circuit, TEN, NOW + MINUTE)
    assert circuit.next_probe_at == NOW + 10 * MINUTE


def test_a_change_of_state_forgets_what_was_probed():
    circuit = tripped()
    circuit.probed = b"the last one's place"
    succeed(circuit, TEN, probe=True)
    fail(circuit, TEN, times=10)
    assert circuit.probed is None


def test_a_circuit_has_failures_until_they_leave_its_run_and_its_window():
    circuit = Circuit()
    succeed(circuit, OFF)
    assert not circuit.has_failures
    fail(circuit, OFF)
    assert circuit.has_failures
    succeed(circuit, OFF)
    assert circuit.has_failures
    succeed(circuit, OFF, NOW + HOUR)
    assert not circuit.has_failures


# the whole table

TABLE = {
    (ENABLED, Event.RATE_EXCEEDED): (DISABLED, Reason.FAILURE_RATE),
    (ENABLED, Event.RUN_OF_FAILURES): (DISABLED, Reason.CONSECUTIVE_FAILURES),
    (ENABLED, Event.SILENT_TOO_LONG): (FROZEN, Reason.SILENCE),
    (ENABLED, Event.RUN_AT_LIMIT): (FROZEN, Reason.CONSECUTIVE_LIMIT),
    (ENABLED, Event.OPERATOR_FREEZES): (FROZEN, Reason.OPERATOR),
    (DISABLED, Event.SILENT_TOO_LONG): (FROZEN, Reason.SILENCE),
    (DISABLED, Event.RUN_AT_LIMIT): (FROZEN, Reason.CONSECUTIVE_LIMIT),
    (DISABLED, Event.PROBE_SUCCEEDED): (ENABLED, None),
    (DISABLED, Event.OPERATOR_FREEZES): (FROZEN, Reason.OPERATOR),
    (DISABLED, Event.OPERATOR_UNFREEZES): (ENABLED, None),
    (FROZEN, Event.OPERATOR_UNFREEZES): (ENABLED, None),
}
"""SPEC 1.3 and section 4 as pairs. Other pairs are absent on purpose: a disabled circuit is not disabled again, only an
operator changes a frozen one, and an enabled one is not enabled."""

PROVOKE: dict[Event, Callable[[Circuit], CircuitChange | None]] = {
    Event.RATE_EXCEEDED: lambda it: fail(it, replace(OFF, min_attempts=3, failure_rate=0.5), times=4),
    Event.RUN_OF_FAILURES: lambda it: fail(it, replace(OFF, disable_after=4), times=4),
    Event.SILENT_TOO_LONG: lambda it: (
        fail(it, OFF, NOW, times=4),
        fail(it, replace(OFF, freeze_after=4, freeze_silence=HOUR), NOW + 2 * HOUR),
    )[-1],
    Event.RUN_AT_LIMIT: lambda it: fail(it, replace(OFF, freeze_at=4), times=4),
    Event.PROBE_SUCCEEDED: lambda it: succeed(it, RULES, probe=True),
    Event.OPERATOR_FREEZES: lambda it: it.freeze(RULES, NOW),
    Event.OPERATOR_UNFREEZES: lambda it: it.unfreeze(RULES, NOW),
}


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", CircuitState)
def test_every_pair_of_state_and_event_does_what_the_table_says_or_nothing(state, event):
    circuit = Circuit(state=state, silent_since=NOW)
    change = PROVOKE[event](circuit)
    expected = TABLE.get((state, event))
    if expected is None:
        assert change is None
        assert (circuit.state, circuit.generation) == (state, 0)
    else:
        assert (change.before, change.event, change.after, change.reason) == (state, event, *expected)
        assert (circuit.state, circuit.reason, circuit.since) == (*expected, change.at)


def test_the_transitions_are_those_of_the_table_and_no_others():
    pairs = {(state, event): after for state, row in TRANSITIONS.items() for event, after in row.items()}
    assert pairs == TABLE


@pytest.mark.parametrize(("before", "after"), [(HOUR, 10 * MINUTE), (10 * MINUTE, HOUR), (HOUR, 2 * HOUR)])
def test_a_window_of_another_length_starts_anew(before, after):
    circuit = Circuit()
    fail(circuit, replace(OFF, window=before), times=5)
    longer = replace(OFF, window=after)
    assert circuit.window.sums(NOW + SECOND, longer) == (0, 0)
    fail(circuit, longer, NOW + SECOND)
    assert (circuit.window.attempts, circuit.window.failures) == (1, 1)
    fail(circuit, longer, NOW + 2 * after)
    assert circuit.window.sums(NOW + 2 * after, longer) == (1, 1)
