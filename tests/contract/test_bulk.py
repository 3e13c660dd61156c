"""Expiry, replay and retention work in bounded steps and leave nothing behind."""

from pytest import mark

from holdfast.core.message import DeadReason, MessageState, Place, Standing
from holdfast.store.embedded.tables import Table
from holdfast.store.port import (
    Accept,
    DeadFilter,
    Deliver,
    Duplicate,
    Expire,
    Forget,
    OldestFinished,
    Purge,
    ReplayDead,
)
from tests.contract.builders import (
    DAY,
    EPOCH,
    EVER,
    HOST,
    HOUR,
    MINUTE,
    NOW,
    Desk,
    active,
    dump,
    frozen,
    idempotency,
    ids,
    retry_at,
    success,
)
from tests.contract.conftest import embedded


def expire(born_before: int = EVER, limit: int = 100, **of: object) -> Expire:
    return Expire(HOST, born_before, NOW + DAY, limit, **of)


def replay(died_before: int = EVER, limit: int = 100) -> ReplayDead:
    return ReplayDead(DeadFilter(HOST, until=died_before), NOW + DAY, limit)


def purge(delivered: int = 0, dead: int = 0, keys: int = 0, limit: int = 100) -> Purge:
    return Purge(delivered, dead, keys, limit)


# -- expiry --------------------------------------------------------------------------------------------------------


async def test_what_waits_and_what_is_retried_expires_by_age(desk: Desk) -> None:
    await desk.accept_waiting(number=2)
    await desk.retrying(NOW + HOUR)
    young = await desk.accept()
    await desk.save(frozen())
    expired = await desk.ledger.perform(expire(NOW + 3))
    assert sorted(expired) == [message.id for message in desk.messages[:3]]
    for message in desk.messages[:3]:
        view = await desk.message_view(message)
        assert (view.state, view.dead_reason) == (MessageState.DEAD, DeadReason.EXPIRED)
        assert view.finished_at == NOW + DAY
    assert (await desk.message_view(young)).state is MessageState.HELD


async def test_an_expired_message_keeps_its_attempts(desk: Desk) -> None:
    entry = await desk.retrying(NOW + HOUR, retry=5)
    await desk.save(frozen())
    await desk.ledger.perform(expire())
    view = await desk.message_view(entry)
    assert view.place == Place(Standing.DEAD, NOW, NOW + DAY, 5, 1)
    assert len(view.attempts) == 1


async def test_expiry_goes_in_bounded_steps(desk: Desk) -> None:
    waiting = await desk.accept_waiting(number=3)
    for _ in range(2):
        await desk.retrying(NOW + HOUR)
    await desk.save(frozen())
    steps = [await desk.ledger.perform(expire(limit=2)) for _ in range(4)]
    assert [len(step) for step in steps] == [2, 2, 1, 0]
    assert steps[0] == ids(waiting[:2])


async def test_a_message_under_way_does_not_expire(desk: Desk) -> None:
    waiting = await desk.accept_waiting(number=3)
    await desk.save(frozen())
    assert await desk.ledger.perform(expire(limit=1, skip=frozenset(ids(waiting[:1])))) == ids(waiting[1:2])


async def test_a_delayed_message_is_as_old_as_its_first_due_time(desk: Desk) -> None:
    entry = await desk.accept(delay=HOUR)
    await desk.save(frozen())
    assert await desk.ledger.perform(expire(NOW + HOUR)) == []
    assert await desk.ledger.perform(expire(NOW + HOUR + 1)) == ids([entry])


async def test_a_replayed_message_is_as_old_as_its_replay(desk: Desk) -> None:
    entry = await desk.accept()
    await desk.add_dead(entry)
    await desk.ledger.perform(replay())
    await desk.save(frozen())
    assert await desk.ledger.perform(expire(NOW + DAY)) == []
    assert await desk.ledger.perform(expire(NOW + DAY + 1)) == ids([entry])


async def test_another_lane_does_not_expire(desk: Desk) -> None:
    await desk.accept_waiting(HOST + "0")
    await desk.save(frozen(), frozen(HOST + "0"))
    assert await desk.ledger.perform(expire()) == []


# -- replay --------------------------------------------------------------------------------------------------------


async def test_a_replay_starts_a_new_life_with_attempts_running_on(desk: Desk) -> None:
    entry = await desk.accept(body=bytes(5_000))
    await desk.fail(entry, retry_at(11, NOW))
    [again] = (await desk.look()).due
    await desk.add_dead(again)
    assert (await desk.ledger.perform(replay())).count == 1
    [replayed] = (await desk.look()).fresh
    assert replayed.message == entry.message
    assert replayed.place == Place(Standing.WAITING, NOW + DAY, retry=0, attempts=2)
    view = await desk.message_view(entry)
    assert (view.state, view.dead_reason, len(view.attempts)) == (MessageState.QUEUED, None, 2)


async def test_a_replay_takes_the_longest_dead_first_in_bounded_steps(desk: Desk) -> None:
    entries = [await desk.accept() for _ in range(5)]
    for entry in entries:
        await desk.add_dead(entry)
        desk.clock.at += 1
    steps = [(await desk.ledger.perform(replay(limit=2))).count for _ in range(2)]
    assert steps == [2, 2]
    assert ids((await desk.look()).fresh) == ids(entries[:4])
    assert (await desk.ledger.perform(replay(limit=2))).count == 1
    assert (await desk.ledger.perform(replay(limit=2))).count == 0


