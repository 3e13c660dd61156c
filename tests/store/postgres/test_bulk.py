"""What changes many messages at once, where replicas share them: dead letters are anyone's, all else is its owner's.
And what operators are told of them.
"""

from collections.abc import AsyncIterator
from typing import Any

import trio
from pytest import fixture

from holdfast.core.circuit import CircuitState
from holdfast.core.lane import Lane
from holdfast.core.message import Entry, Message, MessageState, Place, Standing
from holdfast.core.ownership import SHARDS
from holdfast.store.port import (
    Accept,
    DeadFilter,
    Deliver,
    DropDead,
    DropMessages,
    Fail,
    Forget,
    MessageFilter,
    Purge,
    ReplayDead,
    RetryNow,
    SaveLane,
    Shelve,
)
from tests.contract.builders import (
    EVER,
    EXHAUSTED,
    EXPIRE_AFTER,
    HOST,
    HOUR,
    NOW,
    HandClock,
    attempt,
    disabled,
    frozen,
    lane,
    retry_at,
    success,
)
from tests.store.fleets import Replica, fleet
from tests.store.postgres.test_export_and_restore import execute
from tests.support.harness import PATIENCE

OTHER = "other:443"


@fixture
async def store(database: str) -> AsyncIterator[Replica]:
    """The owner of every host."""
    async with fleet(database, HandClock()) as store:
        yield store


@fixture
async def replicas(database: str) -> AsyncIterator[tuple[Replica, Replica]]:
    """Two that share the hosts out."""
    async with fleet(database, HandClock()) as one, fleet(database, HandClock()) as two:
        with trio.fail_after(PATIENCE):
            while sum(len(each._shards.owned) for each in (one, two)) < SHARDS or not two._shards.owned:
                await trio.sleep(0.01)
        yield one, two


def owner_of(host: str, replicas: tuple[Replica, Replica]) -> tuple[Replica, Replica]:
    """The owner of a host, and the other one."""
    one, two = replicas
    return (one, two) if one.owns(host) else (two, one)


async def accept(store: Replica, key: str = HOST, *, host: str | None = None, delay: int = 0) -> Entry:
    """A message that its owner has in memory."""
    host = host or key
    message = Message(store.mint(NOW), key, host, "https", host, b"/hook", "POST", (), b"{}", NOW, NOW + delay)
    await store.perform(Accept(message))
    return Entry(message, Place(Standing.ACTIVE, NOW, NOW + delay if delay else 0))


async def wait(store: Replica, key: str = HOST, **of: Any) -> Entry:
    """One in its lane's queue."""
    entry = await accept(store, key, **of)
    await store.perform(Shelve([entry.message]))
    return entry


async def add_dead(store: Replica, key: str = HOST, **of: Any) -> Entry:
    entry = await accept(store, key, **of)
    await store.perform(Fail(entry, attempt(), EXHAUSTED, lane(key, host=entry.message.host)))
    return entry


async def save(store: Replica, *lanes: Lane) -> None:
    for each in lanes:
        await store.perform(SaveLane(each))


# -- dead letters, by anyone -------------------------------------------------------------------------------------------


async def test_a_replay_anywhere_brings_messages_to_their_owner_in_order(replicas: tuple[Replica, Replica]) -> None:
    owner, other = owner_of(HOST, replicas)
    entries = [await add_dead(owner) for _ in range(5)]
    before = len(owner.arrivals)
    swept = await other.perform(ReplayDead(DeadFilter(), NOW + HOUR, 10))
    assert swept.ids == [entry.message.id for entry in entries]
    came = (await owner.given(HOST, before + 5))[before:]
    assert [entry.message.id for entry in came] == swept.ids
    assert {entry.place for entry in came} == {Place(Standing.ACTIVE, NOW + HOUR, 0, 0, 1)}


