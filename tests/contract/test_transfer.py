"""Messages that go from one store to another: read in pages, forgotten together, kept in place, and taken once."""

from pytest import mark, raises

from holdfast.core.errors import StoreFull
from holdfast.core.idempotency import handoff_digest
from holdfast.core.message import Entry, Message, MessageState, Place, Standing
from holdfast.store.port import (
    Accept,
    Accepted,
    Conflict,
    DropMessages,
    Duplicate,
    HandOver,
    IdempotencyKey,
    MessageFilter,
    RetryNow,
)
from tests.contract.builders import DAY, HOST, MINUTE, NOW, Desk, frozen, idempotency, ids
from tests.contract.conftest import OpenDesk

OTHER = "other.example:443"
LONG_AGO = NOW - 40 * DAY


def foreign(number: int = 1, *, body: bytes = b"{}", lane: str = HOST) -> Message:
    """A message of another holdfast, accepted there long ago."""
    id = (LONG_AGO << 80 | number).to_bytes(16, "big")
    return Message(id, lane, lane, "https", lane, b"/hook", "POST", (), body, LONG_AGO, LONG_AGO + MINUTE)


def handed(message: Message, place: Place | None = None, body: str = "body") -> Accept:
    key = IdempotencyKey(handoff_digest(message.id), idempotency("", body).body)
    return Accept(message, key, place or Place(Standing.WAITING, message.born))


async def every_page(desk: Desk, limit: int = 100) -> list[list[Entry]]:
    pages, after = [], None
    while True:
        page, after = await desk.ledger.waiting(after, limit)
        pages.append(page)
        if after is None:
            return pages


# -- out ---------------------------------------------------------------------------------------------------------------


async def test_all_that_waits_is_read_whole_and_nothing_that_is_dead_or_delivered(desk: Desk) -> None:
    large = b"x" * 100_000
    waiting = await desk.accept(body=large)
    retrying = await desk.retrying(NOW + DAY, retry=5)
    delayed = await desk.accept(delay=MINUTE)
    await desk.save(frozen(OTHER))
    held = await desk.accept(OTHER)
    await desk.add_dead(await desk.accept())
    await desk.deliver(await desk.accept())
    [page] = await every_page(desk)
    assert ids(page) == ids([waiting, retrying, delayed, held])
    assert [entry.message for entry in page] == [e.message for e in (waiting, retrying, delayed, held)]
    assert page[0].message.body == large
    assert page[1].place == Place(Standing.RETRY, retrying.message.born, NOW + DAY, 5, 1)
    assert page[2].place == Place(Standing.RETRY, delayed.message.born, delayed.message.born, held=True)


async def test_pages_are_bounded_in_number_and_bytes(desk: Desk) -> None:
    entries = [await desk.accept(body=b"x" * 400_000) for _ in range(5)] + [await desk.accept() for _ in range(5)]
    pages = await every_page(desk, 4)
    assert [len(page) for page in pages] == [3, 4, 3]
    assert [id for page in pages for id in ids(page)] == ids(entries)


async def test_messages_that_were_taken_are_removed_with_all_that_is_stored_of_them(desk: Desk) -> None:
    await desk.accept(body=b"x" * 10_000)
    await desk.retrying(NOW + DAY)
    await desk.accept_waiting(OTHER, 2)
    stays = await desk.accept()
    page = (await every_page(desk))[0]
    assert await desk.ledger.perform(HandOver([e for e in page if e.message.id != stays.message.id])) == 4
    assert ids((await every_page(desk))[0]) == [stays.message.id]
    desk.check()
    await desk.deliver(stays)
    assert desk.undelivered() == []
    assert [desk.traces(entry.message.id) for entry in page if entry.message.id != stays.message.id] == [[]] * 4
    desk.check()


async def test_what_an_operator_dropped_or_moved_meanwhile(desk: Desk) -> None:
    dropped, moved = await desk.accept(), await desk.retrying(NOW + DAY)
    page = (await every_page(desk))[0]
    await desk.ledger.perform(DropMessages(MessageFilter(id=dropped.message.id), 1))
    await desk.ledger.perform(RetryNow(moved.message.id, desk.clock.at, moved.message.lane, moved.message.host))
    assert await desk.ledger.perform(HandOver(page)) == 1
    assert await every_page(desk) == [[]]
    desk.check()


