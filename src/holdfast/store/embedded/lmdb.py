"""The tables in LMDB: the only module that imports it.

Hazards, each found by experiment: a write transaction has to begin, write and commit on one thread. A read transaction
that stays open makes the file grow without bound, so reads last milliseconds. A full disk shows only as "Input/output
error" at a commit, so the map is never larger than what the volume has allocated (data_file.py), and a full map shows
first. The map can only be replaced while no transaction is open. A full map can't even delete, so room is reserved
before it is needed.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import lmdb

from holdfast.core.errors import CommitFailed, StoreError, StoreFull, StoreUnusable
from holdfast.store.embedded.data_file import PAGE, DataFile, Gate, ResidentPages
from holdfast.store.embedded.folder import make_folder, refuse_network, take_folder
from holdfast.store.embedded.migration import migrate
from holdfast.store.embedded.shares import OUTCOME_TABLES, reserved
from holdfast.store.embedded.tables import DUPLICATES, Fault, Room, Table, Transaction
from holdfast.store.private_files import open_private, sync_folder

RESERVE = 64 << 20
"""File above `store.max_size`: deletes and outcomes copy pages before they free any."""
HEADROOM = 4 << 20
"""File beyond what is used and reserved: the pages that a group copies before older ones are free."""
FIRST_SIZE = 1 << 20
LEAST_GROWTH = 8 << 20
GROWTH = (4 << 20, 1 << 20, 128 << 10)
"""How much the file grows for a group that does not fit: by the first of these that the volume has."""
COPIED_AT_ONCE = 1_000
"""Rows in one transaction when a store is compacted."""
DUPLICATE_COST = 48
"""Bytes that one value of a table with duplicates takes: LMDB's statistics leave out their pages."""


