"""What changes many messages at once, where replicas share them: claims are respected, and two at work do not get in
each other's way. And what operators are told of them.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import trio
from pytest import fixture, mark

from contract.builders import (
    DAY,
    EVER,
    EXHAUSTED,
    EXPIRE_AFTER,
    HOST,
    HOUR,
    MINUTE,
    NOW,
    attempt,
    frozen,
    lane,
    retry_at,
    success,
)
from harness import PATIENCE
from holdfast.core.circuit import CircuitState
from holdfast.core.lane import Lane
from holdfast.core.message import Entry, Fault, Message, Place, Standing, State
from holdfast.store.port import (
    Accept,
    Ask,
    DeadFilter,
    Deliver,
    DropDead,
    DropMessages,
    Expire,
    Fail,
    Forget,
    HandOver,
    MessageFilter,
    Purge,
    ReplayDead,
    Report,
    Retried,
    RetryNow,
    SaveLane,
    Shelve,
    Verdict,
)
from holdfast.store.postgres.store import PostgresStore
from store.test_postgres_transfer import a_replica, execute

OTHER = "other:443"


@fixture
async def replicas(database: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    async with trio.open_nursery() as running:
        yield await a_replica(running, database), await a_replica(running, database)
        running.cancel_scope.cancel()


@fixture
def store(replicas: tuple[PostgresStore, PostgresStore]) -> PostgresStore:
    return replicas[0]


@fixture
def other(replicas: tuple[PostgresStore, PostgresStore]) -> PostgresStore:
    return replicas[1]


async def accept(store: PostgresStore, key: str = HOST, *, host: str | None = None, delay: int = 0) -> Entry:
    """A message that is this replica's, unless it is delayed."""
    host = host or key
    message = Message(store.mint(NOW), key, host, "https", host, b"/hook", "POST", (), b"{}", NOW, NOW + delay)
    await store.perform(Accept(message))
    return Entry(message, Place(Standing.ACTIVE, NOW), store.number)


async def wait(store: PostgresStore, key: str = HOST) -> Entry:
    """One that is nobody's."""
    entry = await accept(store, key)
    await store.perform(Shelve([entry.message]))
    return entry


async def bury(store: PostgresStore, key: str = HOST, **of: Any) -> Entry:
    entry = await accept(store, key, **of)
    await store.perform(Fail(entry, attempt(), EXHAUSTED, lane(key, host=entry.message.host)))
    return entry


async def claim(store: PostgresStore, key: str = HOST, at: int = NOW) -> list[Entry]:
    [view] = await store.survey([Ask(key, at, 100, 100, None, frozenset())])
    return view.fresh + view.due


async def save(store: PostgresStore, *lanes: Lane) -> None:
    for each in lanes:
        await store.perform(SaveLane(each))


async def state_of(store: PostgresStore, entry: Entry) -> State:
    story = await store.story(entry.message.id)
    assert story is not None
    return story.state


@contextmanager
def locking(url: str, statement: str) -> Iterator[psycopg.Connection[Any]]:
    """Someone else's transaction that has not come to its end."""
    with psycopg.connect(url) as connection:
        connection.execute("SET search_path TO holdfast")
        connection.execute(statement.encode())
        yield connection


async def someone_waits(url: str) -> None:
    """Until a transaction waits for another one."""
    with trio.fail_after(PATIENCE):
        while not execute(url, "SELECT 1 FROM pg_locks WHERE NOT granted"):
            await trio.sleep(0.01)


# -- expiry ------------------------------------------------------------------------------------------------------------


async def test_what_a_replica_has_claimed_does_not_expire(store: PostgresStore, other: PostgresStore) -> None:
    await wait(store)
    [mine] = await claim(store)
    free = await wait(store)
    await save(store, frozen())
    assert await other.perform(Expire(HOST, EVER, NOW + DAY, 10)) == [free.message.id]
    assert await state_of(store, mine) is State.HELD


