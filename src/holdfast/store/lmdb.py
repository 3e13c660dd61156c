"""The tables in LMDB: the only module that knows it. Everything about files and sizes of the store is here.

Hazards, each found by experiment: a write transaction has to begin, write and commit in one thread; a read
transaction that is held makes the file grow without bound, so reads last milliseconds; a full disk shows only as
"Input/output error" at a commit, so the file is extended ahead of use and "no space" shows here instead; a full map
can't even delete, so the map has a reserve above `store.max_size`.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import lmdb

from holdfast.core.errors import CommitFailed, StoreError, StoreFull, StoreUnusable
from holdfast.store.files import open_private, sync_folder
from holdfast.store.folder import make_folder, take_folder
from holdfast.store.migration import migrate
from holdfast.store.residence import Residence
from holdfast.store.tables import DUPLICATES, Fault, Room, Table, Transaction

RESERVE = 64 << 20
"""Map above `store.max_size`: deletes and outcomes copy pages before they free any."""
HEADROOM = 4 << 20
"""File beyond what new messages may take: on a full volume outcomes live on it until they have freed pages."""
COPIED_AT_ONCE = 1_000
"""Rows of one transaction when a store is compacted."""
DUPLICATE_COST = 48
"""Bytes that one value of a table with duplicates takes: LMDB's statistics leave out their pages."""
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_FALLOCATE = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
"""Some file systems can't extend a file ahead; there "no space" shows late, and that is all that is lost."""
NETWORK_FILE_SYSTEMS = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "sshfs"),
        *("beegfs", "gpfs", "gfs2", "ocfs2", "orangefs", "juicefs", "s3fs", "gcsfuse", "rclone", "blobfuse2"),
    }
)


