"""What a replica hears between two beats, here an hour apart: what others accepted for it, and that the server has
hung up.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from secrets import randbits

import psycopg
import trio

from holdfast.clock import TrioClock
from holdfast.core.message import Message, MessageId
from holdfast.store.port import Accept
from holdfast.store.postgres.store import PostgresStore
from tests.contract.builders import HOST, HOUR, NOW, RULES
from tests.store.fleets import every_host_is_owned
from tests.store.populated import SIZE
from tests.support.harness import PATIENCE

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


@asynccontextmanager
async def owner_and_other(url: str) -> AsyncIterator[tuple[trio.MemoryReceiveChannel[MessageId], PostgresStore]]:
    """What the owner of all hosts hears of, and a replica that owns none."""
    arrivals, arrived = trio.open_memory_channel[MessageId](10)
    with trio.fail_after(PATIENCE):
        async with a_replica(url, delivers=True) as owner, a_replica(url, delivers=False) as other:
            owner.on_arrived = lambda entry: arrivals.send_nowait(entry.message.id)
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
            while other.away:
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
            owner.on_arrived = lambda entry: heard.append(entry.message)
            owner.on_accepted = lambda message, active: heard.append(message)
            first, own = await accept_one(other), await accept_one(owner)
            while len(heard) < 2:
                await trio.sleep(0.01)
            assert heard == [first, own]
            assert heard[1] is own
            last = await accept_one(owner)
            assert heard[2:] == [last]
