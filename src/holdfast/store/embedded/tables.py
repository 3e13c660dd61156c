"""The tables, and the transaction that every engine offers on them.

A message's record is written once and never changed. Its state is the index that it is in.

    table      key                 value                 holds
    -----      ---                 -----                 -----
    MESSAGES   id                  message record        all that is not delivered, with the body while it is small
    BODIES     id | piece          bytes                 larger bodies
    ACTIVE     id                  lane                  accepted while nothing waited in the lane; emptied at start
    WAITING    lane (dup)          born | id             the lane's queue by age
    RETRY      lane (dup)          due | id              retries and delayed first attempts, by time
    AGING      lane (dup)          born | id             the same ones by age: for probes and expiry
    PLACES     id                  place                 of each message with a retry, an attempt or a replay behind it
    ATTEMPTS   id, id | ff         attempts, answers     failed attempts (older rows: by number)
    DELIVERED  id                  delivered record      small, kept for `retention.delivered`
    FINISHED   ms | id             ids                   one entry a group of deliveries: what the sweep walks
    DEAD       died | id           reason | lane         dead letters by time
    DEAD_LANE  lane (dup)          died | id             dead letters by lane
    LANES      lane                lane record           circuit, counters, limit
    SUMMARIES  lane                state and moments     what UNWELL and MOMENTS hold of this lane
    UNWELL     state (dup)         lane                  circuits that are not enabled
    MOMENTS    which | ms | lane   -                     each lane's next wake, expiry, oldest and due, in order
    KEYS       epoch | digest      id | body | ms        idempotency
    SHARES     host                bytes                 what waiting and dead messages of a host hold
    META       name                                      schema version, last time and id, epochs of KEYS
    SHIFTS     number              hosts and bytes       what hosts hold after the last groups: counts before SHARES
"""

from collections.abc import Callable, Iterator
from enum import IntEnum
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

from holdfast.core.errors import StoreFull, StoreUnusable


class Table(IntEnum):
    """-"""

    MESSAGES = 0
    BODIES = 1
    ACTIVE = 2
    WAITING = 3
    RETRY = 4
    AGING = 5
    PLACES = 6
    ATTEMPTS = 7
    DELIVERED = 8
    FINISHED = 9
    DEAD = 10
    DEAD_LANE = 11
    LANES = 12
    SUMMARIES = 13
    UNWELL = 14
    MOMENTS = 15
    KEYS = 16
    SHARES = 17
    META = 18
    SHIFTS = 19


DUPLICATES = frozenset({Table.WAITING, Table.RETRY, Table.AGING, Table.DEAD_LANE, Table.UNWELL})
"""Tables with many sorted values for a key. `count` costs the same for a million of them as for one."""


class Moment(IntEnum):
    """The moments of a lane that are kept in order over all lanes."""

    WAKE = 0
    EXPIRY = 1
    OLDEST = 2
    DUE = 3


SCHEMA = 3
META_SCHEMA = b"schema"
META_LATEST = b"latest"
META_RULES = b"rules"
"""The numbers by which all lanes' moments were computed."""
META_EPOCH = b"epoch"
"""Followed by the number of an epoch of KEYS."""
BATCH = 500
STEP_BYTES = 8 << 20
"""Room that the writing of one batch may need."""
Fault = tuple[Table, bytes, str]
"""A row that can't be read: its table, its key, and what is wrong."""
Row = tuple[bytes, bytes]
Result = TypeVar("Result")


