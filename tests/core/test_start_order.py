from collections import Counter
from itertools import islice

import pytest

from holdfast.core.circuit import CircuitState
from holdfast.core.lane import position
from holdfast.core.message import AttemptKind
from holdfast.core.start_order import WAITING_PER_ADDRESS
from tests.core.build import (
    MINUTE,
    NOW,
    RULES,
    SECOND,
    entries,
    entry,
    host,
    hosts_of,
    kinds_of,
    lane,
    picks,
    start_order,
)

FIRST, RETRY, PROBE = AttemptKind


def busy_lanes(number: int, *, messages: int, kind: AttemptKind = FIRST, per_host: int = 16, answers: bool = True):
    """Lanes of hosts that have answered before, or never. Their attempts never end."""
    of = {"fresh": messages} if kind is FIRST else {"due": messages}
    hosts = [host(f"hangs-{index}", per_host=per_host, answers=answers) for index in range(number)]
    return [lane(each, **of) for each in hosts]


# hosts take turns


def test_hosts_take_turns_however_much_one_of_them_has():
    waiting = {"a": 5_000, "b": 90, "c": 90}
    lanes = [lane(host(name, per_host=100), fresh=fresh) for name, fresh in waiting.items()]
    starts = hosts_of(islice(picks(start_order(*lanes)), 90))
    assert max(Counter(starts).values()) - min(Counter(starts).values()) <= 2
    assert all(set(starts[at : at + 3]) == {"a", "b", "c"} for at in range(10, 87))


def test_retries_of_hosts_take_turns():
    lanes = [lane(host(name, per_host=100), due=1_000) for name in "abc"]
    starts = hosts_of(islice(picks(start_order(*lanes)), 42))
    assert all(set(starts[at : at + 3]) == {"a", "b", "c"} for at in range(10, 39))


def test_a_place_that_gets_free_goes_to_the_host_that_waited_longest():
    lanes = [lane(host(name, per_host=100), fresh=100) for name in "abc"]
    it = start_order(*lanes, first_attempts=8)
    starts = list(picks(it))
    served = []
    for start in starts[:6]:
        it.ended(start, NOW)
        served += hosts_of(picks(it))
    assert sorted(served) == ["a", "a", "b", "b", "c", "c"]


def test_a_host_keeps_its_turn_when_more_messages_arrive():
    first, second = lane("a", fresh=1), lane("b", fresh=1)
    it = start_order(first, second)
    it.touch(first, NOW)
    assert hosts_of(picks(it)) == ["a", "b"]


def test_messages_to_one_host_start_their_first_attempts_in_the_order_they_were_acknowledged():
    it = lane(fresh=16)
    waiting = list(it.fresh)
    assert [start.entry for start in picks(start_order(it))] == waiting


def test_due_retries_of_one_host_start_in_the_order_they_were_due():
    it = lane(due=8)
    waiting = list(it.due)
    assert [start.entry for start in picks(start_order(it))] == waiting


def test_a_start_has_the_generation_of_its_circuit_and_marks_the_circuit():
    it = lane(fresh=1)
    it.circuit.generation = 7
    start = start_order(it).pick(NOW + 5)
    assert (start.lane, start.kind, start.generation) == (it, FIRST, 7)
    assert (it.circuit.last_attempt_at, it.dirty) == (NOW + 5, True)


def test_a_lane_not_yet_read_from_disk_starts_nothing():
    it = lane(fresh=3, due=3)
    it.hydrated = False
    assert start_order(it).pick(NOW) is None


# the two budgets


@pytest.mark.parametrize(("kind", "other"), [(FIRST, RETRY), (RETRY, FIRST)])
def test_the_two_budgets_are_separate(kind, other):
    it = start_order(*busy_lanes(20, messages=5, kind=kind), first_attempts=8, retries=8)
    assert kinds_of(picks(it)) == [kind] * 8
    it.touch(lane("healthy", **{"fresh" if other is FIRST else "due": 1}), NOW)
    assert [(start.lane.host.name, start.kind) for start in picks(it)] == [("healthy", other)]


