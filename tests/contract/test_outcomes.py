"""The end of an attempt changes its message once."""

from pytest import mark, param

from holdfast.core.message import AttemptKind, DeadReason, Entry, MessageState, Place, Standing
from holdfast.store.embedded.tables import Table, Transaction, step
from holdfast.store.port import Deliver, Fail
from holdfast.store.records import encode_attempt, numbered
from tests.contract.builders import (
    EXHAUSTED,
    HOST,
    MINUTE,
    NOW,
    Desk,
    attempt,
    disabled,
    dump,
    ids,
    lane,
    lane_of,
    retry_at,
    success,
    tried,
)
from tests.contract.conftest import embedded

STEPS = [param(None, id="none"), param(retry_at(1, NOW + MINUTE), id="retry"), param(EXHAUSTED, id="dead")]


async def entry_of(desk: Desk, standing: Standing) -> Entry:
    if standing is Standing.ACTIVE:
        return await desk.accept()
    if standing is Standing.WAITING:
        [entry] = await desk.accept_waiting()
        return entry
    await desk.retrying(NOW)
    [entry] = (await desk.look()).due
    return entry


STANDINGS = mark.parametrize("standing", [Standing.ACTIVE, Standing.WAITING, Standing.RETRY])


@STANDINGS
async def test_a_delivered_message_leaves_every_queue(desk: Desk, standing: Standing) -> None:
    entry = await entry_of(desk, standing)
    await desk.deliver(entry, number=entry.place.attempts + 1)
    assert desk.undelivered() == []
    desk.check()


async def test_a_delivered_message_tells_its_story_without_its_body(desk: Desk) -> None:
    entry = await desk.accept(body=bytes(5_000), route="billing")
    await desk.fail(entry, retry_at(1, NOW))
    [again] = (await desk.look()).due
    await desk.deliver(again, number=2)
    view = await desk.message_view(entry)
    assert (view.state, view.place, view.size, view.finished_at) == (
        MessageState.DELIVERED,
        None,
        5_000,
        NOW + 20,
    )
    assert (view.message.body, view.message.headers) == (b"", ())
    assert view.message.target == entry.message.target
    assert view.message.route == "billing"
    assert view.attempts == [attempt(1, answer=b"answer 1"), success(2)]


@STANDINGS
@mark.parametrize("step", STEPS)
async def test_a_late_outcome_after_delivery_changes_nothing(desk: Desk, standing: Standing, step: object) -> None:
    entry = await entry_of(desk, standing)
    await desk.deliver(entry)
    before = desk.kept()
    await desk.deliver(entry, number=9)
    await desk.fail(entry, step, number=9)
    assert desk.kept() == before


@STANDINGS
@mark.parametrize("late", STEPS)
@mark.parametrize("step", STEPS[1:])
async def test_a_late_outcome_after_a_failure_changes_nothing(
    desk: Desk, standing: Standing, step: object, late: object
) -> None:
    entry = await entry_of(desk, standing)
    await desk.fail(entry, step)
    before = desk.kept()
    await desk.fail(entry, late, number=9)
    await desk.deliver(entry, number=9)
    assert desk.kept() == before


async def test_two_outcomes_of_one_entry_in_one_group_count_once(desk: Desk) -> None:
    entry = await desk.accept()
    await desk.together(Fail(entry, attempt(1), retry_at(1, NOW + MINUTE), lane()), Deliver(entry, success(1), None))
    assert (await desk.message_view(entry)).state is MessageState.RETRYING


@STANDINGS
async def test_a_failed_message_is_due_at_its_retry(desk: Desk, standing: Standing) -> None:
    entry = await entry_of(desk, standing)
    await desk.fail(entry, retry_at(3, NOW + MINUTE, held=True))
    view = await desk.look(at=NOW + MINUTE - 1)
    assert (view.fresh, view.due, view.next_due) == ([], [], NOW + MINUTE)
    [again] = (await desk.look(at=NOW + MINUTE)).due
    attempts = entry.place.attempts + 1
    assert again.place == Place(Standing.RETRY, entry.place.born, NOW + MINUTE, 3, attempts, held=True)
    assert again.message == entry.message


