"""A connection of psycopg's to the database, the shapes of transaction made on one, and what its errors mean.

    error                                                        becomes
    -----                                                        -------
    refused, reset, shutting down, starting, no tables,
    a standby, no answer, a commit its standby may not have      StoreUnreachable: it may pass
    wrong name, password or database; only at `connected`        StoreUnusable
    a division by zero: the fence of ownership_tables.py refuses        Fenced
    a row lock that another session holds                        RowsLocked
    deadlock, serialization failure, the same row twice,
    an idle time-out: this process was stopped for a while       the transaction is tried again
    anything else: a fault of ours or of the tables              CommitFailed

Of an error's text only the message itself is kept: the server's details repeat stored rows.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from select import POLLIN, poll
from typing import Any, TypeVar

import psycopg
from psycopg import IsolationLevel, errors
from psycopg.conninfo import conninfo_to_dict

from holdfast.core.errors import CommitFailed, Fenced, RowsLocked, StoreError, StoreUnreachable, StoreUnusable
from holdfast.store.postgres import statements
from holdfast.store.postgres.schema import LOCK_TIMEOUT, SCHEMA, STATEMENT_TIMEOUT, shown

Result = TypeVar("Result")
Connection = psycopg.Connection[Any]
Cursor = psycopg.Cursor[Any]
Work = Callable[[Connection], Result]

CONNECT_WITHIN = 3
NAME_SIZE = 63
"""Bytes of a connection's name that the server keeps."""
TRIES = 20
"""Times that a transaction is tried while it conflicts with others."""
PAGE = 500
"""Rows that `pages` reads at once."""

CONFLICTS = (errors.SerializationFailure, errors.DeadlockDetected, errors.UniqueViolation)
STALLED = (errors.IdleInTransactionSessionTimeout, errors.TransactionTimeout)
CONFLICTING = "the database's transactions are in each other's way"
_UNREACHABLE = (
    psycopg.OperationalError,  # includes all of class 57 and what libpq itself meets
    psycopg.InterfaceError,
    errors.ReadOnlySqlTransaction,
    errors.UndefinedTable,  # a database that was restored from elsewhere, and is not migrated yet
)
_REFUSED = re.compile(
    r"authentication failed|no password supplied|(?:database|role) \"[^\"]*\" does not exist|no such (?:database|user)"
    r"|no pg_hba\.conf entry|invalid [a-z_]+ value|not permitted to log in|permission denied for database"
)
"""libpq has no codes for the answers of a server to a new connection. Texts that do not match may pass."""

_SETTINGS = (
    f"SET search_path TO {SCHEMA}",
    f"SET statement_timeout TO '{STATEMENT_TIMEOUT}'",
    "SET idle_in_transaction_session_timeout TO '30s'",
)
_SET_DURABLE = """SELECT set_config('synchronous_commit', CASE WHEN now IN ('off', 'local') THEN 'on' ELSE now END,
    false) FROM current_setting('synchronous_commit') AS now"""
"""Keeps the session's commits as durable as now, even if the server's config changes later."""

_logger = logging.getLogger("holdfast.store")
# Its warnings are about the end of a connection, which StoreUnreachable reports already.
logging.getLogger("psycopg").setLevel(logging.ERROR)


def connect(
    url: str,
    name: str,
    connected: Callable[[Connection], None] = lambda connection: None,
    lock_timeout: str = LOCK_TIMEOUT,
) -> Connection:
    """Connects to a server that takes writes, with time-outs on all that could hang. Calls `connected` before the
    first statement.
    """
    connection = psycopg.connect(
        url,
        connect_timeout=CONNECT_WITHIN,
        application_name=f"holdfast {name}"[:NAME_SIZE],
        target_session_attrs="read-write",
        tcp_user_timeout=5_000,
        keepalives_idle=5,
        keepalives_interval=2,
        keepalives_count=3,
        autocommit=True,
    )
    try:
        connected(connection)
        statements.register(connection)
        for setting in (*_SETTINGS, f"SET lock_timeout TO '{lock_timeout}'"):
            with suppress(errors.FeatureNotSupported, errors.UndefinedObject, errors.InvalidParameterValue):
                connection.execute(setting)
        with suppress(errors.FeatureNotSupported, errors.UndefinedObject, errors.UndefinedFunction):
            connection.execute(_SET_DURABLE)
        connection.autocommit = False
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """A connection outside of a transaction, for a start or a command. Raises StoreUnusable or StoreUnreachable."""
    try:
        connection = connect(url, "start")
        try:
            connection.autocommit = True
            yield connection
        finally:
            connection.close()
    except psycopg.Error as error:
        first_line = str(error).partition("\n")[0].strip() or type(error).__name__
        refused = isinstance(error, errors.InsufficientPrivilege) or _REFUSED.search(str(error))
        raise (StoreUnusable if refused else StoreUnreachable)(f"{shown(url)}: {first_line}") from error


