"""Two replicas on one store: each message is one's alone, and whatever both count adds up."""

from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count

import trio
from pytest import fixture, mark

from contract.builders import (
    EVER,
    EXHAUSTED,
    HOST,
    HOUR,
    MINUTE,
    NOW,
    RULES,
    Desk,
    active,
    attempt,
    disabled,
    frozen,
    idempotency,
    ids,
    lane,
    retry_at,
    success,
)
from contract.shared import SharedDesk
from holdfast.core.circuit import CircuitState, Reason
from holdfast.core.message import Entry, Fault, State
from holdfast.store.port import (
    Accept,
    Accepted,
    Agenda,
    Ask,
    Deliver,
    DropMessages,
    Duplicate,
    Expire,
    Fail,
    HandOver,
    MessageFilter,
    Report,
    Retried,
    RetryNow,
    Shelve,
    Switch,
    Verb,
    Verdict,
    View,
)

SHARP = replace(RULES, circuit=replace(RULES.circuit, disable_after=10, min_attempts=0))
PROBE_EVERY = RULES.circuit.probe_every


@fixture
async def two(database: str, nursery: trio.Nursery) -> AsyncIterator[tuple[SharedDesk, SharedDesk]]:
    desks = [SharedDesk(nursery, rules=SHARP, url=database, random=count(first)) for first in (1, 1 << 40)]
    for desk in desks:
        await desk.open()
    yield desks[0], desks[1]
    for desk in desks:
        await desk.close()


async def claim(desk: Desk, *, at: int = NOW + MINUTE, fresh: int = 100) -> View:
    """What a dispatcher asks for; it keeps it."""
    [view] = await desk.ledger.survey([Ask(HOST, at, fresh, 100, None, frozenset())])
    return view


def failure(entry: Entry, *, began: int = NOW, spell: int = 0, step: object = None) -> Fail:
    report = Report(spell, began, began + 20, False, Fault.HOST)
    return Fail(entry, attempt(entry.place.attempts + 1, at=began), step, lane(), report)


async def test_what_one_has_claimed_the_other_does_not_get(two: tuple[SharedDesk, SharedDesk]) -> None:
    one, other = two
    waiting = await one.accept_waiting(number=5)
    mine, theirs = await claim(one, fresh=2), await claim(other)
    assert ids(mine.fresh) == ids(waiting[:2])
    assert ids(theirs.fresh) == ids(waiting[2:])
    assert (mine.more_fresh, theirs.more_fresh) == (True, False)
    assert {entry.fence for entry in mine.fresh} == {one.ledger.number}
    one.check()


async def test_looks_at_the_same_time_share_out_what_waits(two: tuple[SharedDesk, SharedDesk]) -> None:
    messages = [two[0].message() for _ in range(200)]
    await two[0].together(*(Accept(message) for message in messages))
    await two[0].ledger.perform(Shelve(messages))
    taken: list[list[bytes]] = []

    async def look_for_all(desk: SharedDesk) -> None:
        known: set[bytes] = set()
        while True:
            [view] = await desk.ledger.survey([Ask(HOST, NOW, 7, 0, None, frozenset(known))])
            if not view.fresh:
                break
            known |= set(ids(view.fresh))
        taken.append(sorted(known))

    async with trio.open_nursery() as looking:
        for desk in two:
            looking.start_soon(look_for_all, desk)
    assert sorted(id for each in taken for id in each) == [message.id for message in messages]
    two[0].check()


@mark.parametrize("outcome", ["delivered", "failed"])
async def test_an_outcome_of_a_message_that_is_another_replicas_is_fenced(
    two: tuple[SharedDesk, SharedDesk], outcome: str
) -> None:
    one, other = two
    await one.accept_waiting()
    [entry] = (await claim(one)).fresh
    await one.ledger.perform(Shelve([entry.message]))
    [theirs] = (await claim(other)).fresh
    before = one.kept()
    report = Report(0, NOW, NOW + 20, False, None)
    late = Deliver(entry, success(), lane(), report) if outcome == "delivered" else failure(entry, step=EXHAUSTED)
    assert await one.ledger.perform(late) == Verdict(None, fenced=True)
    assert one.kept() == before
    view = await one.ledger.circuit(HOST)
    assert view is not None
    assert view.record.circuit.first_attempt_at is None
    await other.ledger.perform(Deliver(theirs, success(), lane(), report))
    assert (await other.story(theirs)).state is State.DELIVERED
    one.check()


