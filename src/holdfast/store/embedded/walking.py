"""Every row of a table, a batch at a time: nothing that goes through a whole store holds one transaction for it."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

from holdfast.core.errors import StoreFull, StoreUnusable
from holdfast.store.embedded.tables import DUPLICATES, Engine, Table, Transaction

BATCH = 500
STEP_BYTES = 8 << 20
"""Room that the writing of one batch may need."""

Row = tuple[bytes, bytes]
Result = TypeVar("Result")


def walk(engine: Engine, table: Table) -> Iterator[tuple[Transaction, Row]]:
    """Each row, together with the read transaction of its batch."""
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
    """One transaction of a walk that changes what it meets. What does not fit is acted on anew, with more room."""
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
    """The batch that follows a row, whether or not that row is still there."""
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
