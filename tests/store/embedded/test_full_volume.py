"""The file is extended ahead of use: a full volume shows before a commit, as a full store, and heals by itself."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import trio
from pytest import fixture, raises, skip

from holdfast.core.errors import StoreFull
from holdfast.core.message import Entry
from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.embedded.tables import Table, Transaction, step
from tests.contract.builders import RULES, Desk, ids

MIB = 1 << 20
BODY = bytes(60 * 1024)


def write(engine: LmdbEngine, number: int, size: int = 4_000) -> None:
    def put(transaction: Transaction) -> None:
        for key in range(number):
            transaction.put(Table.BODIES, key.to_bytes(18, "big"), bytes(size))

    step(engine, put)


def erase(engine: LmdbEngine, number: int) -> None:
    def delete(transaction: Transaction) -> None:
        for key in range(number):
            transaction.delete(Table.BODIES, key.to_bytes(18, "big"))

    step(engine, delete)


def test_room_grows_and_shrinks_with_what_is_stored(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path, 16 * MIB)
    empty = engine.room()
    assert empty.limit == 16 * MIB
    write(engine, 1_000)
    full = engine.room()
    assert full.used - empty.used > 1_000 * 4_000
    erase(engine, 1_000)
    assert engine.room().used - empty.used < 100_000
    engine.close()


def test_room_counts_the_values_of_queues(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path, 16 * MIB)
    before = engine.room().used
    queue = [number.to_bytes(24, "big") for number in range(1_000)]
    step(engine, lambda transaction: [transaction.add(Table.WAITING, b"lane", value) for value in queue])
    assert engine.room().used - before >= 1_000 * 24
    engine.close()


def test_the_file_is_extended_ahead_of_use(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path, 64 * MIB)
    engine.extend(12 * MIB)
    file = (tmp_path / "data.mdb").stat()
    assert file.st_size >= 12 * MIB
    assert file.st_blocks * 512 >= 12 * MIB
    write(engine, 1_000)
    assert (tmp_path / "data.mdb").stat().st_size == file.st_size
    engine.close()


def test_a_file_extended_ahead_opens_again(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path, 64 * MIB)
    engine.extend(MIB)
    write(engine, 10)
    engine.close()
    engine = LmdbEngine(tmp_path, 64 * MIB)
    with engine.read() as transaction:
        assert transaction.entries(Table.BODIES) == 10
    engine.close()


def test_a_full_map_is_store_full_and_leaves_no_trace(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path, 2 * MIB)
    with raises(StoreFull), (writing := engine.write()) as transaction:
        for number in range(2_000):
            transaction.put(Table.BODIES, number.to_bytes(18, "big"), bytes(4_000))
        writing.commit()
    with engine.read() as transaction:
        assert transaction.entries(Table.BODIES) == 0
    write(engine, 2_000)
    with engine.read() as transaction:
        assert transaction.entries(Table.BODIES) == 2_000
    engine.close()


LIMITED = """
import resource, sys
from pathlib import Path
from holdfast.core.errors import StoreFull
from holdfast.store.embedded.lmdb import LmdbEngine
engine = LmdbEngine(Path(sys.argv[1]), 64 << 20)
resource.setrlimit(resource.RLIMIT_FSIZE, (6 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
engine.extend(0)
try:
    engine.extend(8 << 20)
except StoreFull:
    print("full")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)
engine.extend(8 << 20)
print("healed")
"""


def test_a_file_that_may_not_grow_is_store_full_and_heals(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["full", "healed"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


# -- a volume that is really full ------------------------------------------------------------------------------------


@fixture
def small_volume(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, so small that it fills up long before the store's own limit."""
    point = tmp_path / "volume"
    point.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(point)]
    if os.geteuid() != 0 or subprocess.run(mounting, capture_output=True).returncode != 0:
        skip("mounting a file system takes root")
    yield point
    subprocess.run(["umount", "--lazy", str(point)], check=True)


async def fill(desk: Desk) -> list[Entry]:
    accepted: list[Entry] = []
    for _ in range(1_000):
        try:
            accepted.append(await desk.accept(body=BODY))
        except StoreFull:
            return accepted
    raise AssertionError("never full")


def take_the_rest(volume: Path) -> None:
    """Nothing can be written there any more."""
    with suppress(OSError), (volume / "other").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


async def open_on(volume: Path, nursery: trio.Nursery) -> Desk:
    desk = Desk(nursery, lambda: LmdbEngine(volume / "store", 1 << 30), RULES)
    await desk.open()
    return desk


async def test_a_full_volume_refuses_messages_and_records_outcomes(small_volume: Path, nursery: trio.Nursery) -> None:
    desk = await open_on(small_volume, nursery)
    accepted = await fill(desk)
    assert len(accepted) > 50
    for entry in accepted[:-1]:
        await desk.deliver(entry)
    assert ids([accepted[-1]]) == [(await desk.message_view(accepted[-1])).message.id]
    await desk.close()


async def test_a_full_volume_heals_when_others_make_room(small_volume: Path, nursery: trio.Nursery) -> None:
    (small_volume / "other").write_bytes(bytes(6 * MIB))
    desk = await open_on(small_volume, nursery)
    await fill(desk)
    (small_volume / "other").unlink()
    await desk.accept(body=BODY)
    await desk.close()


async def test_a_full_volume_heals_when_deliveries_make_room(small_volume: Path, nursery: trio.Nursery) -> None:
    desk = await open_on(small_volume, nursery)
    for _ in range(3):
        accepted = await fill(desk)
        assert len(accepted) > 20
        for entry in accepted:
            await desk.deliver(entry)
    await desk.close()


async def test_a_full_volume_is_opened_again_with_all_that_was_accepted(
    small_volume: Path, nursery: trio.Nursery
) -> None:
    desk = await open_on(small_volume, nursery)
    accepted = await fill(desk)
    take_the_rest(small_volume)
    await desk.restart_after_a_kill()
    assert (await desk.ledger.statistics()).first == len(accepted)
    for entry in (await desk.look(fresh=5)).fresh:
        await desk.deliver(entry)
    await desk.close()
