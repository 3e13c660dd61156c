"""How a whole store is gone through while a fleet works on it: read as it is at one moment, a page at a time, and
changed in short transactions.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from psycopg import IsolationLevel

from holdfast.core.errors import StoreAway
from holdfast.store.postgres.connection import IN_THE_WAY, TRIES, Connection, Result, Work

PAGE = 500


@contextmanager
def snapshot(connection: Connection) -> Iterator[None]:
    """What is read within is all of one moment, however long it takes."""
    connection.isolation_level, connection.read_only = IsolationLevel.REPEATABLE_READ, True
    try:
        # Whoever writes down what is read may take a while over a page.
        connection.execute("SET LOCAL idle_in_transaction_session_timeout TO 0")
        yield
    finally:
        connection.rollback()
        connection.isolation_level, connection.read_only = None, None


def pages(connection: Connection, query: str, after: Mapping[str, Any]) -> Iterator[list[Any]]:
    """What `query` finds after a key, in its order. `after` names the key's columns, which each row begins with."""
    by, last = ", ".join(after), [*after.values()]
    query = f"{query} WHERE ({by}) > ({', '.join(['%s'] * len(last))}) ORDER BY {by} LIMIT %s"
    while found := connection.execute(query, (*last, PAGE)).fetchall():
        yield found
        last = found[-1][: len(after)]


def repeated(connection: Connection, work: Work[Result]) -> Result:
    """Do something in one transaction and commit it; once more if others got in its way."""
    for _ in range(TRIES):
        try:
            result = work(connection)
            connection.commit()
            return result
        except IN_THE_WAY:
            connection.rollback()
        except BaseException:
            connection.rollback()
            raise
    raise StoreAway("the database's transactions are in each other's way")