async def test_nothing_expires_in_a_circuit_that_is_enabled(store: PostgresStore) -> None:
    entry = await wait(store)
    assert await store.perform(Expire(HOST, EVER, NOW + DAY, 10)) == []
    assert await state_of(store, entry) is State.QUEUED


async def test_nothing_expires_in_a_circuit_that_is_just_enabled(database: str, store: PostgresStore) -> None:
    entry = await wait(store)
    await save(store, frozen())
    expired: list[Any] = []

    async def expire() -> None:
        expired.append(await store.perform(Expire(HOST, EVER, NOW + DAY, 10)))

    async with trio.open_nursery() as nursery:
        with locking(database, "UPDATE lanes SET state = 0"):
            nursery.start_soon(expire)
            await someone_waits(database)
    assert expired == [[]]
    assert await state_of(store, entry) is State.QUEUED


async def test_expiry_leaves_what_another_one_has_locked(database: str, store: PostgresStore) -> None:
    first, second = await wait(store), await wait(store)
    await save(store, frozen())
    held = f"SELECT 1 FROM messages WHERE id = '\\x{first.message.id.hex()}' FOR UPDATE"
    with locking(database, held):
        assert await store.perform(Expire(HOST, EVER, NOW + DAY, 10)) == [second.message.id]


# -- replay and retry --------------------------------------------------------------------------------------------------


async def test_a_replay_approaches_the_host_carefully_for_the_whole_fleet(
    database: str, store: PostgresStore, other: PostgresStore
) -> None:
    await bury(store, "https://h/x", host=HOST)
    await save(store, lane("https://h/y", host=HOST))
    execute(database, "UPDATE hosts SET streak = 3")
    await store.perform(ReplayDead(DeadFilter(), NOW, 10))
    assert execute(database, "SELECT host, most, streak FROM hosts") == [(HOST, 1, 0)]
    view = await other.circuit("https://h/y")
    assert view is not None
    assert view.record.limit == 1


async def test_two_replays_at_once_give_a_message_one_life(database: str, store: PostgresStore) -> None:
    entry = await bury(store)
    swept: list[Any] = []

    async def replay() -> None:
        swept.append((await store.perform(ReplayDead(DeadFilter(), NOW + DAY, 10))).ids)

    async with trio.open_nursery() as nursery:
        with locking(database, "UPDATE messages SET standing = 1, reason = NULL"):
            nursery.start_soon(replay)
            await someone_waits(database)
    assert swept == [[]]
    story = await store.story(entry.message.id)
    assert story is not None
    assert story.place is not None
    assert story.place.born == NOW


async def test_a_replay_wakes_its_lane_and_tells_the_others(store: PostgresStore, other: PostgresStore) -> None:
    called = trio.Event()
    await bury(store)
    assert (await other.agenda(NOW + DAY, 10, ())).lanes == []
    other.on_call = lambda key: called.set()
    await store.perform(ReplayDead(DeadFilter(), NOW, 10))
    with trio.fail_after(PATIENCE):
        await called.wait()
    assert (await other.agenda(NOW, 10, ())).lanes == [HOST]


async def test_a_retry_of_what_is_claimed_leaves_it_to_whom_it_is(store: PostgresStore, other: PostgresStore) -> None:
    entry = await accept(store)
    await store.perform(Fail(entry, attempt(), retry_at(1, NOW + MINUTE), lane()))
    [claimed] = await claim(other, at=NOW + MINUTE)
    assert await store.perform(RetryNow(entry.message.id, NOW)) is Retried.DUE
    story = await store.story(entry.message.id)
    assert story is not None
    assert story.place == claimed.place
    await other.perform(Deliver(claimed, success(2), None))
    assert await state_of(store, entry) is State.DELIVERED


