"""How owners are notified of messages, and what a replica hears between two beats, here an hour apart."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from secrets import randbits

import psycopg
import pytest
import trio

from holdfast.core.message import Entry, Message, MessageId
from holdfast.store.port import Accept, Commit, StoreListener
from holdfast.store.postgres.arrival_feed import HELD_AT_MOST, HELD_FOR_EACH, Hints
from holdfast.store.postgres.store import PostgresStore
from tests.contract.builders import HOST, HOUR, NOW, RULES
from tests.store.fleets import every_host_is_owned
from tests.store.populated import SIZE
from tests.support.harness import PATIENCE
from tests.support.trio_clock import TrioClock

HANG_UP = """SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'holdfast presence %'"""


@asynccontextmanager
async def a_replica(url: str, *, delivers: bool, notifies: bool = True) -> AsyncIterator[PostgresStore]:
    beats = {"lease": 6 * HOUR, "renew_every": HOUR}
    store = PostgresStore(
        url, RULES, TrioClock(NOW), randbits, max_size=SIZE, delivers=delivers, threaded=notifies, **beats
    )
    async with trio.open_nursery() as running:
        await running.start(store.run)
        await every_host_is_owned(store)
        yield store
        running.cancel_scope.cancel()


class Arrivals(StoreListener):
    def __init__(self, arrived: Callable[[Entry], object]) -> None:
        self._arrived = arrived

    def committed(self, commit: Commit) -> None:
        for entry in commit.arrived:
            self._arrived(entry)


@asynccontextmanager
async def owner_and_other(url: str) -> AsyncIterator[tuple[trio.MemoryReceiveChannel[MessageId], PostgresStore]]:
    """What the owner of all hosts hears of, and a replica that owns none."""
    arrivals, arrived = trio.open_memory_channel[MessageId](10)
    with trio.fail_after(PATIENCE):
        async with a_replica(url, delivers=True) as owner, a_replica(url, delivers=False) as other:
            owner.listener = Arrivals(lambda entry: arrivals.send_nowait(entry.message.id))
            assert owner.owns(HOST)
            yield arrived, other


async def accept(store: PostgresStore) -> MessageId:
    return (await accept_one(store)).id


async def accept_one(store: PostgresStore) -> Message:
    message = Message(store.mint(NOW), HOST, HOST, "https", HOST, b"/hook", "POST", (), b"{}", NOW, NOW)
    await store.perform(Accept(message))
    return message


async def test_the_owner_hears_at_once_of_each_message_that_another_one_accepted(database: str) -> None:
    async with owner_and_other(database) as (arrived, other):
        for _ in range(3):
            id = await accept(other)
            assert await arrived.receive() == id


async def test_a_server_that_hung_up_is_noticed_and_listened_to_again(database: str) -> None:
    async with owner_and_other(database) as (arrived, other):
        with psycopg.connect(database, autocommit=True) as connection:
            assert connection.execute(HANG_UP).fetchall() == [(True,)] * 2
        # What comes meanwhile the first beat after it finds, and notifications tell of the next ones.
        for _ in range(3):
            while other.unreachable:
                await trio.sleep(0.01)
            id = await accept(other)
            assert await arrived.receive() == id


async def test_its_own_message_waits_for_one_that_nobody_told_it_of_and_is_not_read_back(database: str) -> None:
    heard: list[Message] = []
    with trio.fail_after(PATIENCE):
        async with (
            a_replica(database, delivers=True) as owner,
            a_replica(database, delivers=False, notifies=False) as other,
        ):
            owner.listener = Arrivals(lambda entry: heard.append(entry.message))
            first, own = await accept_one(other), await accept_one(owner)
            while len(heard) < 2:
                await trio.sleep(0.01)
            assert heard == [first, own]
            assert heard[1] is own
            last = await accept_one(owner)
            assert heard[2:] == [last]


A_BIT = 0.001
MESSAGES = [
    Message(bytes(15) + bytes([number]), HOST, HOST, "https", HOST, b"/hook", "POST", (), b"{}", NOW, NOW)
    for number in range(3)
]


class Desk:
    """What was sent, and when."""

    def __init__(self, replicas: int) -> None:
        self.sent: list[tuple[float, list[MessageId]]] = []
        self.began = trio.current_time()
        self.hints = Hints(self._send, lambda: replicas)

    async def _send(self, ids: Sequence[MessageId], shards: Sequence[int]) -> None:
        assert len(ids) == len(shards)
        self.sent.append((round(trio.current_time() - self.began, 3), list(ids)))


@asynccontextmanager
async def desk_of(replicas: int) -> AsyncIterator[Desk]:
    desk = Desk(replicas)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.hints.run)
        yield desk
        nursery.cancel_scope.cancel()


async def test_with_one_replica_that_delivers_each_commit_notifies(autojump_clock: object) -> None:
    async with desk_of(1) as desk:
        assert [desk.hints.go_along() for _ in range(3)] == [True] * 3
    assert not desk.sent


@pytest.mark.parametrize(("replicas", "pause"), [(2, HELD_FOR_EACH), (4, 3 * HELD_FOR_EACH), (100, HELD_AT_MOST)])
async def test_what_follows_a_notification_is_held_and_shares_the_next(
    replicas: int, pause: float, autojump_clock: object
) -> None:
    async with desk_of(replicas) as desk:
        assert desk.hints.go_along()
        for message in MESSAGES[:2]:
            assert not desk.hints.go_along()
            desk.hints.hold(message)
        await trio.sleep(pause + A_BIT)
        assert not desk.hints.go_along(), "one has just gone"
        desk.hints.hold(MESSAGES[2])
        await trio.sleep(pause)
        first, second = [message.id for message in MESSAGES[:2]], [MESSAGES[2].id]
        assert desk.sent == [(round(pause, 3), first), (round(2 * pause, 3), second)]
        await trio.sleep(pause)
        assert desk.hints.go_along(), "after a pause nothing is held"
