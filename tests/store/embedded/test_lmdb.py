"""Who may open a store, where, and with which rights."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

from pytest import fixture, mark, raises

from holdfast.core.errors import StoreInUse, StoreUnusable
from holdfast.store.embedded.folder import file_system_of
from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.embedded.tables import META_SCHEMA, SCHEMA, Table, step
from tests.contract.builders import dump

SIZE = 16 << 20

OPEN = """
import sys
from pathlib import Path
from holdfast.core.errors import StoreUnusable
from holdfast.store.embedded.lmdb import LmdbEngine
try:
    LmdbEngine(Path(sys.argv[1]), 16 << 20)
except StoreUnusable as error:
    print(type(error).__name__, error)
else:
    print("opened")
"""


def open_elsewhere(folder: Path) -> str:
    """What another process is told that opens the store."""
    done = subprocess.run([sys.executable, "-c", OPEN, str(folder)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@fixture
def open_umask():
    previous = os.umask(0)
    yield
    os.umask(previous)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_second_process_learns_which_process_has_the_store(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path, SIZE)
    told = open_elsewhere(tmp_path)
    assert told.startswith("StoreInUse")
    assert str(os.getpid()) in told
    engine.close()
    assert open_elsewhere(tmp_path) == "opened"


def test_a_second_engine_in_this_process_is_refused_too(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path, SIZE)
    with raises(StoreInUse, match=str(os.getpid())):
        LmdbEngine(tmp_path, SIZE)
    engine.close()


def test_the_lock_of_a_process_that_died_is_free(tmp_path: Path) -> None:
    assert open_elsewhere(tmp_path) == "opened"
    LmdbEngine(tmp_path, SIZE).close()


def test_only_the_owner_can_read_it(tmp_path: Path, open_umask: None) -> None:
    folder = tmp_path / "deep" / "store"
    engine = LmdbEngine(folder, SIZE)
    assert mode_of(folder) == 0o700
    assert {path.name: mode_of(path) for path in folder.iterdir()} == {
        "data.mdb": 0o600,
        "lock.mdb": 0o600,
        "holdfast.lock": 0o600,
    }
    engine.close()


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with raises(StoreUnusable):
        LmdbEngine(tmp_path / "file", SIZE)


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"not a store" * 1_000)
    for _ in range(2):
        with raises(StoreUnusable):
            LmdbEngine(tmp_path, SIZE)


def test_a_store_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path, SIZE)
    set_schema(engine, SCHEMA + 1)
    engine.close()
    for _ in range(2):
        with raises(StoreUnusable, match=str(SCHEMA + 1)):
            LmdbEngine(tmp_path, SIZE)
    assert "StoreUnusable" in open_elsewhere(tmp_path)


def test_a_store_of_this_version_is_opened_again(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path, SIZE)
    before = dump(engine)
    engine.close()
    engine = LmdbEngine(tmp_path, SIZE)
    assert dump(engine) == before
    assert dict(before[Table.META])[META_SCHEMA] == SCHEMA.to_bytes(4, "big")
    engine.close()


def test_a_smaller_size_still_opens_what_is_there(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path, 1 << 30)
    step(engine, lambda transaction: transaction.put(Table.BODIES, b"key", bytes(1 << 20)))
    engine.close()
    engine = LmdbEngine(tmp_path, 8 << 20)
    with engine.read() as transaction:
        assert transaction.get(Table.BODIES, b"key") == bytes(1 << 20)
    engine.close()


def set_schema(engine: LmdbEngine, version: int) -> None:
    with (writing := engine.write()) as transaction:
        transaction.put(Table.META, META_SCHEMA, version.to_bytes(4, "big"))
        writing.commit()


MOUNTS = """\
/dev/vda / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
server:/export /mnt/share nfs4 rw,vers=4.2 0 0
server:/data /mnt/with\\040space cifs rw 0 0
server:/data /mnt/füße nfs rw 0 0
user@host:/ /mnt/ssh fuse.sshfs rw 0 0
/dev/vdb /mnt/share/local xfs rw 0 0
tmpfs /over tmpfs rw 0 0
server:/over /over nfs rw 0 0
"""


@mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/holdfast", "ext4"),
        ("/mnt/share", "nfs4"),
        ("/mnt/share/store", "nfs4"),
        ("/mnt/shared", "ext4"),
        ("/mnt/with space/store", "cifs"),
        ("/mnt/füße/store", "nfs"),
        ("/mnt/ssh/store", "fuse.sshfs"),
        ("/mnt/share/local/store", "xfs"),
        ("/over", "nfs"),
        ("/", "ext4"),
    ],
)
def test_a_path_is_on_the_innermost_mount(path: str, kind: str) -> None:
    assert file_system_of(path, MOUNTS) == kind


@mark.parametrize("kind", ["nfs", "nfs4", "cifs", "fuse.sshfs", "fuse.glusterfs", "ceph", "lustre"])
def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch, kind: str) -> None:
    monkeypatch.setattr("holdfast.store.embedded.folder.file_system_of", lambda path, mounts: kind)
    with raises(StoreUnusable, match="network file system"):
        LmdbEngine(tmp_path / "store", SIZE)


def test_a_local_file_system_is_accepted(tmp_path: Path) -> None:
    assert file_system_of(str(tmp_path), Path("/proc/self/mounts").read_text()) != ""
    LmdbEngine(tmp_path, SIZE).close()


def test_a_transaction_that_was_not_committed_leaves_no_trace(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path, SIZE)
    before = dump(engine)
    with engine.write() as transaction:
        transaction.put(Table.META, b"name", b"value")
    assert dump(engine) == before
    engine.close()


def test_a_reader_sees_one_moment_while_another_thread_writes(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path, SIZE)

    def write() -> None:
        with (writing := engine.write()) as transaction:
            transaction.put(Table.META, b"name", b"value")
            writing.commit()

    with engine.read() as transaction:
        writer = threading.Thread(target=write)
        writer.start()
        writer.join()
        assert transaction.get(Table.META, b"name") is None
    with engine.read() as transaction:
        assert transaction.get(Table.META, b"name") == b"value"
    engine.close()


OPENER = """
import sys
from pathlib import Path
from holdfast.store.embedded.lmdb import LmdbEngine
LmdbEngine(Path(sys.argv[1]), 64 << 20).close()
"""

READER = """
import sys, lmdb
environment = lmdb.open(sys.argv[1], max_dbs=32, lib_version=0)
transaction = environment.begin() if sys.argv[2] == "reads" else None
print("there", flush=True)
sys.stdin.read()
"""


def test_a_reader_that_was_killed_in_a_transaction_is_cleared_at_the_next_start(tmp_path: Path) -> None:
    """Its slot would keep every page from then on. Another process has the lock file open, or LMDB makes it anew."""
    LmdbEngine(tmp_path, SIZE).close()
    others = [
        subprocess.Popen(
            [sys.executable, "-c", READER, str(tmp_path), does],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for does in ("waits", "reads")
    ]
    for other in others:
        assert other.stdout is not None
        assert other.stdout.readline() == "there\n"
    others[1].kill()
    others[1].wait()
    engine = LmdbEngine(tmp_path, SIZE)
    assert str(others[1].pid) not in engine._environment.readers()
    engine.close()
    others[0].kill()
    for other in others:
        other.communicate()


def test_no_environment_variable_changes_the_engine(tmp_path: Path) -> None:
    """py-lmdb carries two engines whose files do not fit each other."""
    for version in ("0", "1"):
        environment = os.environ | {"LMDB_DEFAULT_LIB_VERSION": version}
        subprocess.run([sys.executable, "-c", OPENER, str(tmp_path / version)], env=environment, check=True)
        assert (tmp_path / version / "data.mdb").read_bytes()[16:24].hex() == "dec0efbe01000000"
