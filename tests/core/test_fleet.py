import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.build import NOW, RULES, SECOND, board, entries, entry, kinds_of, picks
from holdfast.core.circuit import Circuit, CircuitState
from holdfast.core.fleet import (
    CLAIMED_AT_MOST,
    CLOCKS_APART,
    LEASE,
    Crew,
    SharedHost,
    SharedLane,
    Watch,
    has_more,
    may_begin,
    may_reap,
    stranded,
)
from holdfast.core.message import Kind

FIRST, RETRY, PROBE = Kind


def crews(count: int) -> list[Crew]:
    return [Crew(rank, count) for rank in range(count)]


def host(crew: Crew, *, per_host: int = 16, whole: int | None = None, interval: float = 0.0) -> SharedHost:
    made = SharedHost("h:443", 0, 0, whole=per_host if whole is None else whole, answers=True)
    made.share(Watch((crew,)), per_host, interval)
    return made


def lane(of: SharedHost, *, fresh: int = 0, due: int = 0, state: CircuitState = CircuitState.ENABLED) -> SharedLane:
    made = SharedLane("h:443", of, Circuit(state=state), hydrated=True, stale=False)
    made.fresh.extend(entries(fresh))
    made.due.extend(entries(due, due=NOW, retry=1))
    return made


# shares


@given(st.integers(0, 300), st.integers(1, 40), st.text())
def test_the_parts_of_all_add_up_to_the_whole_and_no_two_differ_by_more_than_one(total: int, count: int, name: str):
    parts = [crew.share(total, name) for crew in crews(count)]
    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1


@given(st.integers(0, 100), st.integers(1, 40), st.text())
def test_who_has_a_part_of_less_has_one_of_more(total: int, count: int, name: str):
    assert all(crew.share(total, name) <= crew.share(total + 1, name) for crew in crews(count))


def test_what_can_not_be_divided_falls_to_different_replicas_for_different_hosts():
    lucky = {next(crew.rank for crew in crews(4) if crew.share(1, f"host-{number}")) for number in range(100)}
    assert lucky == {0, 1, 2, 3}


@given(st.integers(0, 100), st.integers(1, 12), st.integers(1, 12), st.data())
def test_whoever_has_heard_of_another_crew_the_parts_never_add_up_to_more_than_the_whole(
    total: int, before: int, now: int, data: st.DataObject
):
    """The first ones of the crew before are still there, under the same ranks; those that went have no part."""
    parts = 0
    for rank in range(now):
        old = Watch((Crew(rank, before),)) if rank < before else Watch()
        heard = old.heard(Crew(rank, now))
        stages = (old, heard) if rank < before else (heard,)
        parts += data.draw(st.sampled_from(stages)).share(total, "h")
    assert parts <= total or now == 1
    assert sum(Watch((Crew(rank, now),)).share(total, "h") for rank in range(now)) == total


def test_who_comes_has_no_part_before_all_have_heard_of_it_unless_it_is_alone():
    assert Watch().share(16, "h") == 16
    coming = Watch().heard(Crew(1, 2))
    assert coming.share(16, "h") == 0
    assert coming.settled().share(16, "h") == 8
    assert coming.settled().anew().share(16, "h") == 0
    assert coming.settled().heard(Crew(0, 1)).share(16, "h") == 16


def test_a_lease_lasts_until_its_end_and_others_count_only_for_who_was_there_to_see():
    assert may_begin(NOW, NOW - CLOCKS_APART - 1)
    assert not may_begin(NOW, NOW - CLOCKS_APART)
    assert may_reap(NOW - LEASE, NOW)
    assert not may_reap(NOW - LEASE + 1, NOW)


# hosts


@pytest.mark.parametrize("whole", [1, 2, 5, 16, 99])
def test_a_fleet_never_has_more_in_flight_than_the_limit(whole: int):
    hosts = [host(crew, whole=whole) for crew in crews(3)]
    started = sum(len(list(picks(board(lane(each, fresh=50))))) for each in hosts)
    assert started == min(whole, 16)


