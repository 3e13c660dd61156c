import pytest

from holdfast.config import build
from holdfast.core.budget import HostClass
from holdfast.core.circuit import Circuit, CircuitState
from holdfast.core.lane import LOW_WATER, Heads, next_probe, position, wake_at
from tests.core.build import HOUR, MINUTE, NOW, RULES, entries, entry, lane

RETRY = build({}).retry
SPAN = RETRY.expire_after
DAY = 24 * HOUR


def read(**of):
    """A lane whose heads are as on disk."""
    it = lane(**of)
    it.stale = False
    return it


def disabled(*, next_probe_at: int | None = NOW, probe_from: int | None = 0):
    it = lane(state=CircuitState.DISABLED)
    it.circuit.next_probe_at = next_probe_at
    it.probe_from = probe_from
    return it


# probes


def test_a_disabled_lane_wants_its_probe_when_it_is_due_and_not_before():
    it = disabled()
    assert not it.wants_probe(NOW - 1)
    assert it.wants_probe(NOW)


def test_a_lane_with_nothing_waiting_wants_no_probe():
    assert not disabled(probe_from=None).wants_probe(NOW + DAY)


def test_no_probe_takes_a_message_before_its_delay_or_retry_after_is_over():
    it = disabled(probe_from=NOW + HOUR)
    assert not it.wants_probe(NOW + HOUR - 1)
    assert it.wants_probe(NOW + HOUR)


def test_a_probe_under_way_or_already_chosen_is_the_only_one():
    under_way, chosen = disabled(), disabled()
    under_way.probing = True
    chosen.probe = entry()
    assert not under_way.wants_probe(NOW)
    assert not chosen.wants_probe(NOW)


@pytest.mark.parametrize("state", [CircuitState.ENABLED, CircuitState.FROZEN])
def test_only_a_disabled_lane_wants_a_probe(state):
    it = disabled()
    it.circuit.state = state
    assert not it.wants_probe(NOW + DAY)


def test_probes_rotate_the_oldest_that_was_not_probed_in_this_spell_else_the_oldest_of_all():
    first, second, third = (entry(born=NOW + number) for number in range(3))

    def oldest(after):
        for queue in ([first, third], [second], []):
            yield next((each for each in queue if after is None or position(each) > after), None)

    probed, chosen = None, []
    for _ in range(4):
        each = next_probe(probed, oldest)
        probed = position(each)
        chosen.append(each)
    assert chosen == [first, second, third, first]
    assert next_probe(probed, lambda after: []) is None


# what is read from disk


def test_a_lane_not_yet_read_wants_entries():
    it = lane()
    it.stale = True
    assert it.wants_entries(NOW)


def test_a_lane_wants_more_fresh_messages_below_low_water_and_only_if_there_are_more():
    it = read(fresh=LOW_WATER)
    it.more_fresh = True
    assert not it.wants_entries(NOW)
    it.fresh.pop()
    assert it.wants_entries(NOW)
    it.more_fresh = False
    assert not it.wants_entries(NOW)


def test_a_lane_wants_retries_when_the_first_on_disk_is_due():
    it = read()
    it.next_due = NOW
    assert not it.wants_entries(NOW - 1)
    assert it.wants_entries(NOW)
    it.due.extend(entries(LOW_WATER))
    assert not it.wants_entries(NOW)


@pytest.mark.parametrize("state", [CircuitState.DISABLED, CircuitState.FROZEN])
def test_a_waiting_host_reads_nothing_however_long_its_queue(state):
    it = read(state=state)
    it.more_fresh, it.next_due = True, NOW
    assert not it.wants_entries(NOW + DAY)


def test_a_lane_is_idle_when_nothing_of_it_is_in_memory_under_way_or_being_read():
    quiet, known, loading = lane(), lane(), lane()
    known.known[entry().message.id] = HostClass.ANSWERING, 1
    loading.loading = True
    assert [it.is_idle for it in (quiet, known, loading)] == [True, False, False]


# expiry


@pytest.mark.parametrize("state", [CircuitState.DISABLED, CircuitState.FROZEN])
@pytest.mark.parametrize("enabled_at", [0, NOW - HOUR, NOW + HOUR])
def test_the_oldest_of_a_waiting_lane_expires_a_span_after_its_birth_or_the_enabling(state, enabled_at):
    it = lane(state=state)
    it.oldest, it.circuit.enabled_at = NOW, enabled_at
    assert it.expiry_at(RETRY) == max(NOW, enabled_at) + SPAN


def test_in_an_enabled_circuit_nothing_expires():
    it = lane()
    it.oldest = NOW
    assert it.expiry_at(RETRY) is None


def test_where_nothing_waits_nothing_expires():
    assert lane(state=CircuitState.FROZEN).expiry_at(RETRY) is None


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