def test_probes_use_the_budget_of_retries():
    probing = [lane(f"p{index}", state=CircuitState.DISABLED) for index in range(4)]
    for each in probing:
        each.probe = entry()
    it = start_order(*probing, first_attempts=4, retries=2)
    assert kinds_of(picks(it)) == [PROBE] * 2
    assert (it.budgets[RETRY].used, it.budgets[FIRST].used, it.in_flight) == (2, 0, 2)


@pytest.mark.parametrize("kind", [FIRST, RETRY])
def test_the_last_quarter_of_each_budget_is_only_for_hosts_with_nothing_in_flight(kind):
    of = "fresh" if kind is FIRST else "due"
    it = start_order(*busy_lanes(1, messages=100, kind=kind, per_host=200), first_attempts=16, retries=16)
    assert len(list(picks(it))) == 12
    others = [lane(name, **{of: 5}) for name in ("b", "c", "d", "e", "f")]
    for each in others:
        it.touch(each, NOW)
    assert hosts_of(picks(it)) == ["b", "c", "d", "e"]
    assert it.budgets[kind].used == 16


def test_a_host_with_only_a_retry_in_flight_is_not_idle_for_the_first_attempts_reserve():
    half_busy = lane("b", due=1)
    it = start_order(*busy_lanes(1, messages=100, per_host=200), half_busy, first_attempts=16, retries=16)
    assert Counter(hosts_of(picks(it))) == {"hangs-0": 12, "b": 1}
    half_busy.fresh.extend(entries(1))
    it.touch(half_busy, NOW)
    assert it.pick(NOW) is None


@pytest.mark.parametrize("kind", [FIRST, RETRY])
def test_a_host_not_heard_of_yet_gets_a_second_attempt_only_in_the_first_eighth_of_a_budget(kind):
    of = "fresh" if kind is FIRST else "due"
    hangs = busy_lanes(1, messages=100, kind=kind, per_host=200, answers=False)
    it = start_order(*hangs, first_attempts=32, retries=32)
    assert len(list(picks(it))) == 4
    for name in "bcd":
        it.touch(lane(host(name, answers=False), **{of: 100}), NOW)
    assert hosts_of(picks(it)) == ["b", "c", "d"]
    it.touch(lane(host("heard", per_host=200), **{of: 100}), NOW)
    assert hosts_of(picks(it)) == ["heard"] * 17


def test_a_host_that_answers_is_no_longer_held_back():
    it = lane(host(answers=False), fresh=100)
    order = start_order(it, first_attempts=8)
    start = order.pick(NOW)
    assert order.pick(NOW) is None
    it.host.answers = True
    order.ended(start, NOW)
    assert len(list(picks(order))) == 6


@pytest.mark.parametrize("answers", [None, False])
def test_a_host_not_heard_of_yet_gets_one_attempt_also_from_a_small_budget(answers):
    it = start_order(*busy_lanes(3, messages=9, answers=answers), first_attempts=2)
    assert hosts_of(picks(it)) == ["hangs-0"]


@pytest.mark.parametrize(("answers", "places"), [(None, 128), (False, 64)])
def test_10_000_hosts_that_do_not_answer_get_no_more_than_their_share_of_a_budget(answers, places):
    it = start_order(*busy_lanes(10_000, messages=1, answers=answers))
    assert len(list(picks(it))) == places


@pytest.mark.parametrize("kind", [FIRST, RETRY])
def test_hosts_that_do_not_answer_leave_the_last_quarter_of_a_budget_whatever_they_are(kind):
    silent = busy_lanes(500, messages=1, kind=kind, answers=False)
    untried = [
        lane(host(f"new-{index}", answers=None), **{"fresh" if kind is FIRST else "due": 1}) for index in range(500)
    ]
    it = start_order(*silent, *untried, first_attempts=64, retries=64)
    assert Counter(start.lane.host.answers for start in picks(it)) == {None: 32, False: 16}
    for index in range(20):
        it.touch(lane(host(f"answers-{index}"), **{"fresh" if kind is FIRST else "due": 1}), NOW)
    assert len(list(picks(it))) == 16


