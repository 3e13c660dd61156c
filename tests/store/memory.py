"""The tables in memory, with the same transactions: for tests in virtual time, where no thread may run.

A `MemoryEngine` outlives the store that uses it, as a disk does; a transaction that was not committed leaves no trace.
`fail_next` makes the next commits fail as a disk would.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator

from holdfast.core.errors import StoreError
from holdfast.store.embedded.shares import OUTCOME_TABLES, reserved
from holdfast.store.embedded.tables import DUPLICATES, Fault, Room, Table, Transaction

_Item = tuple[bytes, bytes]


class _Sorted:
    """One table: items in order, and a dictionary for single values."""

    def __init__(self) -> None:
        self.items: list[_Item] = []
        self.single: dict[bytes, bytes] = {}


class MemoryEngine:
    threaded = False

    def __init__(self, max_size: int = 1 << 30) -> None:
        self.path = ":memory:"
        self.fail_next: deque[StoreError] = deque()
        self.commits = 0
        self._max_size = max_size
        self._tables = [_Sorted() for _ in Table]

    def read(self) -> "Session":
        return Session(self)

    def write(self) -> "Session":
        return Session(self)

    def room(self) -> Room:
        taken = {table: self._taken(rows) for table, rows in zip(Table, self._tables, strict=True)}
        entries = {table: len(rows.items) for table, rows in zip(Table, self._tables, strict=True)}
        aside = reserved(entries, sum(taken[table] for table in OUTCOME_TABLES))
        return Room(sum(taken.values()), aside, self._max_size)

    @staticmethod
    def _taken(rows: _Sorted) -> int:
        return sum(len(key) + len(value) for key, value in rows.items) + sum(map(len, rows.single.values()))

    def extend(self, bytes_ahead: int) -> None:
        """Memory needs no room ahead."""

    def grow(self) -> bool:
        """Room is what a test says."""
        return False

    def close(self) -> None:
        """What was committed stays for the next store on this engine."""


class Session:
    """A transaction that undoes its changes unless it was committed."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine
        self._undo: list[Callable[[], object]] = []

    def __enter__(self) -> Transaction:
        return MemoryTransaction(self._engine._tables, self._undo)

    def commit(self) -> None:
        if self._engine.fail_next:
            raise self._engine.fail_next.popleft()
        self._engine.commits += 1
        self._undo.clear()

    def __exit__(self, *error: object) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()


class MemoryTransaction:
    def __init__(self, tables: list[_Sorted], undo: list[Callable[[], object]]) -> None:
        self._tables = tables
        self._undo = undo
        self.faults: list[Fault] = []

    def get(self, table: Table, key: bytes) -> bytes | None:
        return self._tables[table].single.get(key)

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        assert table not in DUPLICATES
        rows = self._tables[table]
        before = rows.single.get(key)
        if before is None:
            insort(rows.items, (key, b""))
            self._undo.append(lambda: self._drop(rows, key))
        else:
            self._undo.append(lambda: rows.single.__setitem__(key, before))
        rows.single[key] = value

    def delete(self, table: Table, key: bytes) -> bool:
        rows = self._tables[table]
        before = rows.single.get(key)
        if before is None:
            return False
        self._drop(rows, key)
        self._undo.append(lambda: self._restore(rows, key, before))
        return True

    def add(self, table: Table, key: bytes, value: bytes) -> None:
        items = self._tables[table].items
        place = bisect_left(items, (key, value))
        if place == len(items) or items[place] != (key, value):
            items.insert(place, (key, value))
            self._undo.append(lambda: items.remove((key, value)))

    def remove(self, table: Table, key: bytes, value: bytes) -> bool:
        items = self._tables[table].items
        place = bisect_left(items, (key, value))
        if place == len(items) or items[place] != (key, value):
            return False
        del items[place]
        self._undo.append(lambda: insort(items, (key, value)))
        return True

    def values(self, table: Table, key: bytes, start: bytes = b"") -> Iterator[bytes]:
        items = self._tables[table].items
        place = bisect_left(items, (key, start))
        while place < len(items) and items[place][0] == key:
            yield items[place][1]
            place += 1

    def count(self, table: Table, key: bytes) -> int:
        items = self._tables[table].items
        return bisect_left(items, (key + b"\0", b"")) - bisect_left(items, (key, b""))

    def scan(self, table: Table, start: bytes = b"") -> Iterator[_Item]:
        rows = self._tables[table]
        place = bisect_left(rows.items, (start, b""))
        while place < len(rows.items):
            key, value = rows.items[place]
            yield key, value if table in DUPLICATES else rows.single[key]
            place += 1

    def last(self, table: Table) -> bytes | None:
        items = self._tables[table].items
        return items[-1][0] if items else None

    def entries(self, table: Table) -> int:
        return len(self._tables[table].items)

    @staticmethod
    def _drop(rows: _Sorted, key: bytes) -> None:
        del rows.single[key]
        del rows.items[bisect_left(rows.items, (key, b""))]

    @staticmethod
    def _restore(rows: _Sorted, key: bytes, value: bytes) -> None:
        insort(rows.items, (key, b""))
        rows.single[key] = value
