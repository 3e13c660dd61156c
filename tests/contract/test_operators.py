"""Operators retry, replay and drop messages by filter, in bounded steps."""

from pytest import mark

from holdfast.core.message import DeadReason, MessageState, Place, Standing
from holdfast.store.port import (
    DeadFilter,
    DropDead,
    DropMessages,
    Expire,
    LaneChange,
    MessageFilter,
    ReplayDead,
    Retried,
    RetryNow,
)
from tests.contract.builders import DAY, HOST, HOUR, MINUTE, NOW, Desk, frozen, ids, lane, retry_at
from tests.contract.conftest import embedded

OTHER = "other.example:443"


async def dead_of_each_kind(desk: Desk) -> tuple[bytes, bytes, bytes]:
    """Exhausted and expired ones of one host, and an exhausted one of another, a minute apart."""
    exhausted = await desk.accept()
    await desk.add_dead(exhausted)
    desk.clock.at += MINUTE
    [expired] = await desk.accept_waiting()
    await desk.save(frozen())
    await desk.ledger.perform(Expire(HOST, NOW + DAY, desk.clock.at, 10))
    desk.clock.at += MINUTE
    await desk.save(lane())
    other = await desk.accept(OTHER)
    await desk.add_dead(other)
    return exhausted.message.id, expired.message.id, other.message.id


@mark.parametrize(
    ("select", "chosen"),
    [
        (DeadFilter(), {0, 1, 2}),
        (DeadFilter(HOST), {0, 1}),
        (DeadFilter(OTHER), {2}),
        (DeadFilter(reason=DeadReason.EXPIRED), {1}),
        (DeadFilter(HOST, reason=DeadReason.EXHAUSTED), {0}),
        (DeadFilter(since=NOW + MINUTE), {1, 2}),
        (DeadFilter(until=NOW + MINUTE), {0}),
        (DeadFilter(since=NOW + MINUTE, until=NOW + MINUTE + 2), {1}),
        (DeadFilter("nobody.example:443"), set()),
    ],
)
async def test_dead_letters_are_chosen_by_host_time_and_reason(
    desk: Desk, select: DeadFilter, chosen: set[int]
) -> None:
    dead = await dead_of_each_kind(desk)
    expected = {dead[index] for index in chosen}
    page, _ = await desk.ledger.dead(select, 10)
    assert {view.message.id for view in page} == expected
    swept = await desk.ledger.perform(ReplayDead(select, NOW + DAY, 10))
    assert set(swept.ids) == expected
    assert set(swept.lanes) == {view.message.lane for view in page}
    assert (await desk.ledger.statistics()).dead == 3 - len(expected)


async def test_a_filter_that_skips_goes_on_where_it_ended(desk: Desk) -> None:
    for _ in range(4):
        await dead_of_each_kind(desk)
        desk.clock.at += MINUTE
    select = DeadFilter(reason=DeadReason.EXPIRED)
    first = await desk.ledger.perform(DropDead(select, 3))
    assert (first.count, first.after is None) == (3, False)
    second = await desk.ledger.perform(DropDead(DeadFilter(reason=DeadReason.EXPIRED, after=first.after), 3))
    assert (second.count, second.after) == (1, None)
    assert (await desk.ledger.statistics()).dead == 8


async def test_dropping_the_dead_leaves_no_trace_of_them(desk: Desk) -> None:
    entry = await desk.accept(body=bytes(10_000))
    await desk.add_dead(entry)
    assert (await desk.ledger.perform(DropDead(DeadFilter(), 10))).ids == [entry.message.id]
    assert desk.traces(entry.message.id) == []
    desk.check()


async def test_waiting_messages_are_dropped_wherever_they_stand(desk: Desk) -> None:
    retrying = await desk.retrying(NOW + HOUR)
    delayed = await desk.accept(delay=HOUR)
    waiting = await desk.accept_waiting()
    active = await desk.accept(OTHER)
    dead = await desk.accept(OTHER)
    await desk.add_dead(dead)
    swept = await desk.ledger.perform(DropMessages(MessageFilter(), 10))
    everyone = [retrying, delayed, *waiting, active, dead]
    assert sorted(swept.ids) == sorted(ids(everyone))
    assert swept.lanes == {HOST: HOST, OTHER: OTHER}
    assert desk.undelivered() == []
    desk.check()


async def test_dropping_goes_by_host_state_and_acceptance(desk: Desk) -> None:
    old = await desk.retrying(NOW + HOUR)
    [young] = await desk.accept_waiting(OTHER)
    await desk.save(frozen(OTHER))
    for select, expected in (
        (MessageFilter(state=MessageState.DEAD), []),
        (MessageFilter(before=NOW), []),
        (MessageFilter("nobody.example:443"), []),
        (MessageFilter(id=bytes(16)), []),
        (MessageFilter(OTHER, state=MessageState.HELD), [young]),
        (MessageFilter(HOST, before=NOW + 1, state=MessageState.RETRYING), [old]),
    ):
        assert (await desk.ledger.perform(DropMessages(select, 10))).ids == ids(expected)