class LmdbEngine:
    """An open store. `close` releases the folder."""

    threaded = True

    def __init__(self, folder: Path, max_size: int) -> None:
        self.path = str(folder)
        self._max_size = max_size
        self._gate = Gate()
        self._claimed = 0
        with ExitStack() as undo:
            make_folder(folder)
            refuse_network(folder)
            undo.callback(os.close, take_folder(folder))
            data = folder / "data.mdb"
            try:
                if not data.exists():
                    _make_data(data)
                # At every start: the one that made the file may have been killed before it came here.
                sync_folder(folder)
                self._file = DataFile(data, FIRST_SIZE)
                undo.callback(self._file.close)
                self._environment = _open_environment(folder, max(self._file.size, PAGE))
                undo.callback(self._environment.close)
                self._tables = _open_tables(self._environment)
            except lmdb.Error as error:
                raise StoreUnusable(f"{folder}: {error}") from error
            except OSError as error:
                raise StoreUnusable(f"{folder} can't be used: {error.strerror}") from error
            self._page: int = self._environment.stat()["psize"]
            self._resident_pages = ResidentPages(self._file.descriptor)
            migrate(self)
            self._resources = undo.pop_all()

    def read(self) -> "Read":
        return Read(self._environment, self._tables, self._gate, self._resident_pages)

    def write(self) -> "Write":
        self._resident_pages.count()
        return Write(self._environment, self._tables)

    def room(self) -> Room:
        entered = self._gate.enter()
        try:
            with self._environment.begin() as transaction:
                stats = {table: transaction.stat(self._tables[table]) for table in Table}
        finally:
            self._gate.leave(entered)
        taken = {table: self._taken(table, stat) for table, stat in stats.items()}
        outcomes = sum(taken[table] for table in OUTCOME_TABLES)
        aside = reserved({table: stat["entries"] for table, stat in stats.items()}, outcomes)
        return Room(sum(taken.values()), aside, self._max_size)

    def _taken(self, table: Table, stat: dict[str, int]) -> int:
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return pages * self._page + (stat["entries"] * DUPLICATE_COST if table in DUPLICATES else 0)

    def extend(self, bytes_ahead: int) -> None:
        """Make sure that the volume has room for this and for all that is reserved. Rows are counted now and then, not
        for each group.
        """
        self._claimed += bytes_ahead
        if self._claimed <= self._file.size:
            return
        room = self.room()
        most = self._max_size + RESERVE
        self._claimed = min(room.used + room.reserved + bytes_ahead + HEADROOM, most)
        if self._claimed <= self._file.size:
            return
        # By an eighth at a time; close to the end of the volume by as little as will do.
        generous = self._claimed + max(self._claimed // 8, LEAST_GROWTH)
        if not (self._grow_to(min(generous, most)) or self._grow_to(self._claimed)):
            self._claimed = most
            raise StoreFull("no space is left on the store's volume; deliveries go on and make room")

    def grow(self) -> bool:
        """Give a group that did not fit more room, even above `store.max_size`: outcomes have to be recorded."""
        return any(self._grow_to(self._file.size + more) for more in GROWTH)

    def _grow_to(self, size: int) -> bool:
        if not self._file.allocate(size):
            return False
        with self._gate.closed():
            try:
                self._environment.set_mapsize(self._file.size)
            except lmdb.Error as error:
                raise CommitFailed(f"mapping the store: {error}") from error
        return True

    def compact(self) -> tuple[int, int]:
        """Replace the data file by a copy without free pages. Returns the sizes before and after.

        This engine still has the old file open and must be closed after this: what it wrote would be lost. Until the
        rename the old file is the store. A copy left by a crash is removed before the next one.
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
        """Row by row, with the owner of the store, who may be another user. On disk when this returns."""
        owner = os.fstat(self._file.descriptor)
        try:
            copy.unlink(missing_ok=True)
            with open_private(copy, "xb") as file:
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
    def __init__(self, environment: Any, tables: list[Any], gate: Gate, resident_pages: ResidentPages) -> None:
        self._environment = environment
        self._tables = tables
        self._gate = gate
        self._resident_pages = resident_pages

    def __enter__(self) -> Transaction:
        self._entered = self._gate.enter()
        try:
            # Inside the gate: it hands back pages of the map that is there now.
            self._resident_pages.count()
            self._transaction = self._environment.begin()
        except BaseException as error:
            self._gate.leave(self._entered)
            if isinstance(error, lmdb.PanicError):
                # LMDB lets nobody in any more once a meta page could not be written.
                raise CommitFailed(str(error)) from error
            raise
        return LmdbTransaction(self._transaction, self._tables)

    def __exit__(self, *raised: object) -> None:
        self._transaction.abort()
        self._gate.leave(self._entered)
        if isinstance(raised[1], lmdb.Error):
            raise StoreUnusable(f"the store can't be read: {raised[1]}") from raised[1]


class Write:
    """A write transaction. No room raises StoreFull; any other error of LMDB means that the disk failed."""

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


def _make_data(data: Path) -> None:
    """An empty store gets its name when it is complete on disk: no start would open half a file left by a power cut."""
    beside = data.with_name("data.mdb.making")
    beside.unlink(missing_ok=True)
    with open_private(beside, "xb"), _open_environment(beside, FIRST_SIZE, alone=True) as environment:
        environment.sync(True)
    beside.rename(data)


def _open_environment(path: Path, map_size: int, *, alone: bool = False) -> Any:
    """Opens a folder with a store in it; or, `alone`, a file that nobody else knows, which the caller syncs."""
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
    """Copy every row into a new file, in order and so without gaps. Returns the number of rows of each table.

    Not LMDB's own compacting copy: that of 0.9.36 crashes if one key of a table with values of one length has more of
    them than fit a page.
    """
    # A copy can't take more pages than its source; half of that again, for the ways in which pages can be split.
    with _open_environment(copy, source.info()["map_size"] * 3 // 2 + FIRST_SIZE, alone=True) as target:
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