def test_a_place_is_given_back_for_what_it_was_taken_for_also_if_the_host_answered_meanwhile():
    lanes = busy_lanes(200, messages=1, answers=None)
    it = start_order(*lanes, first_attempts=16)
    for _ in range(25):
        for start in list(picks(it)):
            start.lane.host.answers = True
            it.ended(start, NOW)
    assert it.in_flight == 0
    it.touch(lane(host("new", answers=None), fresh=1), NOW)
    assert len(list(picks(it))) == 1


# many names, one address


def test_a_host_whose_address_is_busy_waits_until_an_attempt_to_it_has_ended():
    waits, other = lane(host("waits", answers=None), fresh=2), lane(host("other", answers=None), fresh=1)
    waiting = list(waits.fresh)
    it = start_order(waits)
    start = it.pick(NOW)
    it.put_back(start, NOW)
    it.wait_for_address(waits.host, "192.0.2.1:443", NOW)
    assert list(waits.fresh) == waiting, "it is next again"
    it.touch(other, NOW)
    assert hosts_of(picks(it)) == ["other"]
    it.address_ended("192.0.2.2:443", NOW)
    assert it.pick(NOW) is None
    it.address_ended("192.0.2.1:443", NOW)
    assert it.pick(NOW).entry == waiting[0]


def test_hosts_wait_for_an_address_in_turn_and_each_end_lets_one_of_them_go_on():
    it = start_order(*busy_lanes(WAITING_PER_ADDRESS, messages=1, answers=None))
    waiting = []
    while (start := it.pick(NOW)) is not None:
        it.put_back(start, NOW)
        assert it.wait_for_address(start.lane.host, "192.0.2.1:443", NOW)
        waiting.append(start.lane.host.name)
    assert len(waiting) == WAITING_PER_ADDRESS
    served = []
    for number in range(1, WAITING_PER_ADDRESS + 1):
        it.address_ended("192.0.2.1:443", NOW)
        served += hosts_of(picks(it))
        assert len(served) == number
    assert served == waiting


def test_of_a_million_names_on_one_address_only_some_wait_in_memory():
    lanes = busy_lanes(1_000, messages=1, answers=None)
    it = start_order(*lanes)
    waits_here = []
    while (start := it.pick(NOW)) is not None:
        it.put_back(start, NOW)
        waits_here.append(it.wait_for_address(start.lane.host, "192.0.2.1:443", NOW))
    assert Counter(waits_here) == {True: WAITING_PER_ADDRESS, False: 1_000 - WAITING_PER_ADDRESS}
    assert sum(each.is_held(NOW) for each in lanes) == 1_000 - WAITING_PER_ADDRESS


def test_a_host_that_waits_for_an_address_tries_again_in_any_case_after_a_minute():
    waits = lane(host("waits", answers=None), fresh=1)
    it = start_order(waits)
    it.put_back(it.pick(NOW), NOW)
    it.wait_for_address(waits.host, "192.0.2.1:443", NOW)
    assert it.wake_at() == NOW + MINUTE
    assert it.pick(NOW + MINUTE) is not None
    it.address_ended("192.0.2.1:443", NOW + MINUTE)


def test_a_probe_that_was_not_made_is_next_again():
    it = lane(state=CircuitState.DISABLED)
    it.probe = probe = entry()
    order = start_order(it)
    order.put_back(order.pick(NOW), NOW)
    assert (it.probe, it.probing) == (probe, False)
    assert order.pick(NOW).entry is probe


def test_an_end_gives_its_place_back():
    it = start_order(*busy_lanes(9, messages=1), first_attempts=4)
    starts = list(picks(it))
    assert len(starts) == 4
    for start in starts:
        it.ended(start, NOW)
        assert len(list(picks(it))) == 1
    assert it.in_flight == 4


# one host: alternation, halves, limits


def test_on_one_host_fresh_and_due_retries_alternate_when_both_wait():
    starts = kinds_of(picks(start_order(lane(fresh=50, due=50))))
    assert starts[:16] in ([FIRST, RETRY] * 8, [RETRY, FIRST] * 8)