class Transaction(Protocol):
    """One consistent view; in a write transaction also its changes. Iterators must end before the next change.

    A reader skips rows that can't be read and adds them to `faults`.
    """

    faults: list[Fault]

    def get(self, table: Table, key: bytes) -> bytes | None: ...

    def put(self, table: Table, key: bytes, value: bytes) -> None: ...

    def delete(self, table: Table, key: bytes) -> bool: ...

    def add(self, table: Table, key: bytes, value: bytes) -> None:
        """Add a value to a key of a table with duplicates."""

    def remove(self, table: Table, key: bytes, value: bytes) -> bool: ...

    def values(self, table: Table, key: bytes, start: bytes = b"") -> Iterator[bytes]:
        """A key's values in order, from `start` on."""

    def count(self, table: Table, key: bytes) -> int: ...

    def scan(self, table: Table, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys and values in order, from `start` on."""

    def last(self, table: Table) -> bytes | None:
        """The greatest key."""

    def entries(self, table: Table) -> int: ...


class Room(NamedTuple):
    """Bytes in use, bytes reserved for outcomes, and the limit for both."""

    used: int
    reserved: int
    limit: int

    @property
    def needed(self) -> int:
        return self.used + self.reserved


class Engine(Protocol):
    """The tables in one place. `write` runs on the writer's thread, `read` on any."""

    path: str
    threaded: bool
    """Whether its calls may block, and so belong on a thread."""

    def read(self) -> "ReadTransaction": ...

    def write(self) -> "WriteTransaction": ...

    def room(self) -> Room: ...

    def extend(self, bytes_ahead: int) -> None:
        """Make room for so many bytes of new messages besides what is reserved, or raise StoreFull."""

    def grow(self) -> bool:
        """Returns whether there is more room now for a transaction that ended in StoreFull."""

    def close(self) -> None: ...


class ReadTransaction(Protocol):
    def __enter__(self) -> Transaction: ...

    def __exit__(self, *error: object) -> None: ...


class WriteTransaction(Protocol):
    """A write transaction. `commit` makes it durable or raises; leaving without it undoes everything."""

    def __enter__(self) -> Transaction: ...

    def commit(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def first_value(transaction: Transaction, table: Table, key: bytes) -> bytes | None:
    return next(transaction.values(table, key), None)


def first_key(transaction: Transaction, table: Table, start: bytes = b"") -> bytes | None:
    for key, _ in transaction.scan(table, start):
        return key
    return None


def prefixed(transaction: Transaction, table: Table, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    for key, value in transaction.scan(table, prefix):
        if not key.startswith(prefix):
            return
        yield key, value


def moment_key(moment: Moment, ms: int = 0) -> bytes:
    return bytes([moment]) + ms.to_bytes(8, "big")


def walk(engine: Engine, table: Table) -> Iterator[tuple[Transaction, Row]]:
    """Yields every row with the read transaction of its batch. No transaction lasts for the whole table."""
    last: Row | None = None
    while True:
        try:
            with engine.read() as transaction:
                rows = rows_after(transaction, table, last)
                for row in rows:
                    yield transaction, row
        except StoreUnusable as error:
            advice = "the file is damaged; begin with a new store and import an export, or put back a copy"
            raise StoreUnusable(f"{error}, in the table {table.name.lower()}: {advice}") from error
        if not rows:
            return
        last = rows[-1]


def step(engine: Engine, act: Callable[[Transaction], Result], size: int = STEP_BYTES) -> Result:
    """Run `act` in one transaction of a walk. If it does not fit, it is run again with more room."""
    engine.extend(size)
    while True:
        try:
            with (writing := engine.write()) as transaction:
                result = act(transaction)
                writing.commit()
            return result
        except StoreFull:
            if not engine.grow():
                raise


def rows_after(transaction: Transaction, table: Table, last: Row | None) -> list[Row]:
    """Returns the batch that follows a row, whether or not that row is still there."""
    return list(islice(_after(transaction, table, last), BATCH))


def _after(transaction: Transaction, table: Table, last: Row | None) -> Iterator[Row]:
    start = b""
    if last is not None:
        key, value = last
        start = key + b"\0"
        if table in DUPLICATES:
            yield from ((key, each) for each in transaction.values(table, key, value) if each != value)
    yield from transaction.scan(table, start)


def has_row(transaction: Transaction, table: Table, key: bytes, value: bytes) -> bool:
    if table in DUPLICATES:
        return next(transaction.values(table, key, value), None) == value
    return transaction.get(table, key) == value


def put_row(transaction: Transaction, table: Table, key: bytes, value: bytes) -> None:
    if table in DUPLICATES:
        transaction.add(table, key, value)
    else:
        transaction.put(table, key, value)


def remove_row(transaction: Transaction, table: Table, key: bytes, value: bytes) -> None:
    if table in DUPLICATES:
        transaction.remove(table, key, value)
    else:
        transaction.delete(table, key)