async def test_a_retry_in_a_frozen_circuit_lets_it_expire_sooner(store: PostgresStore) -> None:
    entry = await accept(store, delay=HOUR)
    await save(store, frozen())
    assert (await store.agenda(0, 1, ())).next == NOW + HOUR + EXPIRE_AFTER
    await store.perform(RetryNow(entry.message.id, NOW))
    assert (await store.agenda(0, 1, ())).next == NOW + EXPIRE_AFTER


# -- drop and hand over ------------------------------------------------------------------------------------------------


async def test_an_outcome_of_what_was_dropped_is_ignored(store: PostgresStore, other: PostgresStore) -> None:
    entry = await accept(other)
    swept = await store.perform(DropMessages(MessageFilter(), 10))
    assert swept.ids == [entry.message.id]
    report = Report(0, NOW, NOW, probe=False, fault=None)
    assert await other.perform(Deliver(entry, success(), lane(), report)) == Verdict(None, fenced=True)
    assert await store.story(entry.message.id) is None
    statistics = await store.statistics()
    assert (statistics.waiting, statistics.used_bytes) == (0, 0)


async def test_what_became_something_else_meanwhile_is_not_dropped(database: str, store: PostgresStore) -> None:
    entry = await wait(store)
    dropped: list[Any] = []

    async def drop() -> None:
        dropped.append((await store.perform(DropMessages(MessageFilter(state=State.QUEUED), 10))).ids)

    async with trio.open_nursery() as nursery:
        with locking(database, "UPDATE messages SET standing = 2, retry = 1, due = 1"):
            nursery.start_soon(drop)
            await someone_waits(database)
    assert dropped == [[]]
    assert await state_of(store, entry) is State.RETRYING


async def test_what_can_not_be_read_can_be_dropped(database: str, store: PostgresStore) -> None:
    entry, dead = await wait(store), await bury(store, OTHER)
    execute(database, "UPDATE messages SET record = 'garbage'")
    assert (await store.perform(DropMessages(MessageFilter(HOST), 10))).ids == [entry.message.id]
    assert (await store.perform(DropDead(DeadFilter(), 10))).ids == [dead.message.id]
    sums = "sum(first), sum(retry), sum(dead), sum(bytes)"
    assert execute(database, f"SELECT {sums} FROM counters GROUP BY host, lane") == [(0, 0, 0, 0)] * 2


async def test_what_another_replica_has_is_not_handed_over(store: PostgresStore, other: PostgresStore) -> None:
    theirs = await accept(other)
    await accept(store)
    await wait(store, OTHER)
    page, _ = await store.waiting(None, 10)
    assert len(page) == 3
    assert await store.perform(HandOver(page)) == 2
    assert [each.message.id for each in (await store.waiting(None, 10))[0]] == [theirs.message.id]


# -- forgetting and retention ------------------------------------------------------------------------------------------


@mark.parametrize("by", ["store", "other"])
async def test_a_lane_whose_messages_are_claimed_is_not_forgotten(
    store: PostgresStore, other: PostgresStore, by: str
) -> None:
    entry = await accept(store)
    forgetter = {"store": store, "other": other}[by]
    assert await forgetter.perform(Forget(HOST)) is False
    await store.perform(Deliver(entry, success(), None))
    assert await forgetter.perform(Forget(HOST)) is True
    assert (await store.agenda(EVER, 10, ())).lanes == []


async def test_a_host_is_forgotten_with_its_last_lane(
    database: str, store: PostgresStore, other: PostgresStore
) -> None:
    for key in ("https://h/x", "https://h/y"):
        entry = await accept(store, key, host=HOST)
        await store.perform(Deliver(entry, success(), None))
    assert len(execute(database, "SELECT * FROM counters")) == 4
    assert await other.perform(Forget("https://h/x")) is True
    assert execute(database, "SELECT host FROM hosts") == [(HOST,)]
    assert await other.perform(Forget("https://h/y")) is True
    for table in ("lanes", "hosts", "wakes", "counters"):
        assert execute(database, f"SELECT * FROM {table}") == [], table


