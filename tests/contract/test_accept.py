"""Accepted messages are on disk, unchanged."""

import pytest
from pytest import MonkeyPatch

from holdfast.core.message import MessageState, Place, Standing
from holdfast.store import records
from holdfast.store.port import Accept, Accepted, Commit, Purge, Shelve, StoreListener
from tests.contract.builders import EVER, HOST, MINUTE, NOW, Desk, active, ids
from tests.contract.conftest import embedded

SIZES = [0, 1, 1024, 1_700, 1_989, 1_990, 1_991, 4_079, 4_080, 4_081, 8_160, 8_161, 65_536, 1 << 20]


async def test_is_on_disk_when_perform_returns(desk: Desk) -> None:
    entry = await desk.accept()
    await desk.restart_after_a_kill()
    assert (await desk.message_view(entry)).message == entry.message


async def test_is_active_while_nothing_waits_in_its_lane(desk: Desk) -> None:
    first, second = desk.message(), desk.message()
    assert await desk.ledger.perform(Accept(first)) == Accepted(active=True)
    assert await desk.ledger.perform(Accept(second)) == Accepted(active=True)
    await desk.ledger.perform(Shelve([first]))
    assert await desk.ledger.perform(Accept(desk.message())) == Accepted(active=False)
    assert await desk.ledger.perform(Accept(desk.message("other:443"))) == Accepted(active=True)


async def test_an_active_message_is_in_no_queue(desk: Desk) -> None:
    entry = await desk.accept()
    assert (await desk.look()).fresh == []
    assert (await desk.message_view(entry)).state is MessageState.QUEUED
    assert (await desk.message_view(entry)).place == Place(Standing.ACTIVE, NOW)


async def test_a_group_is_told_in_the_order_of_submission(desk: Desk, kind: str) -> None:
    first, second, third = (desk.message() for _ in range(3))
    results = await desk.together(Accept(first), Shelve([first]), Accept(second), Accept(third))
    assert results == [Accepted(active=True), 1, Accepted(active=False), Accepted(active=False)]
    in_hand = kind == "postgres"  # There its owner decides what goes to the queue.
    assert desk.recorder.reported == [(first, True), (second, in_hand), (third, in_hand)]


@embedded("replicas write new messages and all else by connections of their own")
async def test_a_group_is_one_commit(desk: Desk) -> None:
    first = desk.message()
    await desk.together(Accept(first), Shelve([first]), Accept(desk.message()))
    assert desk.commits == 1


async def test_nothing_is_reported_before_the_commit(desk: Desk) -> None:
    on_disk: list[bool] = []

    class Look(StoreListener):
        def committed(self, commit: Commit) -> None:
            on_disk.extend(message.id in desk.undelivered() for message in commit.accepted)

    desk.ledger.listener = Look()
    await desk.together(*(Accept(desk.message()) for _ in range(5)))
    assert on_disk == [True] * 5


@pytest.mark.parametrize("size", SIZES)
async def test_a_body_comes_back_as_it_came(desk: Desk, size: int) -> None:
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    [entry] = await desk.accept_waiting(body=body)
    assert entry.message == desk.messages[0]
    assert (await desk.message_view(entry)).size == size


async def test_odd_bytes_come_back_as_they_came(desk: Desk) -> None:
    headers = ((b"x-empty", b""), (b"x-high", bytes(range(128, 256))), (b"x-twice", b"1"), (b"x-twice", b"2"))
    path = b"/%00/\xff\xfe?a=\xc3\xa9&b=%20+"
    [entry] = await desk.accept_waiting(headers=headers, path=path, route="billing")
    assert entry.message == desk.messages[0]
    assert entry.message.headers == headers


async def test_many_headers_push_a_small_body_out_of_the_record(desk: Desk) -> None:
    headers = tuple((b"x-%d" % number, b"v" * 300) for number in range(100))
    [entry] = await desk.accept_waiting(headers=headers, body=b"small")
    assert entry.message == desk.messages[0]


async def test_shelved_messages_wait_in_the_order_of_acceptance(desk: Desk) -> None:
    accepted = [await desk.accept() for _ in range(4)]
    await desk.ledger.perform(Shelve([entry.message for entry in reversed(accepted[:2])]))
    await desk.ledger.perform(Shelve([entry.message for entry in accepted[2:]]))
    accepted.append(await desk.accept())
    assert ids((await desk.look()).fresh) == ids(accepted)


async def test_shelving_twice_moves_nothing(desk: Desk) -> None:
    entry = await desk.accept()
    assert await desk.ledger.perform(Shelve([entry.message, entry.message])) == 1
    assert await desk.ledger.perform(Shelve([entry.message])) == 0
    assert ids((await desk.look()).fresh) == ids([entry])