async def test_a_dead_letter_leaves_too_and_one_that_was_replayed_meanwhile_stays(desk: Desk) -> None:
    for _ in range(2):
        await desk.add_dead(await desk.accept())
    entries = [Entry(message, (await desk.message_view(message)).place) for message in desk.messages]
    await desk.ledger.perform(RetryNow(entries[1].message.id, desk.clock.at, HOST, HOST))
    assert await desk.ledger.perform(HandOver(entries)) == 1
    assert desk.undelivered() == ids(entries[1:])
    assert desk.traces(entries[0].message.id) == []
    desk.check()


# -- in ----------------------------------------------------------------------------------------------------------------


@mark.parametrize(
    "place",
    [
        Place(Standing.WAITING, LONG_AGO + MINUTE),
        Place(Standing.WAITING, LONG_AGO + MINUTE, attempts=7),
        Place(Standing.RETRY, LONG_AGO + MINUTE, NOW + DAY, 5, 9),
        Place(Standing.RETRY, LONG_AGO + MINUTE, LONG_AGO + MINUTE, held=True),
    ],
)
async def test_a_message_keeps_its_place(desk: Desk, place: Place, kind: str) -> None:
    message = foreign(body=b"x" * 5_000)
    assert await desk.ledger.perform(handed(message, place)) == Accepted(active=False)
    assert desk.recorder.reported == [(message, kind == "postgres")]
    assert await every_page(desk) == [[Entry(message, place)]]
    desk.check()
    view = await desk.look(at=NOW + 2 * DAY)
    [entry] = view.fresh + view.due
    await desk.fail(entry)
    assert [made.number for made in (await desk.message_view(message)).attempts] == [place.attempts + 1]


async def test_a_new_one_does_not_overtake_it(desk: Desk) -> None:
    results = await desk.together(handed(foreign()), Accept(desk.message()))
    assert results == [Accepted(active=False), Accepted(active=False)]


async def test_the_same_one_again_is_the_first(desk: Desk) -> None:
    message = foreign()
    results = await desk.together(handed(message), handed(message), handed(message, body="other"))
    assert results == [Accepted(active=False), Duplicate(message.id), Conflict()]
    assert (await desk.ledger.statistics()).waiting == 1
    await desk.restart()
    assert await desk.ledger.perform(handed(message)) == Duplicate(message.id)


async def test_again_after_it_was_delivered_dropped_or_died(desk: Desk) -> None:
    for number in range(3):
        await desk.ledger.perform(handed(foreign(number)))
    first, second, third = (await desk.look()).fresh
    await desk.deliver(first)
    await desk.ledger.perform(DropMessages(MessageFilter(id=second.message.id), 1))
    await desk.add_dead(third)
    for number in range(3):
        assert isinstance(await desk.ledger.perform(handed(foreign(number))), Duplicate)
    assert (await desk.ledger.statistics()).waiting == 0


async def test_its_record_is_known_when_its_key_is_not_any_more(open_desk: OpenDesk) -> None:
    desk = await open_desk(idempotency=1)
    waiting, delivered = foreign(1), foreign(2)
    await desk.ledger.perform(handed(waiting))
    await desk.ledger.perform(handed(delivered))
    await desk.deliver((await desk.look()).fresh[1])
    desk.clock.at += DAY
    assert await desk.ledger.perform(handed(waiting)) == Duplicate(waiting.id)
    assert await desk.ledger.perform(handed(delivered)) == Duplicate(delivered.id)
    desk.check()


async def test_one_that_was_handed_on_is_taken_when_it_comes_back(desk: Desk) -> None:
    """Else it would be forgotten on both sides."""
    message = foreign()
    await desk.ledger.perform(handed(message))
    await desk.ledger.perform(HandOver((await every_page(desk))[0]))
    assert await desk.ledger.perform(handed(message)) == Accepted(active=False)


async def test_a_full_store_takes_none_and_knows_those_it_has(open_desk: OpenDesk) -> None:
    desk = await open_desk(host_share=0.0001)
    known = foreign(1)
    await desk.ledger.perform(handed(known))
    with raises(StoreFull):
        await desk.ledger.perform(handed(foreign(2, body=b"x" * 200_000)))
    assert await desk.ledger.perform(handed(known)) == Duplicate(known.id)


async def test_it_expires_by_its_own_age(desk: Desk) -> None:
    await desk.save(frozen())
    message = foreign()
    await desk.ledger.perform(handed(message))
    statistics = await desk.ledger.statistics()
    assert statistics.oldest_waiting_at == message.born
    view = await desk.message_view(message)
    assert (view.state, view.message) == (
        MessageState.HELD,
        message._replace(body=view.message.body),
    )