def url_fault(url: str) -> str | None:
    """Why libpq can't use a URL, if it can't."""
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        return one_line(str(error))
    return None


def is_closed(connection: Connection, listens: bool) -> bool:
    """Whether the server has closed the connection. A commit that finds this out leaves its result unknown. A
    connection that `listens` is not asked: its input may be notifications.
    """
    if connection.closed or listens:
        return connection.closed
    looking = poll()
    looking.register(connection.pgconn.socket, POLLIN)
    try:
        # The server's last messages come before the end of the stream, and each is a read.
        while looking.poll(0):
            connection.pgconn.consume_input()
    except psycopg.OperationalError:
        return True
    return False


# -- transactions ----------------------------------------------------------------------------------------------------


@contextmanager
def beginning(connection: Connection) -> Iterator[None]:
    """Sends the first statements of a transaction in one round trip. The driver would wait for the answer to its BEGIN,
    and to anything that is fetched before the block ends.
    """
    connection.autocommit = True
    with connection.pipeline():
        connection.execute("BEGIN", prepare=False)
        yield


def commit_along(connection: Connection) -> None:
    """Commits with the statements of a pipeline, at its end. The driver's own commit is one more round trip."""
    connection.execute("COMMIT", prepare=False)


def reading(work: Work[Result]) -> Work[Result]:
    """Makes a transaction of `work`, which only reads. It commits: after a rollback the driver prepares anew."""

    def read(connection: Connection) -> Result:
        result = work(connection)
        connection.commit()
        return result

    return read


def outside_transaction(work: Work[Result]) -> Work[Result]:
    def run(connection: Connection) -> Result:
        connection.autocommit = True
        return work(connection)

    return run


def roll_back(connection: Connection) -> None:
    """Undoes what was not committed."""
    if connection.info.transaction_status:
        connection.rollback()
    connection.autocommit = False


def retried(connection: Connection, work: Work[Result]) -> Result:
    """Does `work` in one transaction and commits it. Tries again after a conflict with another transaction."""
    for _ in range(TRIES):
        try:
            result = work(connection)
            connection.commit()
            return result
        except CONFLICTS:
            connection.rollback()
        except BaseException:
            connection.rollback()
            raise
    raise StoreUnreachable(CONFLICTING)


@contextmanager
def snapshot(connection: Connection) -> Iterator[None]:
    """All reads within see the database at one moment, however long they take."""
    connection.isolation_level, connection.read_only = IsolationLevel.REPEATABLE_READ, True
    try:
        # Whoever consumes the rows may take a while over a page.
        connection.execute("SET LOCAL idle_in_transaction_session_timeout TO 0")
        yield
    finally:
        connection.rollback()
        connection.isolation_level, connection.read_only = None, None


def pages(connection: Connection, query: str, after: Mapping[str, Any]) -> Iterator[list[Any]]:
    """The rows that `query` finds after a key, in its order. `after` names the key's columns, which each row begins
    with.
    """
    by, last = ", ".join(after), [*after.values()]
    query = f"{query} WHERE ({by}) > ({', '.join(['%s'] * len(last))}) ORDER BY {by} LIMIT %s"
    while found := connection.execute(query, (*last, PAGE)).fetchall():
        yield found
        last = found[-1][: len(after)]


# -- errors ----------------------------------------------------------------------------------------------------------


def raise_meaning_of(error: Exception, drop: Callable[[], None]) -> None:
    """Raises the StoreError that an error means, or returns if it is to be raised as it is. Calls `drop` if the
    connection can't be used any more.
    """
    if isinstance(error, (*CONFLICTS, errors.InvalidSqlStatementName, StoreError)):
        return
    if isinstance(error, errors.DivisionByZero):
        raise Fenced() from error
    if isinstance(error, errors.LockNotAvailable):
        raise RowsLocked("rows of the database are locked by someone else") from error
    drop()
    if isinstance(error, STALLED):
        return
    if isinstance(error, _UNREACHABLE):
        raise StoreUnreachable(_text(error)) from error
    failed = CommitFailed(f"the database refused what was asked of it: {_text(error)}")
    # Only the place in the code is logged: the error's own text repeats stored rows.
    _logger.error("the database refused what was asked of it", exc_info=(CommitFailed, failed, error.__traceback__))
    raise failed from None


def _text(error: Exception) -> str:
    """One line without stored values: a server adds the failing row, the statement and its parameters."""
    kind = type(error).__name__
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        return f"{one_line(error.diag.message_primary)} ({kind}, SQLSTATE {error.sqlstate})"
    # libpq's own texts are about the connection.
    return one_line(str(error)) or kind if isinstance(error, _UNREACHABLE) else kind


def one_line(text: str) -> str:
    return " ".join(text.split())