async def test_one_message_is_dropped_and_never_its_neighbour(desk: Desk) -> None:
    first, second = [await desk.accept() for _ in range(2)]
    await desk.deliver(first)
    assert (await desk.ledger.perform(DropMessages(MessageFilter(id=first.message.id), 1))).ids == []
    assert (await desk.ledger.perform(DropMessages(MessageFilter(id=second.message.id), 1))).count == 1


async def test_what_is_in_flight_is_not_dropped(desk: Desk) -> None:
    entries = [await desk.accept() for _ in range(3)]
    skip = {entries[1].message.id}
    swept = await desk.ledger.perform(DropMessages(MessageFilter(), 10, skip))
    assert swept.ids == ids([entries[0], entries[2]])


async def test_dropping_in_steps_comes_to_an_end(desk: Desk) -> None:
    await desk.accept_waiting(number=5)
    select, dropped = MessageFilter(), 0
    while True:
        swept = await desk.ledger.perform(DropMessages(select, 2))
        dropped += swept.count
        if swept.after is None:
            break
        select = MessageFilter(after=swept.after)
    assert dropped == 5


async def test_a_retry_that_is_not_due_becomes_due_with_its_number(desk: Desk) -> None:
    entry = await desk.retrying(NOW + HOUR, retry=4, held=True)
    now = desk.clock.at
    assert await desk.ledger.perform(RetryNow(entry.message.id, now, HOST, HOST)) is Retried.DUE
    [due] = (await desk.look()).due
    assert due.place == Place(Standing.RETRY, NOW, now, 4, 1)


async def test_a_delayed_message_is_due_at_once_and_ages_from_there(desk: Desk) -> None:
    entry = await desk.accept(delay=DAY)
    await desk.ledger.perform(RetryNow(entry.message.id, NOW, HOST, HOST))
    [due] = (await desk.look()).due
    assert due.place == Place(Standing.RETRY, NOW, NOW)


async def test_a_dead_message_that_is_retried_starts_a_new_life(desk: Desk) -> None:
    entry = await desk.accept()
    await desk.add_dead(entry)
    assert await desk.ledger.perform(RetryNow(entry.message.id, NOW + DAY, HOST, HOST)) is Retried.REPLAYED
    [again] = (await desk.look()).fresh
    assert again.place == Place(Standing.WAITING, NOW + DAY, attempts=1)


async def test_what_was_delivered_or_never_was_is_not_retried(desk: Desk) -> None:
    entry = await desk.accept()
    await desk.deliver(entry)
    assert await desk.ledger.perform(RetryNow(entry.message.id, NOW, HOST, HOST)) is Retried.DELIVERED
    assert await desk.ledger.perform(RetryNow(bytes(16), NOW, HOST, HOST)) is Retried.UNKNOWN


@embedded("where replicas share a store, what is claimed is in flight, and is not made due")
@mark.parametrize("probe", [True, False])
async def test_an_attempt_under_way_when_its_message_is_made_due_is_recorded(desk: Desk, probe: bool) -> None:
    """It was read where the message stood before."""
    entry = await desk.retrying(NOW + HOUR)
    await desk.ledger.perform(RetryNow(entry.message.id, NOW + MINUTE, HOST, HOST))
    await desk.fail(entry, None if probe else retry_at(2, NOW + DAY), number=2)
    view = await desk.message_view(entry)
    assert [attempt.number for attempt in view.attempts] == [1, 2]
    assert view.place is not None
    assert (view.place.due, view.place.retry) == ((NOW + MINUTE, 1) if probe else (NOW + DAY, 2))


async def test_a_delivery_under_way_when_its_message_is_made_due_is_recorded(desk: Desk) -> None:
    entry = await desk.take(await desk.retrying(NOW + HOUR))
    await desk.ledger.perform(RetryNow(entry.message.id, NOW + MINUTE, HOST, HOST))
    await desk.deliver(entry, 2)
    assert (await desk.message_view(entry)).state is MessageState.DELIVERED


async def test_a_commit_names_the_lanes_that_an_operator_changed(desk: Desk) -> None:
    [entry] = await desk.accept_waiting()
    id = entry.message.id
    await desk.ledger.perform(RetryNow(id, NOW, HOST, HOST))
    await desk.ledger.perform(DropMessages(MessageFilter(id=id), 1))
    changes = [change for commit in desk.recorder.commits for change in commit.changed]
    assert changes == [LaneChange(HOST, HOST), LaneChange(HOST, HOST, frozenset({id}))]