async def test_two_replays_at_once_give_each_message_one_life(replicas: tuple[Replica, Replica]) -> None:
    owner, _ = owner_of(HOST, replicas)
    dead = [(await add_dead(owner)).message.id for _ in range(40)]
    swept: list[bytes] = []

    async def replay(by: Replica) -> None:
        while ids := (await by.perform(ReplayDead(DeadFilter(), NOW, 7))).ids:
            swept.extend(ids)

    async with trio.open_nursery() as nursery:
        for each in replicas:
            nursery.start_soon(replay, each)
    assert sorted(swept) == sorted(dead)
    assert (await owner.statistics())[4:6] == (40, 0)


async def test_two_sweeps_at_once_remove_each_record_once(database: str, replicas: tuple[Replica, Replica]) -> None:
    owner, _ = owner_of(HOST, replicas)
    for _ in range(20):
        await owner.perform(Deliver(await accept(owner), success(), None))
        await add_dead(owner)
    removed: list[int] = []

    async def purge(by: Replica) -> None:
        while some := await by.perform(Purge(EVER, EVER, EVER, 3)):
            removed.append(some)

    async with trio.open_nursery() as nursery:
        for each in replicas:
            nursery.start_soon(purge, each)
    assert sum(removed) == 40
    assert execute(database, "SELECT 1 FROM attempts UNION ALL SELECT 1 FROM delivered") == []
    assert (await owner.statistics()).used_bytes == 0


async def test_dead_letters_of_any_host_are_dropped_anywhere(replicas: tuple[Replica, Replica]) -> None:
    owner, other = owner_of(HOST, replicas)
    entry = await add_dead(owner)
    assert (await other.perform(DropDead(DeadFilter(), 10))).ids == [entry.message.id]
    assert (await owner.statistics()).used_bytes == 0


# -- what waits, by its owner ------------------------------------------------------------------------------------------


async def test_only_the_owner_drops_what_waits(replicas: tuple[Replica, Replica]) -> None:
    owner, other = owner_of(HOST, replicas)
    entry = await wait(owner)
    assert (await other.perform(DropMessages(MessageFilter(), 10))).ids == []
    assert (await owner.perform(DropMessages(MessageFilter(), 10))).ids == [entry.message.id]


async def test_an_outcome_of_what_was_dropped_is_ignored(store: Replica) -> None:
    entry = await accept(store)
    swept = await store.perform(DropMessages(MessageFilter(), 10))
    assert swept.ids == [entry.message.id]
    await store.perform(Deliver(entry, success(), lane()))
    assert await store.message_view(entry.message.id) is None
    statistics = await store.statistics()
    assert (statistics.waiting, statistics.used_bytes) == (0, 0)


async def test_what_can_not_be_read_can_be_dropped(database: str, store: Replica) -> None:
    entry, dead = await wait(store), await add_dead(store, OTHER)
    execute(database, "UPDATE messages SET record = 'garbage'")
    assert (await store.perform(DropMessages(MessageFilter(HOST), 10))).ids == [entry.message.id]
    assert (await store.perform(DropDead(DeadFilter(), 10))).ids == [dead.message.id]
    sums = "sum(first), sum(retry), sum(dead), sum(bytes)"
    assert execute(database, f"SELECT {sums} FROM counters GROUP BY host, lane") == [(0, 0, 0, 0)] * 2


async def test_a_retry_in_a_frozen_circuit_lets_it_expire_sooner(store: Replica) -> None:
    entry = await wait(store, delay=HOUR)
    await save(store, frozen())
    assert (await store.agenda(0, 1, ())).next == NOW + HOUR + EXPIRE_AFTER
    await store.perform(RetryNow(entry.message.id, NOW, entry.message.lane, entry.message.host))
    assert (await store.agenda(0, 1, ())).next == NOW + EXPIRE_AFTER


async def test_a_lane_whose_messages_wait_is_not_forgotten(store: Replica) -> None:
    entry = await accept(store)
    await save(store, lane())
    assert await store.perform(Forget(HOST)) is False
    await store.perform(Deliver(entry, success(), None))
    assert await store.perform(Forget(HOST)) is True
    assert (await store.agenda(EVER, 10, ())).lanes == []


