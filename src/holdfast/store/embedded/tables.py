"""The tables, and the transaction that every engine offers on them.

A message's record is written once and never changed; the index that it stands in tells its state.

    table      key                 value                 holds
    -----      ---                 -----                 -----
    MESSAGES   id                  message record        all that is not delivered, with the body while it is small
    BODIES     id | piece          bytes                 larger bodies
    ACTIVE     id                  lane                  accepted while nothing waited in the lane; emptied at start
    WAITING    lane (dup)          born | id             the lane's queue by age
    RETRY      lane (dup)          due | id              retries and delayed first attempts, by time
    AGING      lane (dup)          born | id             the same ones by age: for probes and expiry
    PLACES     id                  place                 of each message with a retry, an attempt or a replay behind it
    ATTEMPTS   id, id | ff         attempts, answers     failed attempts (attempts.py tells of rows by number)
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

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple, Protocol


class Table(IntEnum):
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
"""Tables with many sorted values a key: `count` is then as cheap for a million as for one."""


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
"""The numbers that all lanes' moments were computed by."""
META_EPOCH = b"epoch"
"""With the number of an epoch of KEYS after it."""

Fault = tuple[Table, bytes, str]
"""A row that can't be read: its table and key, and what is wrong."""


class Transaction(Protocol):
    """One consistent view; in a write transaction also its changes. Iterators end before the next change.

    Whoever meets a row that can't be read goes on without it, and leaves word in `faults`.
    """

    faults: list[Fault]

    def get(self, table: Table, key: bytes) -> bytes | None: ...

    def put(self, table: Table, key: bytes, value: bytes) -> None: ...

    def delete(self, table: Table, key: bytes) -> bool: ...

    def add(self, table: Table, key: bytes, value: bytes) -> None:
        """Add one value to a key of a table with duplicates."""

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
    """How much of the store is in use, what is set aside besides for outcomes, and how much both may be."""

    used: int
    reserved: int
    limit: int

    @property
    def needed(self) -> int:
        return self.used + self.reserved


class Engine(Protocol):
    """Tables somewhere. `write` runs in the writer's thread, `read` in any."""

    path: str
    threaded: bool
    """Whether its calls may block, and so belong on a thread."""

    def read(self) -> "Reading": ...

    def write(self) -> "Writing": ...

    def room(self) -> Room: ...

    def extend(self, bytes_ahead: int) -> None:
        """Make sure of room for so many bytes of new messages besides what is set aside, or raise StoreFull."""

    def grow(self) -> bool:
        """Whether there is more room now for a transaction that ended in StoreFull."""

    def close(self) -> None: ...


class Reading(Protocol):
    def __enter__(self) -> Transaction: ...

    def __exit__(self, *error: object) -> None: ...


class Writing(Protocol):
    """A write transaction: `commit` makes it durable or raises, leaving without it undoes everything."""

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
