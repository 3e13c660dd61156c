"""A store of an older version becomes one of this version, whatever interrupts that; a newer one is refused.

`version_1/` holds a store with a message in every state as version 1 wrote it, and its own export of it.
"""

import gzip
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from pytest import MonkeyPatch, fixture, mark, raises

from holdfast.core.errors import StoreUnusable
from holdfast.core.message import parse_id
from holdfast.store import records
from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.embedded.tables import META_SCHEMA, SCHEMA, Table
from holdfast.store.port import Accept, Duplicate
from tests.contract.builders import DAY, NOW, RULES, Desk, dump, idempotency
from tests.contract.consistency import check as assert_consistent
from tests.contract.consistency import check_shares as assert_shares
from tests.store.populated import SIZE, Populated, populate, put

VERSION_1 = Path(__file__).with_name("version_1")


def exported(store: Populated) -> list[dict[str, object]]:
    with store.offline() as offline:
        return [json.loads(line) for line in offline.export(lambda finding: None)]


@fixture
def old(tmp_path: Path) -> Populated:
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / "data.mdb").write_bytes(gzip.decompress((VERSION_1 / "data.mdb.gz").read_bytes()))
    return Populated(folder)


@fixture
def told() -> list[dict[str, object]]:
    """What version 1 said was in it, in the words of today."""
    lines = [json.loads(line) for line in gzip.decompress((VERSION_1 / "export.jsonl.gz").read_bytes()).splitlines()]
    lines[0]["version"] = 2
    since = {"message": {"signed": False}, "delivered": {"signed": False}, "circuit": {"answers": True}}
    return [line | since.get(line.get("kind"), {}) for line in lines]


def test_nothing_is_lost_or_changed(old: Populated, told: list[dict[str, object]]) -> None:
    assert exported(old) == told
    with old.offline() as offline:
        assert list(offline.check()) == []
    engine = old.open()
    tables = dump(engine)
    engine.close()
    assert dict(tables[Table.META])[META_SCHEMA] == SCHEMA.to_bytes(4, "big")
    assert_consistent(tables, RULES)
    assert_shares(tables)


def test_records_of_both_versions_live_side_by_side(old: Populated) -> None:
    async def fill(desk: Desk) -> None:
        message = desk.message("busy:443", route="billing")._replace(signed=True)
        await desk.ledger.perform(Accept(message))
        view = await desk.ledger.message_view(message.id)
        assert view is not None
        assert view.message.signed
        await desk.deliver((await desk.look("busy:443", fresh=1)).fresh[0])

    populate(old.folder, fill)
    signed = [line["signed"] for line in exported(old) if line.get("kind") in ("message", "delivered")]
    assert (signed.count(True), signed.count(False)) == (1, 17)
    with old.offline() as offline:
        assert list(offline.check()) == []


@mark.parametrize("lifetime", [DAY, DAY // 24, 7 * DAY])
def test_keys_answer_as_before_whatever_the_setting_is_now(
    old: Populated, told: list[dict[str, object]], lifetime: int
) -> None:
    ids = {str(line["digest"]): parse_id(str(line["id"])) for line in told if line.get("kind") == "key"}

    async def ask(desk: Desk) -> None:
        desk.rules = replace(RULES, idempotency=lifetime)
        await desk.restart()
        for name in ("delivered", "delayed", "active"):
            key = idempotency(name)
            assert await desk.ledger.perform(Accept(desk.message(), key)) == Duplicate(ids[key.digest.hex()])

    populate(old.folder, ask)


KILLED = """
import os, signal, sys
from pathlib import Path
from holdfast.store.embedded import lmdb, migration, shares, tables
migration.BATCH = shares.BATCH = tables.BATCH = 1
commits, commit = int(sys.argv[2]), lmdb.Write.commit
def dying(self):
    global commits
    commits -= 1
    if not commits:
        os.kill(os.getpid(), signal.SIGKILL)
    commit(self)
lmdb.Write.commit = dying
lmdb.LmdbEngine(Path(sys.argv[1]), 64 << 20).close()
"""


def test_a_migration_that_was_killed_goes_on_at_the_next_start(old: Populated, told: list[dict[str, object]]) -> None:
    """Once before each commit that there is, on the same store."""
    ended = -signal.SIGKILL
    commits = 0
    while ended:
        commits += 1
        assert commits < 40
        ended = subprocess.run([sys.executable, "-c", KILLED, str(old.folder), str(commits)], check=False).returncode
        assert ended in (0, -signal.SIGKILL)
    assert commits > 10
    assert exported(old) == told


def test_a_newer_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    store = Populated(tmp_path / "store")
    store.open().close()
    put(store, Table.META, META_SCHEMA, (SCHEMA + 1).to_bytes(4, "big"))
    before = (store.folder / "data.mdb").read_bytes()
    with raises(StoreUnusable, match=f"schema {SCHEMA + 1}; .* up to {SCHEMA}"):
        store.open()
    assert (store.folder / "data.mdb").read_bytes() == before


def test_without_room_it_is_refused_and_goes_on_later(
    old: Populated, told: list[dict[str, object]], monkeypatch: MonkeyPatch
) -> None:
    def no_room(fd: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", no_room)
        with raises(StoreUnusable, match="from schema 1 to 3: no space"):
            LmdbEngine(old.folder, SIZE)
    assert exported(old) == told


def test_a_record_of_a_version_to_come_is_set_aside(tmp_path: Path) -> None:
    async def fill(desk: Desk) -> None:
        first, second = await desk.accept_waiting(number=2)
        record = records.encode_message(first.message)[0]
        with (writing := desk.engine.write()) as transaction:
            transaction.put(Table.MESSAGES, first.message.id, record[:1] + b"\x03" + record[2:])
            writing.commit()
        view = await desk.look(at=NOW + DAY)
        assert [entry.message.id for entry in view.fresh] == [second.message.id]
        assert "version 3" in view.broken[0][1]

    populate(tmp_path / "store", fill)