async def test_nothing_is_left_of_hosts_whose_lanes_are_forgotten(database: str, store: Replica) -> None:
    for key in ("https://h/x", "https://h/y"):
        entry = await accept(store, key, host=HOST)
        await store.perform(Deliver(entry, success(), lane(key, host=HOST)))
    for key in ("https://h/x", "https://h/y"):
        assert await store.perform(Forget(key)) is True
    for table in ("lanes", "counters"):
        assert execute(database, f"SELECT * FROM {table}") == [], table


async def test_counts_of_the_dead_stay_when_their_lane_is_forgotten(store: Replica) -> None:
    await add_dead(store)
    assert await store.perform(Forget(HOST)) is True
    statistics = await store.statistics()
    assert (statistics.dead, statistics.circuits[CircuitState.ENABLED]) == (1, 0)
    assert statistics.used_bytes > 4_096


# -- what operators are told -------------------------------------------------------------------------------------------


async def test_the_oldest_may_be_one_that_is_in_memory(store: Replica) -> None:
    await accept(store)
    await wait(store, OTHER, delay=HOUR)
    statistics = await store.statistics()
    assert (statistics.oldest_waiting_at, statistics.next_due_at) == (NOW, NOW + HOUR)


async def test_the_first_of_all_lanes_is_found_wherever_it_is(database: str, store: Replica) -> None:
    for number, key in enumerate(("b", "a", "d", "c")):
        await wait(store, key)
        await wait(store, key, delay=HOUR + number)
    execute(database, "UPDATE messages SET born = born - 7 WHERE lane = 'd' AND standing = 1")
    execute(database, "UPDATE messages SET due = 3 WHERE lane = 'c' AND standing = 2")
    await save(store, frozen("a"), disabled("b"))
    found = await store.statistics()
    assert (found.oldest_waiting_at, found.next_due_at, found.earliest_expiry_at) == (NOW - 7, 3, NOW + EXPIRE_AFTER)


async def test_what_arrived_and_is_due_later_is_told_as_a_retry(store: Replica) -> None:
    delayed = await accept(store, delay=HOUR)
    view = await store.message_view(delayed.message.id)
    assert view is not None
    assert (view.state, view.place) == (
        MessageState.QUEUED,
        Place(Standing.RETRY, NOW + HOUR, NOW + HOUR, held=True),
    )


async def test_records_that_can_not_be_read_are_told_of_once(database: str, store: Replica) -> None:
    entries = [await wait(store) for _ in range(2)]
    execute(database, "UPDATE messages SET record = 'garbage' WHERE id = %s", entries[0].message.id)
    execute(database, "UPDATE lanes SET record = 'garbage'")
    for _ in range(2):
        page, _ = await store.message_views(None, None, None, 10)
        assert [view.message.id for view in page] == [entries[1].message.id]
        assert await store.circuits(None, None, 10) == ([], None)
    assert store.recorder.unreadable == [("messages", entries[0].message.id.hex()), ("lanes", HOST.encode().hex())]


async def test_a_page_of_stories_without_larger_bodies_and_one_with_its_own(store: Replica) -> None:
    message = Message(store.mint(NOW), HOST, HOST, "https", HOST, b"/", "POST", (), b"x" * 9_000, NOW, NOW)
    await store.perform(Accept(message))
    [page], _ = await store.message_views(None, HOST, None, 10)
    assert (page.size, page.message.body) == (9_000, b"")
    view = await store.message_view(message.id)
    assert view is not None
    assert (view.message, view.attempts) == (message, [])


async def test_failed_attempts_are_told_with_their_answers(store: Replica) -> None:
    entry = await accept(store)
    await store.perform(Fail(entry, attempt(), retry_at(1, NOW), lane()))
    view = await store.message_view(entry.message.id)
    assert view is not None
    assert view.attempts == [attempt()]
