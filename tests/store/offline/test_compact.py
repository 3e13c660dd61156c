"""Compacting gives the same store in a smaller file; the old file stays until the new one is complete."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import lmdb
from pytest import MonkeyPatch, fixture, mark, raises

from holdfast.core.errors import StoreError
from holdfast.core.message import MessageId
from holdfast.store.embedded import lmdb as engine_module
from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.embedded.tables import Table, Transaction
from holdfast.store.records import stamp
from tests.contract.builders import RULES, dump
from tests.contract.consistency import check as assert_consistent
from tests.store.populated import SIZE, Populated, build, with_transaction

COPY = "data.mdb.compacting"


@fixture
def store(tmp_path: Path) -> Populated:
    """With a few megabytes that were used and are free again."""
    store = build(tmp_path / "store")
    filler = MessageId(b"\xff" * 16)
    with_transaction(store, lambda transaction: transaction.put(Table.BODIES, filler, bytes(5 << 20)))
    with_transaction(store, lambda transaction: transaction.delete(Table.BODIES, filler))
    return store


def content(store: Populated) -> dict[Table, list[tuple[bytes, bytes]]]:
    engine = store.open()
    try:
        return dump(engine)
    finally:
        engine.close()


def modes(store: Populated) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in store.folder.iterdir()}


def test_it_is_smaller_and_holds_the_same(store: Populated) -> None:
    before = content(store)
    size = (store.folder / "data.mdb").stat().st_size
    previous = os.umask(0)
    try:
        with store.offline() as offline:
            told = offline.compact()
    finally:
        os.umask(previous)
    assert told == (size, (store.folder / "data.mdb").stat().st_size)
    assert told[1] < 1 << 20 < told[0]
    assert content(store) == before
    assert_consistent(before, RULES)
    assert modes(store) == {"data.mdb": 0o600, "lock.mdb": 0o600, "holdfast.lock": 0o600}


def test_a_long_queue_is_copied_whole(store: Populated, monkeypatch: MonkeyPatch) -> None:
    """LMDB's own compacting copy crashes on these: their values have pages of their own."""

    def fill(transaction: Transaction) -> None:
        for number in range(3_000):
            for table in (Table.WAITING, Table.RETRY, Table.AGING, Table.DEAD_LANE):
                transaction.add(table, b"lane %d" % (number % 2), stamp(number, bytes(16)))
            transaction.add(Table.UNWELL, b"frozen", b"lane %d" % number)
            transaction.put(Table.BODIES, b"%018d" % number, bytes(4_080))
            transaction.put(Table.PLACES, b"%016d" % number, bytes(1_000))

    with_transaction(store, fill)
    before = content(store)
    monkeypatch.setattr(engine_module, "COPIED_AT_ONCE", 700)
    with store.offline() as offline:
        _, after = offline.compact()
    assert content(store) == before
    # A place takes a quarter of a page here: filled in any other way than in order, pages would be half empty.
    assert after < 1.08 * 3_000 * (4_096 + 1_366 + 4 * 24 + 30)


def test_it_can_be_written_to_afterwards(store: Populated) -> None:
    for round in range(3):
        with store.offline() as offline:
            offline.compact()
        with_transaction(store, lambda transaction, round=round: transaction.put(Table.META, b"round", bytes([round])))
        assert dict(content(store)[Table.META])[b"round"] == bytes([round])


def test_the_store_stays_locked_until_the_new_file_is_in_place(store: Populated, monkeypatch: MonkeyPatch) -> None:
    held = []
    rename = Path.rename

    def watched(self: Path, target: Path) -> Path:
        with raises(StoreError, match=str(os.getpid())):
            LmdbEngine(store.folder, SIZE)
        held.append(self.name)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", watched)
    with store.offline() as offline:
        offline.compact()
    assert held == [COPY]


def test_what_was_left_behind_by_a_crash_is_overwritten(store: Populated) -> None:
    before = content(store)
    (store.folder / COPY).write_bytes(b"half a copy" * 1_000_000)
    with store.offline() as offline:
        _, after = offline.compact()
    assert after < 1 << 20
    assert content(store) == before
    assert COPY not in modes(store)


DIE = """
import os, signal, sys
from pathlib import Path
from tests.contract.builders import RULES
from holdfast.store.embedded import lmdb
from holdfast.store.offline.offline_store import open_store

class Dying:
    def __getattr__(self, name):
        if name == sys.argv[2]:
            os.kill(os.getpid(), signal.SIGKILL)
        return getattr(os, name)

if sys.argv[2] == "rename":
    Path.rename = lambda self, target: os.kill(os.getpid(), signal.SIGKILL)
elif sys.argv[2] == "sync_folder":
    lmdb.sync_folder = lambda folder: os.kill(os.getpid(), signal.SIGKILL)
else:
    lmdb.os = Dying()
with open_store(Path(sys.argv[1]), 64 << 20, RULES) as store:
    store.compact()
"""


@mark.parametrize("moment", ["fchown", "fsync", "rename", "sync_folder"])
def test_a_kill_at_any_point_leaves_a_whole_store(store: Populated, moment: str) -> None:
    before = content(store)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    killed = subprocess.run([sys.executable, "-c", DIE, str(store.folder), moment], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert content(store) == before
    with store.offline() as offline:
        assert list(offline.check()) == []
        offline.compact()
    assert content(store) == before


@mark.parametrize("error", [OSError(28, "No space left on device"), lmdb.Error("no space")])
def test_without_room_for_the_copy_the_store_is_as_it_was(
    store: Populated, monkeypatch: MonkeyPatch, error: Exception
) -> None:
    before = content(store)

    def fail(source: object, tables: object, copy: Path) -> list[int]:
        raise error

    monkeypatch.setattr(engine_module, "_copy_rows", fail)
    with store.offline() as offline, raises(StoreError, match="is as it was"):
        offline.compact()
    assert content(store) == before
    assert COPY not in modes(store)


def test_a_copy_that_lacks_rows_is_not_taken(store: Populated, monkeypatch: MonkeyPatch) -> None:
    before = content(store)
    monkeypatch.setattr(engine_module, "_copy_rows", lambda source, tables, copy: [0] * len(Table))
    with store.offline() as offline, raises(StoreError, match="lacks rows"):
        offline.compact()
    assert content(store) == before
    assert COPY not in modes(store)


def test_offline_commands_import_no_trio() -> None:
    script = "import sys, holdfast.store.offline.offline_store; sys.exit('trio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