async def test_a_restart_puts_active_messages_back_in_order(desk: Desk) -> None:
    accepted = []
    for number in range(5):
        accepted.append(await desk.accept("even" if number % 2 == 0 else "odd"))
    await desk.restart()
    assert ids((await desk.look("even")).fresh) == ids(accepted[0::2])
    assert ids((await desk.look("odd")).fresh) == ids(accepted[1::2])


async def test_a_restart_keeps_the_attempts_of_an_active_message(desk: Desk) -> None:
    entry = await desk.accept()
    await desk.fail(entry, None)
    await desk.restart()
    [again] = (await desk.look()).fresh
    assert again.place == Place(Standing.WAITING, NOW, attempts=1)


@embedded("they are in a table of their own there, which a start empties in batches")
async def test_a_restart_takes_up_more_than_one_batch_of_active_messages(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.together(*(Accept(desk.message()) for _ in range(25)))
    monkeypatch.setattr("holdfast.store.embedded.ledger.START_BATCH", 10)
    await desk.restart()
    assert len((await desk.look()).fresh) == 25


async def test_a_delayed_message_is_due_when_its_delay_is_over(desk: Desk) -> None:
    await desk.accept(delay=MINUTE)
    view = await desk.look(at=NOW + MINUTE - 1)
    assert (view.fresh, view.due, view.next_due) == ([], [], NOW + MINUTE)
    [entry] = (await desk.look(at=NOW + MINUTE)).due
    assert entry.place == Place(Standing.RETRY, NOW + MINUTE, NOW + MINUTE, held=True)


async def test_a_delayed_message_makes_none_wait(desk: Desk) -> None:
    await desk.accept(delay=MINUTE)
    assert (await desk.accept()).place.standing is Standing.ACTIVE


async def test_a_survey_gives_at_most_what_was_asked_for(desk: Desk) -> None:
    waiting = await desk.accept_waiting(number=5)
    view = await desk.look(fresh=2, skip=ids(waiting[:1]))
    assert ids(view.fresh) == ids(waiting[1:3])
    assert view.more_fresh
    assert (await desk.look(fresh=0)).more_fresh
    assert not (await desk.look(fresh=5)).more_fresh
    assert not (await desk.look(fresh=0, skip=ids(waiting))).more_fresh


async def test_a_survey_stops_at_a_megabyte_of_bodies(desk: Desk) -> None:
    await desk.accept_waiting(number=5, body=bytes(600_000))
    view = await desk.look()
    assert len(view.fresh) == 2
    assert view.more_fresh


async def test_one_survey_answers_for_several_lanes(desk: Desk) -> None:
    one = await desk.accept_waiting("one")
    two = await desk.accept_waiting("two")
    views = [await desk.look(lane) for lane in ("one", "two", "unknown")]
    assert [view.fresh for view in views] == [one, two, []]
    assert views[2].record is None


async def test_ids_only_grow(desk: Desk) -> None:
    minted = [desk.ledger.mint(moment) for moment in (NOW, NOW, NOW - MINUTE, NOW + 1)]
    assert minted == sorted(set(minted))


@embedded("replicas mint ids beside one another, by the clock of their database")
async def test_ids_grow_over_a_restart_with_the_clock_set_back(desk: Desk) -> None:
    entry = await desk.accept()
    unused = desk.ledger.mint(NOW + MINUTE)
    await desk.accept("other")
    desk.clock.at = NOW - MINUTE
    await desk.restart()
    assert desk.ledger.mint(NOW - MINUTE) > unused > entry.message.id


@embedded("replicas mint ids beside one another, by the clock of their database")
async def test_ids_grow_past_those_of_messages_long_gone(desk: Desk) -> None:
    entry = await desk.accept()
    await desk.deliver(entry)
    await desk.ledger.perform(Purge(EVER, EVER, 0, 10))
    desk.clock.at = NOW - MINUTE
    await desk.restart()
    assert desk.ledger.mint(NOW - MINUTE) > entry.message.id


async def test_what_was_submitted_before_the_end_is_still_committed(desk: Desk) -> None:
    message = desk.message()
    desk.ledger.submit(Accept(message))
    await desk.restart()
    assert ids((await desk.look(HOST)).fresh) == ids([active(message)])


@embedded("the database keeps a body as one value")
async def test_a_body_may_have_any_number_of_pieces(desk: Desk, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PIECE", 4)
    body = b"".join(number.to_bytes(4, "big") for number in range(70_000))
    message = (await desk.accept(body=body)).message
    await desk.restart()
    [entry] = (await desk.look()).fresh
    assert entry.message.body == body
    await desk.deliver(entry)
    assert desk.traces(message.id) == ["DELIVERED", "FINISHED"]
