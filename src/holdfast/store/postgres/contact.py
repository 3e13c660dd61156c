"""The first word with a database: whether it lets us in, whether its tables are of this version, what time it has.

Waiting mends much, and a gateway starts without its database too. But a name or password that is refused, a database
that is not there and tables of a newer version are StoreUnusable, and told at once. libpq gives no codes for what a
server says to a newcomer: it is known by its words, and what they do not fit is taken for something that passes.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import InsufficientPrivilege

from holdfast.core.errors import StoreAway, StoreUnusable
from holdfast.store.postgres.connection import Connection, connect
from holdfast.store.postgres.ownership import fleet_time
from holdfast.store.postgres.schema import bring_up_to_date, shown

_REFUSED = re.compile(
    r"authentication failed|no password supplied|(?:database|role) \"[^\"]*\" does not exist|no such (?:database|user)"
    r"|no pg_hba\.conf entry|invalid [a-z_]+ value|not permitted to log in|permission denied for database"
)


def make_contact(url: str) -> int:
    """Make the tables if need be; the fleet's time. Raises StoreUnusable, or StoreAway for what may pass."""
    with connected(url) as connection:
        bring_up_to_date(connection)
        return fleet_time(connection)


def migrate(url: str) -> tuple[int, int]:
    """Make every step that is missing, contracting ones too; the version before and after. Raises as above."""
    with connected(url) as connection:
        return bring_up_to_date(connection, contract=True)


def fault_of(url: str) -> str | None:
    """What libpq has against a URL, if anything: an option that it does not know."""
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        return " ".join(str(error).split())
    return None


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    try:
        connection = connect(url, "start")
        try:
            connection.autocommit = True
            yield connection
        finally:
            connection.close()
    except psycopg.Error as error:
        text = f"{shown(url)}: {_first_line(error)}"
        refused = isinstance(error, InsufficientPrivilege) or _REFUSED.search(str(error))
        raise (StoreUnusable(text) if refused else StoreAway(text)) from error


def _first_line(error: psycopg.Error) -> str:
    return str(error).partition("\n")[0].strip() or type(error).__name__