@pytest.mark.parametrize("limit", [1, 2])
def test_fresh_and_due_retries_alternate_also_when_places_get_free_one_by_one(limit):
    it = start_order(lane(host(limit=limit), fresh=20, due=20))
    running, kinds = [], []
    for _ in range(20):
        running += picks(it)
        start = running.pop(0)
        kinds.append(start.kind)
        it.ended(start, NOW)
    assert kinds in ([FIRST, RETRY] * 10, [RETRY, FIRST] * 10)


@pytest.mark.parametrize(("per_host", "most"), [(1, 1), (2, 1), (3, 1), (16, 8), (17, 8), (40, 20)])
def test_retries_hold_at_most_half_of_per_host(per_host, most):
    assert len(list(picks(start_order(lane(host(per_host=per_host), due=100))))) == most


def test_half_of_per_host_is_meant_also_while_slow_start_lets_less_through():
    assert len(list(picks(start_order(lane(host(limit=4), due=100))))) == 4


def test_a_host_takes_no_retry_in_its_turn_that_the_retries_budget_has_no_place_for():
    it = start_order(*busy_lanes(4, messages=1, kind=RETRY), retries=4)
    assert kinds_of(picks(it)) == [RETRY] * 4
    it.touch(lane(fresh=10, due=10), NOW)
    assert kinds_of(picks(it)) == [FIRST] * 10


def test_a_busy_host_takes_no_retry_in_its_turn_from_the_reserve():
    it = start_order(*busy_lanes(3, messages=1, kind=RETRY), retries=4)
    assert kinds_of(picks(it)) == [RETRY] * 3
    both = lane(fresh=10)
    it.touch(both, NOW)
    assert it.pick(NOW).kind is FIRST
    both.due.extend(entries(10))
    it.touch(both, NOW)
    assert kinds_of(picks(it)) == [FIRST] * 9


def test_the_other_half_is_there_for_fresh_messages():
    it = lane(due=100)
    order = start_order(it)
    assert len(list(picks(order))) == 8
    it.fresh.extend(entries(100))
    order.touch(it, NOW)
    assert kinds_of(picks(order)) == [FIRST] * 8


def test_when_only_fresh_messages_wait_they_may_take_all_of_per_host():
    assert kinds_of(picks(start_order(lane(fresh=100)))) == [FIRST] * 16


@pytest.mark.parametrize("per_host", [1, 2, 5, 16])
def test_no_host_has_more_than_per_host_in_flight(per_host):
    it = lane(host(per_host=per_host), fresh=100, due=100)
    order = start_order(it)
    starts = list(picks(order))
    assert (len(starts), it.host.in_flight) == (per_host, per_host)
    order.ended(starts[0], NOW)
    assert len(list(picks(order))) == 1


# slow start


def test_slow_start_begins_at_1_and_doubles_after_as_many_successes_as_the_limit_up_to_per_host():
    it = host(per_host=16)
    it.slow_start()
    limits = [it.limit]
    for _ in range(20):
        it.succeeded()
        limits.append(it.limit)
    assert limits == [1] + [2] * 2 + [4] * 4 + [8] * 8 + [16] * 6


def test_slow_start_ends_at_per_host_also_when_that_is_no_power_of_2():
    it = host(per_host=5)
    it.slow_start()
    for _ in range(50):
        it.succeeded()
    assert it.limit == 5


@pytest.mark.parametrize("successes", [0, 1, 2, 6, 14])
def test_a_failure_during_slow_start_returns_the_limit_to_1(successes):
    it = host(per_host=16)
    it.slow_start()
    for _ in range(successes):
        it.succeeded()
    it.failed()
    limits = [it.limit]
    for _ in range(3):
        it.succeeded()
        limits.append(it.limit)
    assert limits == [1, 2, 2, 4]


def test_a_failure_after_slow_start_leaves_the_limit():
    it = host(per_host=16)
    it.slow_start()
    for _ in range(15):
        it.succeeded()
    it.failed()
    assert it.limit == 16


