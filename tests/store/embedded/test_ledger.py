"""One writer on its own thread, whose commits are shared by operations that arrive meanwhile."""

import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import trio
from pytest import fixture, raises

from holdfast.core.errors import CommitFailed
from holdfast.store.embedded.ledger import last_time
from holdfast.store.embedded.lmdb import LmdbEngine, LmdbTransaction, Write
from holdfast.store.embedded.tables import Table, Transaction
from holdfast.store.port import Accept, Deliver, Shelve
from tests.contract.builders import NOW, RULES, Desk, ids, success


class WatchedTransaction(LmdbTransaction):
    """Notes the thread of every put."""

    threads: set[int] = set()  # noqa: RUF012

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        self.threads.add(threading.get_ident())
        super().put(table, key, value)


class WatchedWrite(Write):
    """Notes the thread of every beginning and commit."""

    threads: set[int] = set()  # noqa: RUF012

    def __enter__(self) -> Transaction:
        self.threads.add(threading.get_ident())
        super().__enter__()
        return WatchedTransaction(self._transaction, self._tables)

    def commit(self) -> None:
        self.threads.add(threading.get_ident())
        super().commit()


class WatchedEngine(LmdbEngine):
    def write(self) -> WatchedWrite:
        return WatchedWrite(self._environment, self._tables)


@fixture
async def desk(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[Desk]:
    desk = Desk(nursery, lambda: WatchedEngine(tmp_path, 64 << 20), RULES)
    await desk.open()
    WatchedWrite.threads.clear()
    WatchedTransaction.threads.clear()
    yield desk
    await desk.close()


async def test_begin_puts_and_commit_are_on_one_own_thread(desk: Desk) -> None:
    for _ in range(5):
        entry = await desk.accept()
        await desk.ledger.perform(Shelve([entry.message]))
    assert len(WatchedWrite.threads) == 1
    assert WatchedWrite.threads == WatchedTransaction.threads
    assert threading.get_ident() not in WatchedWrite.threads


async def test_the_thread_ends_with_the_ledger(desk: Desk) -> None:
    await desk.accept()
    [number] = WatchedWrite.threads
    [thread] = [each for each in threading.enumerate() if each.ident == number]
    await desk.restart()
    await trio.to_thread.run_sync(thread.join, 5)
    assert not thread.is_alive()


async def test_many_accepts_share_few_commits(desk: Desk) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(300):
            nursery.start_soon(desk.ledger.perform, Accept(desk.message()))
    assert (await desk.ledger.statistics()).first == 300
    assert desk.commits <= 3


async def test_what_comes_during_a_commit_forms_the_next_group(desk: Desk) -> None:
    async def sender() -> None:
        for _ in range(10):
            await desk.ledger.perform(Accept(desk.message()))

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(sender)
    assert (await desk.ledger.statistics()).first == 500
    assert desk.commits <= 60


async def test_outcomes_ride_in_the_same_group_as_new_messages(desk: Desk) -> None:
    entry = await desk.accept()
    before = desk.commits
    await desk.together(Deliver(entry, success(), None), Accept(desk.message()))
    assert desk.commits == before + 1


async def test_a_commit_that_the_disk_refuses_is_final(desk: Desk) -> None:
    accepted = await desk.accept()
    with Path("/dev/null").open() as nowhere:
        os.dup2(nowhere.fileno(), desk.engine._file.descriptor)
    desk.engine._claimed = desk.engine._file.size
    for _ in range(2):
        with raises(CommitFailed):
            await desk.accept()
    await desk.restart()
    assert ids((await desk.look()).fresh) == ids([accepted])


async def test_the_store_knows_the_latest_moment_that_it_has_seen(desk: Desk) -> None:
    assert last_time(desk.engine) == 0
    desk.clock.at = NOW + 5
    await desk.accept()
    assert last_time(desk.engine) == NOW + 5


async def test_reads_go_on_while_many_messages_are_accepted(desk: Desk) -> None:
    seen: list[int] = []

    async def read() -> None:
        for _ in range(20):
            seen.append((await desk.ledger.statistics()).first)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for _ in range(20):
            nursery.start_soon(desk.ledger.perform, Accept(desk.message()))
    assert seen == sorted(seen)
