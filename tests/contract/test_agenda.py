"""A lane that is not in memory is woken when it needs attention, and not before."""

from dataclasses import replace

from pytest import mark

from holdfast.core.budget import HostClass
from holdfast.core.circuit import Circuit
from holdfast.store.port import Accept, Agenda, Forget, LaneQuery, ReviewLanes, SaveLane, Shelve
from tests.contract.builders import (
    DAY,
    EVER,
    EXPIRE_AFTER,
    HOST,
    HOUR,
    MINUTE,
    NOW,
    RULES,
    Desk,
    disabled,
    frozen,
    ids,
    lane,
    retry_at,
)
from tests.contract.conftest import embedded

PROBE = NOW + 10 * MINUTE
FORGET_AFTER = RULES.circuit.forget_after


async def test_an_enabled_lane_wakes_for_what_waits(desk: Desk) -> None:
    await desk.accept_waiting(number=2)
    assert await desk.wakes_at(NOW)
    agenda = await desk.ledger.agenda(NOW, 10, ())
    assert (agenda.lanes, agenda.next) == ([HOST], None)


async def test_an_enabled_lane_wakes_for_its_first_retry(desk: Desk) -> None:
    await desk.retrying(NOW + 2 * MINUTE)
    await desk.retrying(NOW + MINUTE)
    assert await desk.wakes_at(NOW + MINUTE)
    assert (await desk.ledger.agenda(NOW + MINUTE - 1, 10, ())).lanes == []
    assert (await desk.ledger.agenda(NOW + MINUTE, 10, ())).lanes == [HOST]


async def test_an_enabled_lane_wakes_for_a_delayed_message(desk: Desk) -> None:
    await desk.accept(delay=HOUR)
    assert await desk.wakes_at(NOW + HOUR)


async def test_a_disabled_lane_wakes_for_its_probe(desk: Desk) -> None:
    await desk.accept_waiting()
    await desk.save(disabled(probe_at=PROBE))
    assert await desk.wakes_at(PROBE)


async def test_a_disabled_lane_wakes_for_a_retry_long_due_only_to_probe(desk: Desk) -> None:
    await desk.retrying(NOW + MINUTE)
    await desk.save(disabled(probe_at=PROBE))
    assert await desk.wakes_at(PROBE)


@mark.parametrize(("due", "wake"), [(NOW + MINUTE, PROBE), (NOW + HOUR, NOW + HOUR)])
async def test_a_disabled_lane_is_not_probed_with_a_held_message(desk: Desk, due: int, wake: int) -> None:
    await desk.retrying(due, held=True)
    await desk.save(disabled(probe_at=PROBE))
    assert await desk.wakes_at(wake)


async def test_a_disabled_lane_wakes_for_its_expiry_when_that_is_first(desk: Desk) -> None:
    await desk.accept_waiting()
    await desk.save(disabled(probe_at=NOW + 30 * DAY))
    assert await desk.wakes_at(NOW + EXPIRE_AFTER)


async def test_a_frozen_lane_wakes_for_its_expiry_alone(desk: Desk) -> None:
    await desk.retrying(NOW + MINUTE)
    await desk.accept_waiting()
    await desk.save(frozen())
    assert await desk.wakes_at(NOW + EXPIRE_AFTER)


async def test_expiry_counts_from_the_moment_the_circuit_was_last_enabled(desk: Desk) -> None:
    await desk.accept_waiting()
    on = frozen()
    on.circuit.enabled_at = NOW + HOUR
    await desk.save(on)
    assert await desk.wakes_at(NOW + HOUR + EXPIRE_AFTER)


async def test_an_empty_lane_wakes_to_be_forgotten(desk: Desk) -> None:
    entry = await desk.accept()
    await desk.deliver(entry)
    assert await desk.wakes_at(NOW + FORGET_AFTER)
    await desk.save(lane(circuit=Circuit(since=NOW, last_attempt_at=NOW + DAY)))
    assert await desk.wakes_at(NOW + DAY + FORGET_AFTER)


async def test_a_forgotten_lane_is_not_on_the_agenda(desk: Desk) -> None:
    await desk.deliver(await desk.accept())
    assert await desk.ledger.perform(Forget(HOST)) is True
    assert await desk.ledger.agenda(EVER, 10, ()) == Agenda([], None)
    assert await desk.ledger.circuit(HOST) is None


@mark.parametrize("on", [disabled(), frozen()], ids=["disabled", "frozen"])
async def test_only_an_enabled_lane_is_forgotten(desk: Desk, on) -> None:
    await desk.save(on)
    assert await desk.ledger.perform(Forget(HOST)) is False
    assert await desk.ledger.circuit(HOST) is not None


async def test_a_lane_with_something_waiting_is_not_forgotten(desk: Desk) -> None:
    await desk.accept_waiting("fresh")
    await desk.retrying(NOW + MINUTE, lane="retry")
    assert [await desk.ledger.perform(Forget(key)) for key in ("fresh", "retry", "unknown")] == [False] * 3


async def test_a_lane_is_not_forgotten_in_the_group_that_brings_it_something(desk: Desk) -> None:
    await desk.deliver(await desk.accept())
    first, second = desk.message(), desk.message()
    results = await desk.together(Accept(first), Forget(HOST), Shelve([first]), Accept(second))
    assert results[1] is False
    assert await desk.wakes_at(NOW)