def test_slow_start_limits_the_attempts_in_flight():
    it = lane(host(limit=1), fresh=100)
    order, at_once = start_order(it), []
    for _ in range(6):
        starts = list(picks(order))
        at_once.append(len(starts))
        for start in starts:
            it.host.succeeded()
            order.ended(start, NOW)
    assert at_once == [1, 2, 4, 8, 16, 16]


# rate and Retry-After


def test_a_rate_spaces_the_starts_of_a_host_and_wake_at_says_when():
    it = start_order(lane(host(interval=100.0), fresh=10, due=10))
    moments = []
    now = NOW
    for _ in range(6):
        moments += [now - NOW for _ in picks(it, now)]
        assert it.wake_at() == now + 100
        assert it.pick(now + 99) is None
        now = int(it.wake_at())
    assert moments == [0, 100, 200, 300, 400, 500]


def test_a_pause_does_not_add_up_to_a_burst():
    it = start_order(lane(host(interval=100.0), fresh=10))
    assert len(list(picks(it))) == 1
    assert len(list(picks(it, NOW + 10 * SECOND))) == 1
    assert it.wake_at() == NOW + 10 * SECOND + 100


def test_a_rate_of_one_host_does_not_slow_the_others():
    it = start_order(lane(host("slow", interval=1000.0), fresh=10), lane("quick", fresh=10))
    assert Counter(hosts_of(picks(it))) == {"slow": 1, "quick": 10}


def test_without_a_rate_or_a_hold_there_is_nothing_to_wake_for():
    it = start_order(lane(fresh=100))
    list(picks(it))
    assert it.wake_at() is None


def test_a_held_host_starts_nothing_until_then_and_wake_at_says_when():
    it = lane(fresh=3, due=3)
    it.host.hold_until = NOW + MINUTE
    order = start_order(it)
    assert order.pick(NOW + MINUTE - 1) is None
    assert order.wake_at() == NOW + MINUTE
    assert len(list(picks(order, NOW + MINUTE))) == 6
    assert order.wake_at() is None


def test_a_hold_stops_a_host_that_was_already_ready():
    it = lane(fresh=3)
    order = start_order(it)
    order.pick(NOW)
    it.host.hold_until = NOW + MINUTE
    order.touch(it, NOW)
    assert order.pick(NOW) is None
    assert order.wake_at() == NOW + MINUTE


def test_a_hold_that_grows_meanwhile_is_waited_for_to_its_end():
    it = lane(fresh=1)
    it.host.hold_until = NOW + SECOND
    order = start_order(it)
    it.host.hold_until = NOW + MINUTE
    order.touch(it, NOW)
    assert order.pick(NOW + SECOND) is None
    assert order.wake_at() == NOW + MINUTE
    assert order.pick(NOW + MINUTE) is not None


def test_a_hold_that_is_shortened_is_waited_for_no_longer():
    it = lane(fresh=1)
    it.host.hold_until = NOW + MINUTE
    order = start_order(it)
    it.host.hold_until = NOW + SECOND
    order.touch(it, NOW)
    assert order.wake_at() == NOW + SECOND
    assert order.pick(NOW + SECOND) is not None


def test_a_hold_also_holds_the_probe():
    it = lane(state=CircuitState.DISABLED)
    it.probe = entry()
    it.host.hold_until = NOW + SECOND
    order = start_order(it)
    assert order.pick(NOW) is None
    assert order.pick(NOW + SECOND).kind is PROBE


# circuits


def test_a_disabled_lane_starts_only_its_probe():
    it = lane(fresh=5, due=5, state=CircuitState.DISABLED)
    it.probe = probe = entry(born=NOW - MINUTE)
    order = start_order(it)
    starts = list(picks(order))
    assert [(start.entry, start.kind) for start in starts] == [(probe, PROBE)]
    assert (it.probe, it.probing, it.circuit.probed) == (None, True, position(probe))
    assert it.circuit.next_probe_at == NOW + RULES.probe_every
    order.ended(starts[0], NOW + SECOND)
    assert not it.probing
    assert order.pick(NOW + SECOND) is None


