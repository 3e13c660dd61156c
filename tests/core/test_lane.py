import pytest

from holdfast.core.budget import HostClass
from holdfast.core.circuit import CircuitState
from holdfast.core.lane import LOW_WATER, next_probe, position
from tests.core.build import HOUR, NOW, entries, entry, lane

DAY = 24 * HOUR


def read(**of):
    """A lane that was just read."""
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


def test_probes_take_the_oldest_message_that_was_not_probed_yet_else_the_oldest_of_all():
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