async def test_a_late_outcome_beside_a_good_one_of_its_message_does_not_count(
    two: tuple[SharedDesk, SharedDesk],
) -> None:
    one, _ = two
    await one.accept_waiting(number=2)
    first, second = (await claim(one)).fresh
    late = first._replace(fence=one.ledger.number + 1_000)
    verdicts = await one.together(
        failure(late, step=EXHAUSTED), failure(first, step=retry_at(1, NOW + HOUR)), failure(second)
    )
    assert [verdict.fenced for verdict in verdicts] == [True, False, False]
    view = await one.ledger.circuit(HOST)
    assert view is not None
    assert (view.record.circuit.consecutive_failures, view.waiting, view.dead) == (2, 2, 0)
    one.check()


async def test_failures_at_both_add_up_and_the_circuit_trips_once(two: tuple[SharedDesk, SharedDesk]) -> None:
    await two[0].accept_waiting(number=20)
    verdicts: list[Verdict] = []

    async def fail_some(desk: SharedDesk) -> None:
        for entry in (await claim(desk, fresh=10)).fresh:
            verdicts.append(await desk.ledger.perform(failure(entry, step=retry_at(1, NOW + HOUR))))

    async with trio.open_nursery() as failing:
        for desk in two:
            failing.start_soon(fail_some, desk)
    [change] = [verdict.change for verdict in verdicts if verdict.change]
    assert (change.after, change.reason) == (CircuitState.DISABLED, Reason.CONSECUTIVE_FAILURES)
    view = await two[0].ledger.circuit(HOST)
    assert view is not None
    assert (view.record.circuit.consecutive_failures, view.record.circuit.spell) == (20, 1)
    two[0].check()


async def test_there_is_one_probe_an_interval(two: tuple[SharedDesk, SharedDesk]) -> None:
    one, other = two
    waiting = await one.accept_waiting(number=3)
    await one.save(disabled(probe_at=NOW + MINUTE))
    views = [await claim(desk, at=NOW + MINUTE) for desk in (one, other)]
    assert [view.probe and view.probe.message.id for view in views] == [waiting[0].message.id, None]
    assert (await claim(other, at=NOW + MINUTE + PROBE_EVERY - 1)).probe is None
    probe = (await claim(other, at=NOW + MINUTE + PROBE_EVERY)).probe
    assert probe is not None
    assert probe.message == waiting[1].message
    one.check()


async def test_a_probe_that_succeeds_anywhere_enables_the_circuit(two: tuple[SharedDesk, SharedDesk]) -> None:
    one, other = two
    await one.accept_waiting(number=3)
    await one.save(disabled(probe_at=NOW))
    view = await claim(other)
    assert view.probe is not None
    assert view.record is not None
    report = Report(view.record.circuit.spell, NOW, NOW + 20, True, None)
    verdict = await other.ledger.perform(Deliver(view.probe, success(), lane(), report))
    assert verdict.change is not None
    assert verdict.record.limit == 1, "it is approached slowly"
    assert len((await claim(one)).fresh) == 2


@mark.parametrize("verb", [Verb.FREEZE, Verb.UNFREEZE])
async def test_an_operators_word_at_one_holds_for_the_other(two: tuple[SharedDesk, SharedDesk], verb: Verb) -> None:
    one, other = two
    await one.accept_waiting(number=2)
    await one.save(lane() if verb is Verb.FREEZE else frozen())
    verdict = await one.ledger.perform(Switch(HOST, HOST, verb, NOW + MINUTE))
    assert verdict.change is not None
    assert len((await claim(other)).fresh) == (0 if verb is Verb.FREEZE else 2)
    again = await other.ledger.perform(Switch(HOST, HOST, verb, NOW + MINUTE))
    assert again.change is None
    one.check()


async def test_who_leaves_gives_everything_back(two: tuple[SharedDesk, SharedDesk]) -> None:
    one, other = two
    await one.accept_waiting(number=2)
    await one.retrying(NOW)
    straight = await one.accept("other:443")
    assert len([*(view := await claim(one)).fresh, *view.due]) == 3
    await one.close()
    found = await claim(other)
    assert len([*found.fresh, *found.due]) == 3
    assert ids((await other.look("other:443")).fresh) == ids([straight])
    other.check()
    await one.open()