async def test_a_lane_forgotten_under_an_active_message_comes_back_with_it(desk: Desk) -> None:
    entry = await desk.accept()
    await desk.ledger.perform(Forget(HOST))
    await desk.restart()
    assert ids((await desk.look()).fresh) == ids([entry])
    assert await desk.wakes_at(NOW)


async def test_a_message_brings_a_forgotten_lane_back(desk: Desk) -> None:
    await desk.deliver(await desk.accept())
    await desk.ledger.perform(Forget(HOST))
    await desk.accept(delay=MINUTE)
    assert await desk.wakes_at(NOW + MINUTE)


async def test_the_longest_waiting_lane_comes_first(desk: Desk) -> None:
    for name in ("c", "a", "b"):
        await desk.accept_waiting(name)
    agenda = await desk.ledger.agenda(EVER, 10, ())
    assert (agenda.lanes, agenda.next) == (["c", "a", "b"], None)


async def test_the_agenda_is_cut_at_its_limit_and_names_the_next(desk: Desk) -> None:
    for name in ("c", "a", "b"):
        await desk.accept_waiting(name)
    assert await desk.ledger.agenda(EVER, 2, ()) == Agenda(["c", "a"], NOW + 2)
    assert await desk.ledger.agenda(NOW + 1, 10, ()) == Agenda(["c", "a"], NOW + 2)


async def test_the_agenda_leaves_out_lanes_in_memory(desk: Desk) -> None:
    for name in ("c", "a", "b"):
        await desk.accept_waiting(name)
    assert await desk.ledger.agenda(EVER, 2, {"c"}) == Agenda(["a", "b"], None)


async def test_a_delivery_moves_the_wake_to_what_waits_next(desk: Desk) -> None:
    first, _ = await desk.accept_waiting(number=2)
    await desk.deliver(first)
    assert await desk.wakes_at(NOW + 1)


async def test_a_failure_moves_the_wake_to_its_retry(desk: Desk) -> None:
    [entry] = await desk.accept_waiting()
    await desk.fail(entry, retry_at(1, NOW + HOUR))
    assert await desk.wakes_at(NOW + HOUR)


@embedded("replicas are woken by one another's notifications")
async def test_each_commit_tells_of_the_earliest_wake_that_it_moved(desk: Desk) -> None:
    await desk.accept(delay=HOUR)
    await desk.accept("other:443", delay=MINUTE)
    await desk.accept(delay=2 * HOUR)
    first, second, third = (commit.earliest_wake for commit in desk.recorder.commits)
    assert (first, second) == (NOW + HOUR, NOW + MINUTE)
    assert third > NOW + 365 * DAY


async def test_lanes_that_nothing_touches_follow_another_config(desk: Desk) -> None:
    for number in range(5):
        await desk.accept_waiting(f"ice{number}:443")
        await desk.save(frozen(f"ice{number}:443"))
    before = await desk.first_wake()
    shorter = replace(RULES.retry, expire_after=HOUR)
    await desk.restart(retry=shorter)
    assert await desk.wakes_at(before)
    after = await desk.ledger.perform(ReviewLanes(None, 2))
    while after is not None:
        after = await desk.ledger.perform(ReviewLanes(after, 2))
    desk.check()
    assert await desk.wakes_at(NOW + HOUR)
    commits = desk.commits
    assert await desk.ledger.perform(ReviewLanes(None, 2)) is None
    assert desk.commits == commits + 1


@embedded("in a shared store circuits are not kept with whether their hosts answer")
async def test_lanes_of_hosts_that_there_is_no_room_for_are_passed_over(desk: Desk) -> None:
    for name, answers in (("new", None), ("silent", False), ("answers", True)):
        await desk.accept_waiting(name)
        saved = lane(name)
        saved.host.answers = answers
        await desk.ledger.perform(SaveLane(saved))
    answering = await desk.ledger.agenda(EVER, 10, (), {HostClass.ANSWERING})
    assert answering == Agenda(["answers"], None, passed_over=2)
    assert (await desk.ledger.agenda(EVER, 10, (), {HostClass.SILENT, HostClass.UNTRIED})).lanes == ["new", "silent"]


async def test_the_agenda_goes_on_from_where_it_was_read_to(desk: Desk) -> None:
    for name in ("c", "a", "b"):
        await desk.accept_waiting(name)
    assert await desk.ledger.agenda(EVER, 10, (), since=NOW + 1) == Agenda(["a", "b"], None)


@embedded("in a shared store the agenda does not know of holds")
async def test_a_lane_whose_host_asked_to_be_left_alone_is_not_due_before_that(desk: Desk) -> None:
    await desk.accept_waiting("a")
    held = lane("a")
    held.host.hold_until = NOW + HOUR
    await desk.ledger.perform(SaveLane(held))
    assert await desk.ledger.agenda(NOW + HOUR - 1, 10, ()) == Agenda([], NOW + HOUR)


@embedded("a shared store reads more lanes at once")
async def test_a_survey_ends_once_enough_bytes_were_read(desk: Desk) -> None:
    names = [f"h{number}" for number in range(100)]
    for name in names:
        await desk.accept_waiting(name, body=b"x" * 1_000)
    asks = [LaneQuery(name, NOW + HOUR, 10, 10, None, frozenset()) for name in names]
    views = await desk.ledger.survey(asks, 10_000)
    assert 10 < len(views) < 100
    assert all(len(view.fresh) == 1 for view in views)