async def test_retries_come_in_the_order_of_their_due_times(desk: Desk) -> None:
    late, early, middle = [await desk.retrying(NOW + minutes * MINUTE) for minutes in (3, 1, 2)]
    assert (await desk.look(at=NOW + 3 * MINUTE)).due == [early, middle, late]
    view = await desk.look(at=NOW + 2 * MINUTE)
    assert (view.due, view.next_due) == ([early, middle], NOW + 3 * MINUTE)
    view = await desk.look(at=NOW + 3 * MINUTE, due=1)
    assert (view.due, view.next_due) == ([early], NOW + 2 * MINUTE)
    assert (await desk.look(at=NOW + 3 * MINUTE)).next_due is None


async def test_an_exhausted_message_is_a_dead_letter_with_all_its_attempts(desk: Desk) -> None:
    entry = await desk.accept(body=bytes(5_000))
    for number in range(1, 7):
        await desk.fail(entry, retry_at(number, NOW + number))
        [entry] = (await desk.look(at=NOW + number)).due
    await desk.fail(entry, EXHAUSTED)
    view = await desk.message_view(entry)
    assert (view.state, view.dead_reason, view.finished_at) == (
        MessageState.DEAD,
        DeadReason.EXHAUSTED,
        NOW + 20,
    )
    assert view.message == desk.messages[0]
    assert [made.number for made in view.attempts] == [1, 2, 3, 4, 5, 6, 7]
    view = await desk.look(at=NOW * 2)
    assert (view.fresh, view.due, view.heads.oldest) == ([], [], None)


async def test_of_hundreds_of_attempts_the_first_and_the_last_fifteen_are_kept(desk: Desk) -> None:
    [entry] = await desk.accept_waiting()
    for number in range(1, 41):
        await desk.fail(tried(entry, number - 1), number=number)
    kept = (await desk.message_view(entry)).attempts
    assert [made.number for made in kept] == [1, *range(26, 41)]
    assert [made.number for made in kept if made.answer] == [1, 39, 40]
    assert (await desk.message_view(entry)).place.attempts == 40


async def test_no_attempt_is_recorded_larger_than_it_is_kept(desk: Desk) -> None:
    entry = await desk.accept()
    made = attempt()._replace(address="a" * 1_000, detail="\N{EURO SIGN}" * 1_000, answer=bytes(9_000))
    entry = await desk.take(entry)
    await desk.perform(Fail(entry, made, retry_at(1, NOW), lane_of(entry)))
    [kept] = (await desk.message_view(entry)).attempts
    assert kept == made._replace(address="a" * 56, detail="\N{EURO SIGN}" * 48, answer=bytes(1_024))


@embedded("there a row has the number of its attempt")
async def test_attempts_that_an_older_version_recorded_one_by_one_are_taken_over(desk: Desk) -> None:
    [entry] = await desk.accept_waiting()
    await desk.fail(entry, number=1)
    older = [attempt(number, answer=b"old")._replace(detail="x" * 900) for number in range(1, 301)]

    def put(transaction: Transaction) -> None:
        for key in (entry.message.id, entry.message.id + b"\xff"):
            transaction.delete(Table.ATTEMPTS, key)
        for made in older:
            transaction.put(Table.ATTEMPTS, numbered(entry.message.id, made.number), encode_attempt(made))

    step(desk.engine, put)
    assert [made.number for made in (await desk.message_view(entry)).attempts] == list(range(1, 301))
    await desk.fail(tried(entry, 1), number=301)
    view = await desk.message_view(entry)
    assert [made.number for made in view.attempts] == [1, *range(287, 302)]
    assert [made.number for made in view.attempts if made.answer] == [1, 300, 301]
    assert {len(made.detail) for made in view.attempts[:-1]} == {144}
    assert len(dump(desk.engine)[Table.ATTEMPTS]) == 2


@mark.parametrize("number", [65_534, 65_535, 65_536, 1 << 31])
@embedded("a column of the database holds four bytes")
async def test_an_attempt_may_have_any_number(desk: Desk, number: int) -> None:
    [entry] = await desk.accept_waiting()
    await desk.fail(tried(entry, number - 1), retry_at(1, NOW), number=number)
    assert [made.number for made in (await desk.message_view(entry)).attempts] == [number]
    assert desk.ledger.failed is None


