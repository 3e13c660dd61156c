"""Messages are acknowledged on this machine's disk while the database is unreachable, and moved when it is back."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import trio
import trio.testing
from pytest import fixture, skip

from holdfast.core.errors import StoreFull
from holdfast.core.message import Message
from holdfast.store.embedded.ledger import Ledger
from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.embedded.spool import Spool
from holdfast.store.embedded.tables import Table
from holdfast.store.port import Accept, Accepted, Duplicate
from holdfast.store.postgres import accept
from holdfast.store.waiter import Waiter
from tests.contract.builders import HOST, NOW, RULES, HandClock
from tests.store.fleets import Replica, fleet, ids_in, keyed, rows
from tests.store.populated import Populated, build, put
from tests.store.recorder import Recorder
from tests.support.harness import PATIENCE
from tests.support.postgres import ELSEWHERE, OwnServer

OTHER = "other:443"
ACKNOWLEDGED = "acknowledged"


@fixture(scope="module")
def its_server() -> Iterator[OwnServer]:
    if ELSEWHERE is not None:
        skip("HOLDFAST_TEST_POSTGRES names a server that is not ours to stop")
    server = OwnServer()
    yield server
    server.close()


@fixture
def server(its_server: OwnServer) -> Iterator[OwnServer]:
    """One that runs, at the beginning and at the end."""
    yield its_server
    if not (its_server.folder / "data" / "postmaster.pid").exists():
        its_server.start()


class Counter:
    """An app at the counter: sends messages to a spool and remembers what was acknowledged, in that order."""

    def __init__(self, spool: Spool, store: Replica, clock: HandClock) -> None:
        self.spool = spool
        self.store = store
        self.clock = clock
        self.acknowledged: list[Message] = []
        self.recorder = spool.listener = Recorder()
        self.began, self.moved = self.recorder.spools_filled, self.recorder.spools_emptied

    async def send(self, host: str = HOST, body: bytes = b"{}", key: str | None = None) -> Any:
        self.clock.at += 1
        now = self.clock.at
        given = keyed(key, host, body) if key else {"key": None, "headers": ()}
        message = Message(
            self.spool.mint(now), host, host, "https", host, b"/hook", "POST", given["headers"], body, now, now
        )
        waiter = Waiter()
        self.spool.submit(Accept(message, given["key"], done=waiter))
        try:
            result = await trio.lowlevel.wait_task_rescheduled(waiter.abandon)
        except StoreFull as full:
            return full
        if isinstance(result, Accepted):
            self.acknowledged.append(message)
            return ACKNOWLEDGED
        return result

    @property
    def ids(self) -> list[bytes]:
        return [message.id for message in self.acknowledged]


@asynccontextmanager
async def counter(folder: Path, url: str, clock: HandClock, size: int = 1 << 30) -> AsyncIterator[Counter]:
    engine = LmdbEngine(folder, size)
    try:
        async with fleet(url, clock) as store:
            ledger = Ledger(engine, RULES, clock, lambda bits: 0)
            ledger.open()
            spool = Spool(store, ledger, RULES, clock)
            at = Counter(spool, store, clock)
            async with trio.open_nursery() as nursery:
                await nursery.start(spool.run)
                yield at
                nursery.cancel_scope.cancel()
    finally:
        engine.close()


@fixture
def damaged(tmp_path: Path) -> Populated:
    """An embedded store that a sidecar left, with one record that can't be read."""
    store = build(tmp_path / "store")
    put(store, Table.MESSAGES, store["waiting"], b"\xc1")
    return store


async def until(condition: Callable[[], Any]) -> None:
    with trio.fail_after(PATIENCE):
        while not condition():
            await trio.sleep(0.01)


@contextmanager
def nothing_arrives(url: str):
    """Messages that move there wait, all else goes on: only they need a key."""
    with psycopg.connect(url) as connection:
        connection.execute("LOCK TABLE holdfast.keys IN EXCLUSIVE MODE")
        yield


