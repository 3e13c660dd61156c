"""What a replica hears between two beats, here an hour apart: calls at once, and that the server has hung up."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from secrets import randbits

import psycopg
import trio

from contract.builders import HOST, HOUR, RULES, HandClock
from harness import PATIENCE
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.postgres.waking import CHANNEL
from store.populated import SIZE

HANG_UP = """SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'holdfast presence %'"""


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[trio.MemoryReceiveChannel[str]]:
    """A replica that is there for as long as the block, and the lanes that it is called to."""
    store = PostgresStore(url, RULES, HandClock(), randbits, max_size=SIZE, lease=6 * HOUR, renew_every=HOUR)
    calls, called = trio.open_memory_channel[str](10)
    store.on_call = calls.send_nowait
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as running:
            await running.start(store.run)
            yield called
            running.cancel_scope.cancel()


def call(url: str, lane: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, lane))


async def test_a_call_is_heard_at_once_and_so_is_the_next(database: str) -> None:
    async with listening(database) as called:
        for lane in (HOST, "other:443"):
            call(database, lane)
            assert await called.receive() == lane


async def test_a_server_that_hung_up_is_noticed_and_listened_to_again(database: str) -> None:
    async with listening(database) as called:
        with psycopg.connect(database, autocommit=True) as connection:
            assert connection.execute(HANG_UP).fetchall() == [(True,)]
        while not called.statistics().current_buffer_used:
            call(database, HOST)
            await trio.sleep(0.02)
        assert await called.receive() == HOST