async def test_answers_are_kept_of_the_first_and_the_last_two_attempts(desk: Desk) -> None:
    entry = await desk.accept()
    for attempts in range(6):
        await desk.fail(tried(entry, attempts), None)
    answers = [made.answer for made in (await desk.message_view(entry)).attempts]
    assert answers == [b"answer 1", None, None, None, b"answer 5", b"answer 6"]


@STANDINGS
async def test_a_probe_or_an_interruption_leaves_the_place_as_it_is(desk: Desk, standing: Standing) -> None:
    entry = await entry_of(desk, standing)
    await desk.fail(entry, None)
    view = await desk.message_view(entry)
    assert view.place == entry.place._replace(standing=standing, attempts=entry.place.attempts + 1)
    assert len(view.attempts) == entry.place.attempts + 1


@STANDINGS
async def test_attempt_numbers_run_on_over_a_restart(desk: Desk, standing: Standing) -> None:
    entry = await entry_of(desk, standing)
    await desk.fail(entry, None)
    await desk.restart()
    view = await desk.look()
    [again] = [*view.fresh, *view.due]
    assert again.place.attempts == entry.place.attempts + 1
    await desk.deliver(again, number=again.place.attempts + 1)
    numbers = [made.number for made in (await desk.message_view(again)).attempts]
    assert numbers == list(range(1, again.place.attempts + 2))
    desk.check()


async def test_every_field_of_an_attempt_is_kept(desk: Desk) -> None:
    entry = await desk.accept()
    made = attempt(1, kind=AttemptKind.PROBE, answer=bytes(range(256)) * 4)
    await desk.ledger.perform(Fail(entry, made, None, disabled()))
    assert (await desk.message_view(entry)).attempts == [made]


async def test_outcome_place_and_circuit_arrive_together(desk: Desk) -> None:
    entry = await desk.accept()
    on = lane()
    on.circuit.consecutive_failures = 7
    await desk.fail(entry, retry_at(1, NOW + MINUTE), on=on)
    await desk.restart_after_a_kill()
    view = await desk.ledger.circuit(HOST)
    assert view is not None
    assert (view.record.circuit.consecutive_failures, view.waiting) == (7, 1)


async def test_stories_come_page_by_page_in_the_order_of_acceptance(desk: Desk) -> None:
    entries = [await desk.accept("a" if number % 3 else "b") for number in range(9)]
    await desk.deliver(entries[2])
    await desk.add_dead(entries[4])
    await desk.fail(entries[5], retry_at(1, NOW + MINUTE))
    seen, after = [], None
    while True:
        page, after = await desk.ledger.message_views(None, None, after, 4)
        seen += [view.message.id for view in page]
        assert len(page) <= 4
        if after is None:
            break
    assert seen == ids(entries)


@mark.parametrize(
    ("state", "lane_name", "numbers"),
    [
        (MessageState.DELIVERED, None, [2]),
        (MessageState.DEAD, None, [4]),
        (MessageState.RETRYING, None, [5]),
        (MessageState.QUEUED, None, [0, 1, 3]),
        (MessageState.QUEUED, "b", [0, 3]),
        (None, "b", [0, 3]),
    ],
)
async def test_stories_can_be_filtered(
    desk: Desk, state: MessageState | None, lane_name: str | None, numbers: list[int]
) -> None:
    entries = [await desk.accept("a" if number % 3 else "b") for number in range(6)]
    await desk.deliver(entries[2])
    await desk.add_dead(entries[4])
    await desk.fail(entries[5], retry_at(1, NOW + MINUTE))
    page, after = await desk.ledger.message_views(state, lane_name, None, 100)
    assert ([view.message.id for view in page], after) == (
        ids([entries[number] for number in numbers]),
        None,
    )


async def test_a_story_of_an_unhealthy_lane_is_held(desk: Desk) -> None:
    [entry] = await desk.accept_waiting()
    await desk.save(disabled())
    assert (await desk.message_view(entry)).state is MessageState.HELD


async def test_an_unknown_id_has_no_story(desk: Desk) -> None:
    assert await desk.ledger.message_view(bytes(16)) is None