async def test_counts_of_the_dead_stay_when_their_lane_is_forgotten(store: PostgresStore) -> None:
    await bury(store)
    assert await store.perform(Forget(HOST)) is True
    statistics = await store.statistics()
    assert (statistics.dead, statistics.circuits[CircuitState.ENABLED]) == (1, 0)
    assert statistics.used_bytes > 4_096


async def test_two_sweeps_at_once_remove_each_record_once(
    database: str, store: PostgresStore, other: PostgresStore
) -> None:
    for _ in range(3):
        await store.perform(Deliver(await accept(store), success(), None))
        await bury(store)
    everything = Purge(EVER, EVER, EVER, 100)
    first = "SELECT id FROM {} ORDER BY id LIMIT 1 FOR UPDATE"
    with locking(database, first.format("delivered")) as held:
        held.execute(first.format("messages").encode())
        assert await other.perform(everything) == 4
    assert await store.perform(everything) == 2
    assert execute(database, "SELECT * FROM attempts") == []


# -- what operators are told -------------------------------------------------------------------------------------------


async def test_the_oldest_may_be_one_that_is_claimed(store: PostgresStore, other: PostgresStore) -> None:
    await accept(other)
    await accept(store, OTHER, delay=HOUR)
    statistics = await store.statistics()
    assert (statistics.oldest_waiting_at, statistics.next_due_at) == (NOW, NOW + HOUR)
    [view], _ = await store.circuits(None, None, 1)
    assert (view.record.key, view.waiting, view.oldest) == (HOST, 1, NOW)


async def test_the_first_of_all_lanes_is_found_wherever_it_is(database: str, store: PostgresStore) -> None:
    for number, key in enumerate(("b", "a", "d", "c")):
        await wait(store, key)
        await accept(store, key, delay=HOUR + number)
    execute(database, "UPDATE messages SET born = born - 7 WHERE lane = 'd' AND standing = 1")
    execute(database, "UPDATE messages SET due = 3 WHERE lane = 'c' AND standing = 2")
    await save(store, frozen("a"), frozen("d"))
    found = await store.statistics()
    assert (found.oldest_waiting_at, found.next_due_at, found.earliest_expiry_at) == (NOW - 7, 3, NOW + EXPIRE_AFTER)


async def test_records_that_can_not_be_read_are_told_of_once(database: str, store: PostgresStore) -> None:
    told: list[tuple[str, str]] = []
    store.on_broken = lambda table, key, what: told.append((table, key))
    entries = [await wait(store) for _ in range(2)]
    execute(database, "UPDATE messages SET record = 'garbage' WHERE id = %s", entries[0].message.id)
    execute(database, "UPDATE lanes SET record = 'garbage'")
    for _ in range(2):
        page, _ = await store.stories(None, None, None, 10)
        assert [story.message.id for story in page] == [entries[1].message.id]
        assert await store.circuits(None, None, 10) == ([], None)
    assert told == [("messages", entries[0].message.id.hex()), ("lanes", HOST.encode().hex())]


async def test_a_page_of_stories_without_larger_bodies_and_one_with_its_own(store: PostgresStore) -> None:
    message = Message(store.mint(NOW), HOST, HOST, "https", HOST, b"/", "POST", (), b"x" * 9_000, NOW, NOW)
    await store.perform(Accept(message))
    [page], _ = await store.stories(None, HOST, None, 10)
    assert (page.size, page.message.body) == (9_000, b"")
    story = await store.story(message.id)
    assert story is not None
    assert (story.message, story.attempts) == (message, [])


async def test_failed_attempts_are_told_with_their_answers(store: PostgresStore) -> None:
    entry = await accept(store)
    report = Report(0, NOW, NOW, probe=False, fault=Fault.HOST)
    await store.perform(Fail(entry, attempt(), retry_at(1, NOW), lane(), report))
    story = await store.story(entry.message.id)
    assert story is not None
    assert story.attempts == [attempt()]