async def test_a_replay_takes_only_what_died_before(desk: Desk) -> None:
    first, second = [await desk.accept() for _ in range(2)]
    await desk.add_dead(first)
    desk.clock.at += MINUTE
    await desk.add_dead(second)
    assert (await desk.ledger.perform(replay(NOW + MINUTE))).count == 1
    assert ids((await desk.look()).fresh) == ids([first])


async def test_a_replay_wakes_a_lane_that_was_forgotten(desk: Desk) -> None:
    await desk.add_dead(await desk.accept(host="h.example:443"))
    assert await desk.ledger.perform(Forget(HOST)) is True
    await desk.ledger.perform(replay())
    assert await desk.first_wake() == NOW + DAY
    view = await desk.look()
    assert view.record is not None
    assert view.record.host == "h.example:443"


async def test_a_replayed_message_can_die_again(desk: Desk) -> None:
    entry = await desk.accept()
    await desk.add_dead(entry)
    await desk.ledger.perform(replay())
    [again] = (await desk.look()).fresh
    desk.clock.at = NOW + 2 * DAY
    await desk.add_dead(again)
    view = await desk.message_view(entry)
    assert (view.finished_at, len(view.attempts)) == (NOW + 2 * DAY + 20, 2)
    assert (await desk.ledger.statistics()).dead == 1


# -- retention -----------------------------------------------------------------------------------------------------


async def test_delivered_dead_and_keys_each_leave_at_their_own_time(desk: Desk) -> None:
    delivered = await desk.accept(key=idempotency("a"))
    await desk.deliver(delivered)
    dead = await desk.accept()
    await desk.add_dead(dead)
    assert await desk.ledger.perform(purge(NOW, NOW + 20, NOW)) == 0
    assert await desk.ledger.perform(purge(delivered=NOW + 1)) == 1
    assert await desk.ledger.message_view(delivered.message.id) is None
    assert await desk.ledger.perform(purge(dead=NOW + 21)) == 1
    assert await desk.ledger.message_view(dead.message.id) is None
    assert desk.keys() != 0
    assert await desk.ledger.perform(purge(keys=NOW + EPOCH)) == 1
    assert desk.keys() == 0


async def test_a_key_is_never_purged_before_its_time(desk: Desk) -> None:
    await desk.accept(key=idempotency("a"))
    assert await desk.ledger.perform(purge(keys=NOW)) == 0
    desk.clock.at = NOW + EPOCH - 1
    again = desk.message()
    assert await desk.ledger.perform(Accept(again, idempotency("a"))) == Duplicate(desk.messages[0].id)


async def test_a_purge_is_bounded(desk: Desk) -> None:
    for number in range(4):
        await desk.deliver(await desk.accept(key=idempotency(str(number))))
        await desk.add_dead(await desk.accept())
    everything = purge(EVER, EVER, NOW + 2 * EPOCH, limit=3)
    steps = []
    while not steps or steps[-1]:
        steps.append(await desk.ledger.perform(everything))
    assert sum(steps) == 12
    assert max(steps) == 3


@embedded("they are written as one record there")
async def test_a_group_of_deliveries_is_purged_as_one(desk: Desk) -> None:
    messages = [desk.message() for _ in range(6)]
    await desk.together(*(Accept(message) for message in messages))
    await desk.together(*(Deliver(active(message), success(), None) for message in messages))
    assert await desk.ledger.perform(purge(EVER, limit=2)) == 6
    assert dump(desk.engine)[Table.DELIVERED] == []


@mark.parametrize("size", [0, 100, 100_000])
@mark.parametrize("end", ["delivered", "dead", "replayed"])
async def test_nothing_of_a_purged_message_is_left(desk: Desk, end: str, size: int) -> None:
    entry = await desk.accept(body=bytes(size), key=idempotency("a"))
    await desk.fail(entry, retry_at(1, NOW))
    [again] = (await desk.look()).due
    await desk.fail(again, None)
    [again] = (await desk.look()).due
    if end == "delivered":
        await desk.deliver(again, number=3)
    else:
        await desk.add_dead(again)
    if end == "replayed":
        await desk.ledger.perform(replay())
        [again] = (await desk.look()).fresh
        await desk.deliver(again, number=4)
    await desk.ledger.perform(purge(EVER, EVER, NOW + 2 * EPOCH))
    assert desk.traces(entry.message.id) == []


async def test_a_sweep_is_told_of_the_oldest_of_each(desk: Desk) -> None:
    assert await desk.ledger.oldest_finished() == OldestFinished(None, None, None)
    await desk.deliver(await desk.accept(key=idempotency("a")))
    desk.clock.at += MINUTE
    await desk.deliver(await desk.accept())
    await desk.add_dead(await desk.accept())
    found = await desk.ledger.oldest_finished()
    assert (found.delivered, found.dead) == (NOW, NOW + MINUTE + 20)


async def test_a_sweep_after_the_oldest_finds_something(desk: Desk) -> None:
    await desk.deliver(await desk.accept(key=idempotency("a")))
    await desk.add_dead(await desk.accept())
    found = await desk.ledger.oldest_finished()
    desk.clock.at = found.key
    assert await desk.ledger.perform(purge(found.delivered, found.dead, found.key - 1)) == 0
    for cutoffs in ((found.delivered + 1, 0, 0), (0, found.dead + 1, 0), (0, 0, found.key)):
        assert await desk.ledger.perform(purge(*cutoffs)) == 1