@pytest.mark.parametrize("per_host", [1, 2, 5, 16])
def test_retries_of_a_fleet_hold_at_most_half_and_at_least_one(per_host: int):
    hosts = [host(crew, per_host=per_host) for crew in crews(3)]
    started = sum(len(list(picks(board(lane(each, due=50))))) for each in hosts)
    assert started == max(1, per_host // 2)


def test_another_crew_has_other_parts_of_the_same_whole():
    it = host(Crew(0, 1), whole=8)
    it.share(Watch((Crew(0, 4),)), 16, 0.0)
    assert (it.limit, it.per_host, it.retries) == (2, 4, 2)
    it.share(Watch((Crew(0, 1),)), 16, 0.0)
    assert (it.limit, it.per_host, it.retries) == (8, 16, 8)


@pytest.mark.parametrize(("per_host", "count", "senders"), [(16, 4, 4), (2, 4, 2), (1, 4, 1)])
def test_a_rate_is_shared_by_those_who_can_send(per_host: int, count: int, senders: int):
    hosts = [host(crew, per_host=per_host, interval=SECOND) for crew in crews(count)]
    assert {it.interval for it in hosts} == {SECOND * senders}
    assert sum(it.limit > 0 for it in hosts) == senders


def test_a_probe_that_was_claimed_starts_also_without_a_part_of_the_limit():
    it = lane(host(Crew(0, 4), whole=0), state=CircuitState.DISABLED)
    it.probe = entry()
    starts = list(picks(board(it)))
    assert kinds_of(starts) == [PROBE]
    it.probe = entry()
    assert not it.host.has_room(PROBE)


def test_without_a_part_of_the_limit_nothing_else_starts():
    assert not list(picks(board(lane(host(Crew(0, 4), whole=0), fresh=5, due=5))))


# lanes


def test_no_more_is_claimed_than_starts_soon():
    it = lane(host(Crew(0, 2)))
    assert (it.fresh_wanted, it.due_wanted) == (16, 8)
    it.fresh.extend(entries(7))
    it.due.extend(entries(3, due=NOW, retry=1))
    assert (it.fresh_wanted, it.due_wanted) == (9, 5)
    it.fresh.append(entry())
    it.due.append(entry(due=NOW, retry=1))
    assert (it.fresh_wanted, it.due_wanted) == (0, 0)


def test_a_small_part_claims_a_few_and_a_large_one_no_more_than_a_read_brings():
    assert lane(host(Crew(0, 16))).fresh_wanted == 8
    assert lane(host(Crew(), per_host=500)).fresh_wanted == CLAIMED_AT_MOST


def test_without_a_part_of_the_limit_a_lane_claims_nothing():
    it = lane(host(Crew(0, 4), whole=0))
    it.more_fresh, it.next_due = True, NOW
    assert (it.fresh_wanted, it.due_wanted) == (0, 0)
    assert not it.wants_entries(NOW)
    it.stale = True
    assert it.wants_entries(NOW)


def test_a_lane_wants_entries_while_it_has_a_part_and_more_is_known_to_wait():
    it = lane(host(Crew(0, 2)))
    assert not it.wants_entries(NOW)
    it.more_fresh = True
    assert it.wants_entries(NOW)
    it.more_fresh, it.next_due = False, NOW
    assert it.wants_entries(NOW)
    assert not it.wants_entries(NOW - 1)


def test_delayed_first_attempts_count_among_the_due_that_are_held():
    it = lane(host(Crew(0, 2)))
    it.fresh.extend(entries(4, due=NOW))
    assert it.due_wanted == 0


@pytest.mark.parametrize("state", [CircuitState.DISABLED, CircuitState.FROZEN])
def test_what_a_circuit_lets_not_through_is_stranded_whatever_the_part(state: CircuitState):
    it = lane(host(Crew()), state=state)
    assert stranded(it) == [it.fresh, it.due]


def test_what_has_no_part_of_a_limit_is_stranded():
    rich, poor = lane(host(Crew())), lane(host(Crew(0, 4), whole=0))
    assert stranded(rich) == []
    assert stranded(poor) == [poor.fresh, poor.due]


def test_who_may_send_but_has_no_part_of_the_retries_gives_these_up():
    lanes = [lane(host(crew, per_host=2)) for crew in crews(2)]
    assert [it.host.limit for it in lanes] == [1, 1]
    assert sorted(len(stranded(it)) for it in lanes) == [0, 1]
    assert sorted(it.due_wanted > 0 for it in lanes) == [False, True]


def test_a_lane_that_knows_of_more_needs_nobody_to_tell_it():
    quiet, loading, queued, due = (lane(host(Crew())) for _ in range(4))
    loading.loading = queued.more_fresh = True
    due.next_due = NOW
    assert [has_more(it, NOW) for it in (quiet, loading, queued, due)] == [False, True, True, True]
    assert not has_more(due, NOW - 1)


def test_an_attempt_names_the_spell_that_was_known_when_it_began():
    it = lane(host(Crew()), fresh=1)
    it.circuit.spell = 7
    start = next(picks(board(it)))
    it.circuit = Circuit(spell=8)
    assert start.spell == 7
    assert it.circuit.begin(RULES, NOW, probe=False) == 8