class Between:
    """What stands between a replica and its database. `cut`: of the next commit the answer does not come back."""

    def __init__(self, server: OwnServer) -> None:
        self._server = server
        self.cut = False
        self.committed = trio.Event()

    async def start(self, nursery: trio.Nursery, url: str) -> str:
        [listener] = await nursery.start(partial(trio.serve_tcp, self._carry, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        return url.replace(f":{self._server.port}/", f":{port}/")

    async def _carry(self, client: trio.SocketStream) -> None:
        behind = await trio.open_tcp_stream("127.0.0.1", self._server.port)
        muted = trio.Event()

        async def there() -> None:
            async for some in client:
                if self.cut and (b"COMMIT" in some or accept.INSERT._name in some):
                    self.cut = False
                    muted.set()
                await behind.send_all(some)

        async def back() -> None:
            async for some in behind:
                if muted.is_set():
                    self.committed.set()
                    return
                await client.send_all(some)

        async with client, behind, trio.open_nursery() as nursery:
            for way in (there, back):

                async def carry(way: Callable[[], Awaitable[None]] = way) -> None:
                    with suppress(trio.BrokenResourceError):
                        await way()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(carry)


async def test_what_was_committed_without_an_answer_is_one_message(tmp_path: Path, server: OwnServer) -> None:
    url = server.fresh_database()
    between = Between(server)
    async with trio.open_nursery() as nursery:
        through = await between.start(nursery, url)
        async with counter(tmp_path / "store", through, HandClock()) as at:
            await at.send()
            between.cut = True
            assert await at.send() == ACKNOWLEDGED
            assert between.committed.is_set()
            with trio.fail_after(PATIENCE):
                await at.spool.wait_empty()
            assert at.moved == [(1, 1, 0)]
            assert ids_in(url) == at.ids
            # It was stored as this replica's own, and comes into its memory with what was moved.
            assert [entry.message.id for entry in await at.store.given(HOST, 2)] == at.ids
        nursery.cancel_scope.cancel()


async def test_messages_are_kept_while_the_database_is_unreachable_and_then_moved(
    tmp_path: Path, server: OwnServer
) -> None:
    url = server.fresh_database()
    async with counter(tmp_path / "store", url, HandClock()) as at:
        assert await at.send() == ACKNOWLEDGED
        assert (at.spool.count, at.spool.since) == (0, None)
        await trio.to_thread.run_sync(server.stop, "immediate")
        results = [await at.send(host) for host in (HOST, OTHER) * 20]
        assert results == [ACKNOWLEDGED] * 40
        assert (at.spool.count, at.spool.since, at.began) == (40, NOW + 2, [0])
        await trio.to_thread.run_sync(server.start)
        with trio.fail_after(PATIENCE):
            await at.spool.wait_empty()
        assert ids_in(url) == sorted(at.ids)
        assert at.moved == [(40, 0, 0)]
        assert (at.spool.count, at.spool.since) == (0, None)
        await at.send()
        assert (at.spool.count, at.began) == (0, [0])
        for host in (HOST, OTHER):
            sent = [message.id for message in at.acknowledged if message.host == host]
            assert [entry.message.id for entry in await at.store.given(host, len(sent))] == sent


async def test_a_host_gets_nothing_past_what_is_still_here_and_others_do_not_wait(
    tmp_path: Path, server: OwnServer
) -> None:
    url = server.fresh_database()
    async with counter(tmp_path / "store", url, HandClock()) as at:
        await trio.to_thread.run_sync(server.stop)
        for _ in range(10):
            await at.send()
        await trio.to_thread.run_sync(server.start)
        async with trio.open_nursery() as nursery:
            with nothing_arrives(url):
                await until(lambda: rows(url, "SELECT 1 FROM pg_locks WHERE NOT granted"))
                await at.send(OTHER)
                nursery.start_soon(at.send)
                await trio.testing.wait_all_tasks_blocked()
                await at.send(OTHER)
                assert ids_in(url) == [message.id for message in at.acknowledged if message.host == OTHER]
        with trio.fail_after(PATIENCE):
            await at.spool.wait_empty()
        assert ids_in(url) == sorted(at.ids)
        sent = [message.id for message in at.acknowledged if message.host == HOST]
        assert [entry.message.id for entry in await at.store.given(HOST, len(sent))] == sent


async def test_a_host_that_gets_messages_all_the_time_leaves_the_spool(tmp_path: Path, server: OwnServer) -> None:
    url = server.fresh_database()
    async with counter(tmp_path / "store", url, HandClock()) as at:
        await trio.to_thread.run_sync(server.stop)
        await at.send()

        over = trio.Event()

        async def app() -> None:
            while not over.is_set():
                await at.send()

        async with trio.open_nursery() as nursery:
            for _ in range(32):
                nursery.start_soon(app)
            await until(lambda: at.spool.count > 3000)
            await trio.to_thread.run_sync(server.start)
            with trio.fail_after(PATIENCE):
                await at.spool.wait_empty()
            over.set()
        assert ids_in(url) == sorted(at.ids)


async def test_what_an_earlier_run_left_is_moved_first(tmp_path: Path, server: OwnServer) -> None:
    url = server.fresh_database()
    clock = HandClock()
    async with counter(tmp_path / "store", url, clock) as at:
        await trio.to_thread.run_sync(server.stop)
        for _ in range(10):
            await at.send()
        left = at.ids
    async with counter(tmp_path / "store", url, clock) as at:
        assert (at.spool.count, at.spool.since, at.began) == (10, NOW + 1, [10])
        await at.send()
        assert at.spool.count == 11
        await trio.to_thread.run_sync(server.start)
        with trio.fail_after(PATIENCE):
            await at.spool.wait_empty()
        assert ids_in(url) == [*left, *at.ids]


async def test_an_embedded_store_s_messages_are_moved_and_what_can_not_be_read_holds_up_nothing(
    tmp_path: Path, damaged: Populated, server: OwnServer
) -> None:
    url = server.fresh_database()
    async with counter(damaged.folder, url, HandClock()) as at:
        with trio.fail_after(PATIENCE):
            await at.spool.wait_empty()
        assert [key for _, key in at.recorder.unreadable] == [damaged["waiting"].hex()]
        assert len(ids_in(url)) == 14
        await at.send("busy:443")
        assert len(ids_in(url)) == 15
        assert (at.spool.count, at.began) == (0, [15])


async def test_the_server_crashes_again_and_again_under_load_and_each_message_is_there_once(
    tmp_path: Path, server: OwnServer
) -> None:
    url = server.fresh_database()

    async def app(at: Counter, host: str) -> None:
        for _ in range(60):
            assert await at.send(host) == ACKNOWLEDGED

    async with counter(tmp_path / "store", url, HandClock()) as at:
        for _ in range(5):
            there = len(at.ids)
            async with trio.open_nursery() as nursery:
                for number in range(16):
                    nursery.start_soon(app, at, f"h{number % 4}:443")
                await until(lambda there=there: len(at.ids) > there + 100)
                await trio.to_thread.run_sync(server.stop, "immediate")
            # What is spooled is on its way while the next ones come, and the next crash.
            await trio.to_thread.run_sync(server.start)
            await until(lambda: not at.store.unreachable)
        with trio.fail_after(PATIENCE):
            await at.spool.wait_empty()
        assert at.moved
        assert ids_in(url) == sorted(at.ids)
        assert (await at.store.statistics()).waiting == len(at.ids)


async def test_a_key_answers_from_here_and_is_one_webhook_with_what_the_database_has(
    tmp_path: Path, server: OwnServer
) -> None:
    url = server.fresh_database()
    async with counter(tmp_path / "store", url, HandClock()) as at:
        await at.send(key="known there")
        there = at.ids[0]
        await trio.to_thread.run_sync(server.stop)
        await at.send(key="new")
        assert await at.send(key="new") == Duplicate(at.ids[1])
        # Nobody can be asked now: it is acknowledged as a new one, and found out to be none later.
        assert await at.send(key="known there") == ACKNOWLEDGED
        await trio.to_thread.run_sync(server.start)
        with trio.fail_after(PATIENCE):
            await at.spool.wait_empty()
        assert ids_in(url) == [there, at.ids[1]]
        assert [(count, duplicates) for count, _, duplicates in at.moved] == [(2, 1)]
        assert await at.send(key="new") == Duplicate(at.ids[1])
        await trio.to_thread.run_sync(server.stop)
        assert await at.send(key="new") == Duplicate(at.ids[1])


async def test_a_full_spool_refuses(tmp_path: Path, server: OwnServer) -> None:
    url = server.fresh_database()
    async with counter(tmp_path / "store", url, HandClock(), size=1 << 20) as at:
        await trio.to_thread.run_sync(server.stop)
        results = [await at.send(f"h{number}:443", bytes(50_000)) for number in range(30)]
        refused = [result for result in results if result != ACKNOWLEDGED]
        assert refused
        assert all(isinstance(result, StoreFull) for result in refused)
        assert at.spool.full
        assert at.spool.count == len(at.ids)
        await trio.to_thread.run_sync(server.start)
        with trio.fail_after(PATIENCE):
            await at.spool.wait_empty()
        assert ids_in(url) == at.ids
        await at.send(body=bytes(50_000))
        assert at.ids[-1] in ids_in(url)