def test_a_frozen_lane_starts_nothing():
    it = lane(fresh=5, due=5, state=CircuitState.FROZEN)
    it.probe = entry()
    assert start_order(it).pick(NOW) is None


@pytest.mark.parametrize("state", [CircuitState.DISABLED, CircuitState.FROZEN])
def test_a_lane_whose_circuit_trips_starts_nothing_more_of_what_it_had(state):
    it = lane(fresh=50, due=50)
    order = start_order(it)
    start = order.pick(NOW)
    it.circuit.state = state
    order.ended(start, NOW)
    assert order.pick(NOW) is None


def test_a_lane_that_is_enabled_again_starts_what_waits():
    it = lane(fresh=2, state=CircuitState.FROZEN)
    order = start_order(it)
    it.circuit.state = CircuitState.ENABLED
    order.touch(it, NOW)
    assert len(list(picks(order))) == 2


def test_a_probe_of_an_enabled_lane_is_not_sent():
    it = lane()
    it.probe = entry()
    assert start_order(it).pick(NOW) is None


def test_messages_are_ordered_by_age_and_then_by_id():
    first, second, older = entry(born=300), entry(born=300), entry(born=5)
    assert position(older) < position(first) < position(second)


# nothing delays a fresh message to a healthy host


@pytest.mark.parametrize("hosts", [1, 200])
def test_a_mass_of_retries_never_delays_a_fresh_message_to_a_healthy_host(hosts):
    it = start_order(*busy_lanes(hosts, messages=20_000 // hosts, kind=RETRY))
    retries = list(picks(it))
    assert len(retries) == (8 if hosts == 1 else 64)
    it.touch(lane("healthy", fresh=1), NOW)
    assert hosts_of([it.pick(NOW)]) == ["healthy"]


def test_a_mass_of_retries_of_a_host_leaves_its_own_fresh_messages_a_place():
    slow = lane("slow", due=20_000)
    it = start_order(slow)
    list(picks(it))
    slow.fresh.extend(entries(1))
    it.touch(slow, NOW)
    assert kinds_of(picks(it)) == [FIRST]


def test_a_fresh_message_to_a_healthy_host_is_next_even_while_retries_still_have_room():
    it = start_order(*busy_lanes(1, messages=20_000, kind=RETRY), lane("healthy", fresh=1))
    assert "healthy" in hosts_of(islice(picks(it), 2))


@pytest.mark.parametrize("messages", [1, 2, 16, 100])
def test_200_hosts_that_never_answer_do_not_stop_the_others(messages):
    it = start_order(*busy_lanes(200, messages=messages, answers=False))
    list(picks(it))
    it.touch(lane("healthy", fresh=1), NOW)
    assert "healthy" in hosts_of(picks(it))


@pytest.mark.parametrize("messages", [1, 2, 16, 100])
def test_200_hosts_that_never_answer_do_not_stop_the_others_when_they_come_one_after_another(messages):
    it = start_order()
    for each in busy_lanes(200, messages=messages, answers=False):
        it.touch(each, NOW)
        list(picks(it))
    it.touch(lane("healthy", fresh=1), NOW)
    assert "healthy" in hosts_of(picks(it))


def test_hosts_that_never_answer_do_not_stop_a_host_that_waits_behind_them():
    it = start_order(*busy_lanes(200, messages=100, answers=False), lane("healthy", fresh=1))
    assert "healthy" in hosts_of(picks(it))


def test_a_few_hosts_that_hang_with_all_they_may_have_leave_the_reserve_to_64_others():
    it = start_order(*busy_lanes(30, messages=100), first_attempts=256)
    list(picks(it))
    for index in range(34):
        it.touch(lane(f"healthy-{index}", fresh=3), NOW)
    assert set(hosts_of(picks(it))) >= {f"healthy-{index}" for index in range(34)}


def test_a_stream_of_new_hosts_does_not_starve_a_busy_one():
    """Whenever a place gets free a new host wants it. The host with a backlog still gets its turns."""
    backlog = lane("backlog", fresh=1_000)
    it = start_order(backlog, first_attempts=8)
    running = list(picks(it))
    served = 0
    for index in range(200):
        it.touch(lane(f"new-{index}", fresh=1), NOW)
        it.ended(running.pop(0), NOW)
        started = list(picks(it))
        served += hosts_of(started).count("backlog")
        running += started
    assert served >= 10


# URLs as circuits


def test_with_urls_as_circuits_the_limits_go_by_host():
    shared = host(per_host=4)
    lanes = [lane(shared, key=f"https://h/{index}", fresh=10, due=10) for index in range(3)]
    starts = list(picks(start_order(*lanes)))
    assert len(starts) == 4
    assert kinds_of(starts).count(RETRY) == 2


def test_retries_of_the_lanes_of_one_host_take_turns():
    shared = host(per_host=12)
    lanes = [lane(shared, key=f"https://h/{index}", due=10) for index in range(3)]
    assert Counter(start.lane.key for start in picks(start_order(*lanes))) == {each.key: 2 for each in lanes}


def test_over_all_lanes_of_one_host_first_attempts_start_in_the_order_they_were_acknowledged():
    shared = host(per_host=1_000)
    lanes = [lane(shared, key=f"https://h/{index}") for index in range(100)]
    waiting = entries(500)
    for number, each in enumerate(waiting):
        lanes[number * 37 % 100 if number % 3 else 7].fresh.append(each)
    assert [start.entry for start in picks(start_order(*lanes, first_attempts=1_000))] == waiting


def test_a_message_that_was_put_back_is_before_later_ones_of_its_hosts_other_lanes():
    shared = host(per_host=2)
    first, second = lane(shared, key="https://h/1", fresh=1), lane(shared, key="https://h/2", fresh=1)
    it = start_order(first, second)
    start = it.pick(NOW)
    it.put_back(start, NOW)
    assert [each.lane for each in picks(it)] == [first, second]


def test_no_fresh_message_starts_while_an_older_one_of_its_host_may_be_on_its_way_from_disk():
    shared = host()
    there, coming = lane(shared, key="https://h/1", fresh=1, due=1), lane(shared, key="https://h/2")
    shared.reads.add(coming)
    it = start_order(there, coming)
    assert kinds_of(picks(it)) == [RETRY]
    shared.reads.discard(coming)
    it.touch(coming, NOW)
    assert kinds_of(picks(it)) == [FIRST]


def test_a_tripped_lane_does_not_hold_up_later_messages_of_its_hosts_other_lanes():
    shared = host()
    tripped, healthy = lane(shared, key="https://h/1", fresh=1), lane(shared, key="https://h/2", fresh=2)
    it = start_order(tripped, healthy)
    tripped.circuit.state = CircuitState.FROZEN
    it.touch(tripped, NOW)
    assert [each.lane for each in picks(it)] == [healthy, healthy]
    tripped.circuit.state = CircuitState.ENABLED
    it.touch(tripped, NOW)
    assert [each.lane for each in picks(it)] == [tripped]


def test_slow_start_rate_and_holds_of_a_host_are_shared_by_its_lanes():
    slow, rated, held = host("slow", limit=1), host("rated", interval=100.0), host("held")
    held.hold_until = NOW + SECOND
    pairs = [(each, f"{each.name}/{index}") for each in (slow, rated, held) for index in range(2)]
    it = start_order(*(lane(each, key=key, fresh=2) for each, key in pairs))
    assert Counter(hosts_of(picks(it))) == {"slow": 1, "rated": 1}
    assert Counter(hosts_of(picks(it, NOW + SECOND))) == {"rated": 1, "held": 4}


def test_a_tripped_url_does_not_stop_the_others_of_its_host():
    shared = host()
    tripped = lane(shared, key="https://h/down", fresh=5, state=CircuitState.DISABLED)
    tripped.probe = entry()
    healthy = lane(shared, key="https://h/up", fresh=5)
    starts = list(picks(start_order(tripped, healthy)))
    assert Counter((start.lane.key, start.kind) for start in starts) == {
        ("https://h/down", PROBE): 1,
        ("https://h/up", FIRST): 5,
    }
