"""One connection to the database, and what its errors mean.

A `Line` is used by one thread at a time and connects anew when it has to. Whatever the reason, a database that can't be
reached or does not take writes is StoreAway: refused, reset, shutting down, just starting, a standby after a failover.
What two transactions did to each other (a deadlock, a serialization failure, the same row twice), and what was undone
because this process stood still in the middle of it, is tried again here. Anything else is a fault of ours or of the
tables, and CommitFailed. Of what the server says only the message itself is kept: its details repeat stored rows.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from select import POLLIN, poll
from typing import Any, TypeVar

import psycopg
import trio
from psycopg import errors

from holdfast.core.errors import CommitFailed, StoreAway, StoreError
from holdfast.store.postgres import arrays
from holdfast.store.postgres.schema import SCHEMA

Result = TypeVar("Result")
Connection = psycopg.Connection[Any]
Cursor = psycopg.Cursor[Any]
Work = Callable[[Connection], Result]

CONNECT_WITHIN = 3
NAME_SIZE = 63
"""Bytes of a name that the server keeps."""
TRIES = 20
"""Of a transaction that others got in the way of."""

IN_THE_WAY = (errors.SerializationFailure, errors.DeadlockDetected, errors.UniqueViolation)
_STOOD_STILL = (errors.IdleInTransactionSessionTimeout, errors.TransactionTimeout)
_AWAY = (
    psycopg.OperationalError,  # includes all of class 57 and what libpq itself meets
    psycopg.InterfaceError,
    errors.ReadOnlySqlTransaction,
    errors.UndefinedTable,  # a database that was put back from elsewhere, and is not migrated yet
)
_REFUSED = (errors.InvalidAuthorizationSpecification, errors.InvalidPassword, errors.InvalidCatalogName)

_SETTINGS = (
    f"SET search_path TO {SCHEMA}",
    "SET statement_timeout TO '30s'",
    "SET lock_timeout TO '10s'",
    "SET idle_in_transaction_session_timeout TO '30s'",
)
_DURABLE = """SELECT set_config('synchronous_commit', 'on', false)
    WHERE current_setting('synchronous_commit') IN ('off', 'local')"""

_logger = logging.getLogger("holdfast.store")
# What it warns of is the end of a connection, which is told as StoreAway: on stderr it would only be said twice.
logging.getLogger("psycopg").setLevel(logging.ERROR)


class _Place:
    """Where a line's connection is, and who may use it. Whoever was given up keeps the one that he has."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.turn = trio.CapacityLimiter(1)

    def drop(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()


class Line:
    """`threaded` False does everything on the loop: for virtual time, where no thread may run. `listens`: what the
    server says unasked is waited for.
    """

    def __init__(self, url: str, name: str, *, threaded: bool, listens: bool = False) -> None:
        self._url = url
        self._name = name
        self._threaded = threaded
        self._listens = listens
        self._place = _Place()

    async def run(self, work: Work[Result], *, within: float | None = None) -> Result:
        """Do something in one transaction that `work` commits, or that is undone.

        After `within` seconds StoreAway is raised whatever becomes of it, and the next use connects anew.
        """
        await trio.lowlevel.checkpoint()  # Whoever calls it over and over can be cancelled here alone.
        place = self._place
        if not self._threaded:
            return self._attempt(place, work)
        with trio.CancelScope(shield=within is None, deadline=_deadline(within)) as scope:
            return await trio.to_thread.run_sync(
                self._attempt, place, work, limiter=place.turn, abandon_on_cancel=within is not None
            )
        if scope.cancelled_caught:
            self._place = _Place()  # Its thread still waits for an answer, and ends by its own time-outs.
        raise StoreAway(f"the database did not answer within {within:.0f} s")

    async def until_told(self, within: float) -> None:
        """Wait until the server says something unasked, or hangs up, at most so many seconds."""
        connection = self._place.connection
        if connection is None or connection.closed:
            return
        with trio.move_on_after(within):
            await trio.lowlevel.wait_readable(connection.pgconn.socket)

    def close(self) -> None:
        self._place.drop()

    def _attempt(self, place: _Place, work: Work[Result]) -> Result:
        for _ in range(TRIES):
            try:
                return self._once(place, work)
            except (*IN_THE_WAY, *_STOOD_STILL):
                if place is not self._place:
                    break
        raise StoreAway("the database's transactions are in each other's way")

    def _once(self, place: _Place, work: Work[Result]) -> Result:
        try:
            connection = self._open(place)
            try:
                return work(connection)
            finally:
                if place is not self._place:
                    place.drop()
                elif not connection.closed:
                    _tidy(connection)
        except IN_THE_WAY:
            raise
        except _STOOD_STILL:
            place.drop()
            raise
        except _AWAY as error:
            place.drop()
            raise StoreAway(_text(error)) from error
        except StoreError:
            raise
        except Exception as error:
            place.drop()
            failed = CommitFailed(f"the database refused what was asked of it: {_text(error)}")
            # The place in the code is told, and not the error itself: its text would be told along.
            _logger.error(
                "the database refused what was asked of it", exc_info=(CommitFailed, failed, error.__traceback__)
            )
            raise failed from None

    def _open(self, place: _Place) -> Connection:
        """The connection, made if there is none, or if the server has hung up on the one there was."""
        if place.connection is not None and _is_over(place.connection, self._listens):
            place.drop()
        if place.connection is None:
            place.connection = connect(self._url, self._name)
        return place.connection


@contextmanager
def beginning(connection: Connection) -> Iterator[None]:
    """The first statements of a transaction, in one round trip. The driver would wait for the answer to its BEGIN, and
    to anything that is fetched before the block ends.
    """
    connection.autocommit = True
    with connection.pipeline():
        connection.execute("BEGIN", prepare=False)
        yield


def commit_along(connection: Connection) -> None:
    """Commit with the statements of a pipeline, at its end. The driver's own would be one more round trip."""
    connection.execute("COMMIT", prepare=False)


def _tidy(connection: Connection) -> None:
    """Undo what was not committed."""
    if connection.info.transaction_status:
        connection.rollback()
    connection.autocommit = False


def connect(url: str, name: str) -> Connection:
    """A connection to a server that takes writes, with time-outs on everything that could hang."""
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
        arrays.register(connection)
        for setting in _SETTINGS:
            with suppress(errors.FeatureNotSupported, errors.UndefinedObject, errors.InvalidParameterValue):
                connection.execute(setting)
        with suppress(errors.FeatureNotSupported, errors.UndefinedObject, errors.UndefinedFunction):
            connection.execute(_DURABLE)
        connection.autocommit = False
    except BaseException:
        connection.close()
        raise
    return connection


def _is_over(connection: Connection, listens: bool) -> bool:
    """Whether the server has hung up. Better found before a commit than by one: nobody could say if that was done."""
    if connection.closed or listens:
        return connection.closed
    socket = poll()
    socket.register(connection.pgconn.socket, POLLIN)
    try:
        # The last words come before the end of the stream, and each is a read.
        while socket.poll(0):
            connection.pgconn.consume_input()
    except psycopg.OperationalError:
        return True
    return False


def _deadline(within: float | None) -> float:
    return float("inf") if within is None else trio.current_time() + within


def _text(error: Exception) -> str:
    """What happened, in one line. A server adds the failing row, the statement and its parameters to its message, and
    an error of our own may be about a value: neither is for logs and clients.
    """
    kind = type(error).__name__
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        return f"{_line(error.diag.message_primary)} ({kind}, SQLSTATE {error.sqlstate})"
    # What libpq says itself is about the connection.
    return _line(str(error)) or kind if isinstance(error, _AWAY) else kind


def _line(text: str) -> str:
    return " ".join(text.split())