class LmdbEngine:
    """An open store. `close` gives the folder back to others."""

    threaded = True

    def __init__(self, folder: Path, max_size: int) -> None:
        self.path = str(folder)
        self._max_size = max_size
        self._extended = 0
        with ExitStack() as undo:
            make_folder(folder)
            _refuse_network(folder)
            undo.callback(os.close, take_folder(folder))
            data = folder / "data.mdb"
            try:
                if not data.exists():
                    _make_data(data, max_size + RESERVE)
                # At every start: the one that made the file may have been killed before it came here.
                sync_folder(folder)
                self._environment = _open_environment(folder, max_size + RESERVE)
                undo.callback(self._environment.close)
                self._tables = _open_tables(self._environment)
                self._file = os.open(data, os.O_RDWR | os.O_CLOEXEC)
                undo.callback(os.close, self._file)
            except lmdb.Error as error:
                raise StoreUnusable(f"{folder}: {error}") from error
            except OSError as error:
                raise StoreUnusable(f"{folder} can't be used: {error.strerror}") from error
            self._page = self._environment.stat()["psize"]
            self._residence = Residence(self._file)
            migrate(self)
            self._resources = undo.pop_all()

    def read(self) -> "Read":
        self._residence.count()
        return Read(self._environment, self._tables)

    def write(self) -> "Write":
        self._residence.count()
        return Write(self._environment, self._tables)

    def room(self) -> Room:
        with self._environment.begin() as transaction:
            pages = entries = 0
            for table, database in zip(Table, self._tables, strict=True):
                stat = transaction.stat(database)
                pages += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
                entries += stat["entries"] if table in DUPLICATES else 0
        return Room(pages * self._page + entries * DUPLICATE_COST, self._max_size)

    def extend(self, bytes_ahead: int) -> None:
        """Give the file room for a commit of this size beyond its last page, so that "no space" shows before it."""
        last_page: int = self._environment.info()["last_pgno"]
        wanted = (last_page + 1) * self._page + 4 * bytes_ahead + HEADROOM
        if wanted <= self._extended:
            return
        # By an eighth at a time; close to the end of the volume by as little as will do.
        generous = min(wanted + wanted // 8, self._max_size + RESERVE)
        if not (self._allocate(generous) or self._allocate(wanted)):
            self._reuse_pages(bytes_ahead)

    def _allocate(self, size: int) -> bool:
        """Whether the file now has this size on the volume."""
        try:
            os.posix_fallocate(self._file, 0, size)
        except OSError as error:
            if error.errno in NO_SPACE:
                return False
            if error.errno not in NO_FALLOCATE:
                raise CommitFailed(f"extending the store: {error}") from error
        self._extended = size
        return True

    def _reuse_pages(self, bytes_ahead: int) -> None:
        """On a full volume there is still what deliveries freed inside the file, less what is hard to count."""
        used = self.room().used
        if used + used // 4 + 4 * bytes_ahead + HEADROOM > os.fstat(self._file).st_size:
            raise StoreFull("no space is left on the store's volume; deliveries go on and make room")

    def compact(self) -> tuple[int, int]:
        """Put a copy without free pages in the data file's place. Returns the sizes before and after.

        This engine still sees the old file and has to be closed after it: what it wrote then would be lost. Until the
        rename the old file is the store, and a copy that was left behind by a crash is overwritten by the next one.
        """
        data = Path(self.path) / "data.mdb"
        copy = data.with_name("data.mdb.compacting")
        before = data.stat().st_size
        try:
            self._copy_to(copy)
            after = copy.stat().st_size
            copy.rename(data)
        except BaseException:
            copy.unlink(missing_ok=True)
            raise
        sync_folder(data.parent)
        return before, after

    def _copy_to(self, copy: Path) -> None:
        """Row by row, for the store's owner alone (who need not be whoever compacts it), on disk when this returns."""
        owner = os.fstat(self._file)
        try:
            with open_private(copy, "wb") as file:
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
                copied = _copy_rows(self._environment, self._tables, copy)
                os.fsync(file.fileno())
        except (OSError, lmdb.Error) as error:
            raise StoreError(f"the store can't be copied beside itself, and is as it was: {error}") from error
        if copied != _count_rows(self._environment, self._tables):
            raise StoreError("the copy of the store lacks rows; the store is as it was, see holdfast fsck")

    def close(self) -> None:
        self._resources.close()


class LmdbTransaction:
    """One transaction, in the shape of tables.Transaction."""

    __slots__ = ("_tables", "_transaction", "faults")

    def __init__(self, transaction: Any, tables: list[Any]) -> None:
        self._transaction = transaction
        self._tables = tables
        self.faults: list[Fault] = []

    def get(self, table: Table, key: bytes) -> bytes | None:
        value: bytes | None = self._transaction.get(key, db=self._tables[table])
        return value

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        self._transaction.put(key, value, db=self._tables[table])

    def delete(self, table: Table, key: bytes) -> bool:
        return bool(self._transaction.delete(key, db=self._tables[table]))

    def add(self, table: Table, key: bytes, value: bytes) -> None:
        self._transaction.put(key, value, db=self._tables[table])

    def remove(self, table: Table, key: bytes, value: bytes) -> bool:
        return bool(self._transaction.delete(key, value, db=self._tables[table]))

    def values(self, table: Table, key: bytes, start: bytes = b"") -> Iterator[bytes]:
        with self._transaction.cursor(self._tables[table]) as cursor:
            if cursor.set_range_dup(key, start) if start else cursor.set_key(key):
                yield from cursor.iternext_dup()

    def count(self, table: Table, key: bytes) -> int:
        with self._transaction.cursor(self._tables[table]) as cursor:
            return int(cursor.count()) if cursor.set_key(key) else 0

    def scan(self, table: Table, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        with self._transaction.cursor(self._tables[table]) as cursor:
            if cursor.set_range(start) if start else cursor.first():
                yield from cursor.iternext()

    def last(self, table: Table) -> bytes | None:
        with self._transaction.cursor(self._tables[table]) as cursor:
            return bytes(cursor.key()) if cursor.last() else None

    def entries(self, table: Table) -> int:
        return int(self._transaction.stat(self._tables[table])["entries"])


class Read:
    def __init__(self, environment: Any, tables: list[Any]) -> None:
        self._environment = environment
        self._tables = tables

    def __enter__(self) -> Transaction:
        try:
            self._transaction = self._environment.begin()
        except lmdb.PanicError as error:
            # LMDB lets nobody in any more once a meta page could not be written.
            raise CommitFailed(str(error)) from error
        return LmdbTransaction(self._transaction, self._tables)

    def __exit__(self, *raised: object) -> None:
        self._transaction.abort()
        if isinstance(raised[1], lmdb.Error):
            raise StoreUnusable(f"the store can't be read: {raised[1]}") from raised[1]


class Write:
    """A write transaction with LMDB's errors told apart: no room is StoreFull, anything else means the disk failed."""

    def __init__(self, environment: Any, tables: list[Any]) -> None:
        self._environment = environment
        self._tables = tables
        self._transaction: Any = None

    def __enter__(self) -> Transaction:
        try:
            self._transaction = self._environment.begin(write=True)
        except lmdb.Error as error:
            raise CommitFailed(str(error)) from error
        return LmdbTransaction(self._transaction, self._tables)

    def commit(self) -> None:
        transaction, self._transaction = self._transaction, None
        try:
            transaction.commit()
        except lmdb.MapFullError as error:
            raise StoreFull("the store's map is full") from error
        except lmdb.Error as error:
            raise CommitFailed(str(error)) from error

    def __exit__(self, *raised: object) -> None:
        if self._transaction is not None:
            self._transaction.abort()
        error = raised[1]
        if isinstance(error, lmdb.MapFullError):
            raise StoreFull("the store's map is full") from error
        if isinstance(error, lmdb.Error):
            raise CommitFailed(str(error)) from error


def _refuse_network(folder: Path) -> None:
    """fsync and locks over a network do not keep what LMDB needs of them."""
    try:
        mounts = Path("/proc/self/mounts").read_text(errors="surrogateescape")
    except OSError:
        return
    kind = file_system_of(str(folder.resolve()), mounts)
    if kind.removeprefix("fuse.") in NETWORK_FILE_SYSTEMS:
        raise StoreUnusable(f"{folder} is on a network file system ({kind}); use a local volume")


def file_system_of(path: str, mounts: str) -> str:
    """The file system that a path is on, by the text of /proc/self/mounts; of mounts on one point the last counts."""
    best, kind = "", ""
    for line in mounts.splitlines():
        _, point, file_system, *_ = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, file_system
    return kind


def _make_data(data: Path, map_size: int) -> None:
    """An empty store gets its name when it is whole on disk: half of one, left by a power cut, no start would open."""
    beside = data.with_name("data.mdb.making")
    beside.unlink(missing_ok=True)
    with _open_environment(beside, map_size, alone=True) as environment:
        environment.sync(True)
    beside.rename(data)


def _open_environment(path: Path, map_size: int, *, alone: bool = False) -> Any:
    """A folder with a store in it; or `alone` a file that nobody else knows of, synced by whoever fills it."""
    # lib_version=0 pins the engine: py-lmdb 3 carries two whose files do not fit each other.
    return lmdb.open(
        str(path),
        map_size=map_size,
        max_dbs=len(Table),
        max_readers=126,
        mode=0o600,
        subdir=not alone,
        lock=not alone,
        sync=not alone,
        metasync=not alone,
        writemap=False,
        lib_version=0,
    )


def _open_tables(environment: Any) -> list[Any]:
    environment.reader_check()
    with environment.begin(write=True) as transaction:
        return _make_tables(environment, transaction)


def _make_tables(environment: Any, transaction: Any) -> list[Any]:
    return [
        environment.open_db(
            table.name.lower().encode(),
            txn=transaction,
            dupsort=table in DUPLICATES,
            dupfixed=table in DUPLICATES and table is not Table.UNWELL,
        )
        for table in Table
    ]


def _copy_rows(source: Any, tables: list[Any], copy: Path) -> list[int]:
    """Every row into a new file, in order and so without gaps. Returns how many rows each table has there.

    Not LMDB's own compacting copy: that of 0.9.36 ends in a segmentation fault as soon as one key of a table with
    values of one length has more of them than fit a page.
    """
    with _open_environment(copy, source.info()["map_size"], alone=True) as target:
        with target.begin(write=True) as writing:
            copies = _make_tables(target, writing)
        with source.begin() as reading:
            for table, copied in zip(tables, copies, strict=True):
                rows = reading.cursor(table).iternext()
                while batch := list(islice(rows, COPIED_AT_ONCE)):
                    with target.begin(write=True) as writing:
                        writing.cursor(copied).putmulti(batch, append=True)
        target.sync(True)
        return _count_rows(target, copies)


def _count_rows(environment: Any, tables: list[Any]) -> list[int]:
    with environment.begin() as transaction:
        return [transaction.stat(table)["entries"] for table in tables]