async def test_what_one_that_was_taken_for_dead_had_is_free(two: tuple[SharedDesk, SharedDesk]) -> None:
    one, other = two
    await one.accept_waiting(number=2)
    had = (await claim(one)).fresh
    await one.kill()
    await other.restart()
    assert ids((await claim(other)).fresh) == ids(had)
    other.check()
    await one.open()
    assert one.ledger.number > other.ledger.number


async def test_what_is_claimed_does_not_expire_and_is_not_handed_over(two: tuple[SharedDesk, SharedDesk]) -> None:
    one, other = two
    await one.accept_waiting(number=3)
    [claimed] = (await claim(one, fresh=1)).fresh
    await one.save(frozen())
    page, _ = await other.ledger.waiting(None, 10)
    assert await other.ledger.perform(HandOver(page[:2])) == 1
    assert await other.ledger.perform(Expire(HOST, EVER, NOW + HOUR, 10)) == ids(page[2:])
    assert other.undelivered().count(claimed.message.id) == 1
    one.check()


async def test_what_is_claimed_is_due_already(two: tuple[SharedDesk, SharedDesk]) -> None:
    one, other = two
    await one.retrying(NOW + MINUTE)
    [claimed] = (await claim(one)).due
    assert await other.ledger.perform(RetryNow(claimed.message.id, NOW + 1)) is Retried.DUE
    await one.ledger.perform(failure(claimed, step=retry_at(2, NOW + HOUR)))
    place = (await other.story(claimed)).place
    assert place is not None
    assert (place.due, place.retry) == (NOW + HOUR, 2)
    one.check()


async def test_what_an_operator_drops_is_gone_whoever_has_it(two: tuple[SharedDesk, SharedDesk]) -> None:
    one, other = two
    straight = await one.accept()
    assert (await other.ledger.perform(DropMessages(MessageFilter(), 10))).count == 1
    assert (await one.ledger.perform(failure(straight))).fenced
    assert one.undelivered() == []
    one.check()


async def test_of_one_key_used_at_both_at_once_there_is_one_message(two: tuple[SharedDesk, SharedDesk]) -> None:
    results: list[object] = []

    async def accept(desk: SharedDesk, name: str) -> None:
        results.append(await desk.ledger.perform(Accept(desk.message(), idempotency(name))))

    for number in range(20):
        async with trio.open_nursery() as accepting:
            for desk in two:
                accepting.start_soon(accept, desk, str(number))
    assert sum(isinstance(result, Accepted) for result in results) == 20
    assert sum(isinstance(result, Duplicate) for result in results) == 20
    two[0].check()


async def test_what_both_write_at_once_is_counted_exactly(two: tuple[SharedDesk, SharedDesk]) -> None:
    async def come_and_go(desk: SharedDesk) -> None:
        for round in range(10):
            messages = [desk.message(f"h{number % 3}:443") for number in range(12)]
            told = await desk.together(*(Accept(message) for message in messages))
            mine = [active(message) for message, result in zip(messages, told, strict=True) if result.active]
            outcomes = [Deliver(entry, success(), None) for entry in mine[::3]]
            outcomes += [Fail(entry, attempt(), retry_at(1, NOW), lane(entry.message.lane)) for entry in mine[1::3]]
            outcomes += [Fail(entry, attempt(), EXHAUSTED, lane(entry.message.lane)) for entry in mine[2::3]]
            if outcomes:
                await desk.together(*outcomes)
            await desk.look(f"h{round % 3}:443")

    async with trio.open_nursery() as writing:
        for desk in two:
            writing.start_soon(come_and_go, desk)
    two[0].check()
    statistics = await two[0].ledger.statistics()
    delivered = len(two[0].kept()["delivered"])
    assert statistics.waiting + statistics.dead + delivered == 240


async def test_a_look_at_a_lane_that_is_not_known_leaves_no_trace(two: tuple[SharedDesk, SharedDesk]) -> None:
    one, _ = two
    assert (await one.look("nobody:443")).record is None
    assert await one.ledger.agenda(EVER, 10, ()) == Agenda([], None)


async def test_nothing_expires_in_a_circuit_that_another_replica_has_enabled(
    two: tuple[SharedDesk, SharedDesk],
) -> None:
    one, other = two
    await one.accept_waiting()
    await one.save(frozen())
    await other.ledger.perform(Switch(HOST, HOST, Verb.UNFREEZE, NOW))
    assert await one.ledger.perform(Expire(HOST, EVER, NOW + HOUR, 10)) == []
