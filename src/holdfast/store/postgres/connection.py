"""One connection to the database, and what its errors mean.

A `Line` is used by one thread at a time and connects anew when it has to. Whatever the reason, a database that can't be
reached or does not take writes is StoreAway: refused, reset, shutting down, just starting, a standby after a failover,
or one that says nothing. So is a commit that the server no longer waits to see on its standby.
What two transactions did to each other (a deadlock, a serialization failure, the same row twice), and what was undone
because this process stood still in the middle of it, is tried again here. A division by zero is what the fence of
ownership says no with. Anything else is a fault of ours or of the
tables, and CommitFailed. Of what the server says only the message itself is kept: its details repeat stored rows.
"""

import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from select import POLLIN, poll
from typing import Any, TypeVar
from weakref import WeakSet

import psycopg
import trio
from psycopg import errors

from holdfast.core.errors import CommitFailed, Fenced, RowsLocked, StoreAway, StoreError
from holdfast.store.postgres import arrays
from holdfast.store.postgres.schema import LOCK_TIMEOUT, SCHEMA, STATEMENT_TIMEOUT
from holdfast.store.postgres.statements import Statement

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
    f"SET statement_timeout TO '{STATEMENT_TIMEOUT}'",
    "SET idle_in_transaction_session_timeout TO '30s'",
)
_DURABLE = """SELECT set_config('synchronous_commit', CASE WHEN now IN ('off', 'local') THEN 'on' ELSE now END, false)
    FROM current_setting('synchronous_commit') AS now"""
"""Set in any case: whatever the server's config says later, this session's commits are as durable as at first."""
_IN_DOUBT = ("01000", "57P01")
"""What the server warns by that it committed and did not wait for its standby: cancelled, or told to end."""

_IN_THE_WAY = "the database's transactions are in each other's way"

_logger = logging.getLogger("holdfast.store")
# What it warns of is the end of a connection, which is told as StoreAway: on stderr it would only be said twice.
logging.getLogger("psycopg").setLevel(logging.ERROR)


class NoAnswer(StoreAway):
    """The database did not say anything in time."""


class _Place:
    """Where a line's connection is, and who may use it. Whoever was given up keeps the one that he has."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.prepared: set[Statement] = set()
        self.turn = trio.CapacityLimiter(1)
        self.doubt: str | None = None
        self.told: list[str] = []
        """What notifications said that came with the answers to other things."""
        self._socket: socket.socket | None = None

    def take(self, connection: Connection) -> None:
        # A descriptor of our own: the driver's number may be another's by the time that someone hangs up.
        self._socket = socket.socket(fileno=os.dup(connection.pgconn.socket))
        self.connection = connection
        connection.add_notice_handler(self._hear)
        connection.add_notify_handler(lambda notification: self.told.append(notification.payload))

    def _hear(self, said: psycopg.errors.Diagnostic) -> None:
        if said.severity_nonlocalized == "WARNING" and said.sqlstate in _IN_DOUBT:
            self.doubt = said.message_primary

    def take_told(self) -> list[str]:
        """What the driver and libpq have heard."""
        assert self.connection is not None
        told, self.told = self.told, []
        return told + [each.extra.decode() for each in iter(self.connection.pgconn.notifies, None)]

    def check_doubt(self) -> None:
        if self.doubt is not None:
            raise StoreAway(f"the commit may not be on the standby: {_line(self.doubt)}")

    def hang_up(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def is_ready_for(self, statement: Statement) -> bool:
        connection = self.connection
        return connection is not None and statement in self.prepared and not _is_over(connection, False)

    def drop(self) -> None:
        connection, self.connection = self.connection, None
        self.prepared.clear()
        if self._socket is not None:
            self._socket.close()
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()


@dataclass(slots=True)
class _Use:
    """Of a connection. `began`: it waits no more for those before it. `is_over`: nobody waits for it."""

    began: bool = False
    is_over: bool = False


class Line:
    """`threaded` False does everything on the loop: for virtual time, where no thread may run. `listens`: what the
    server says unasked is waited for.
    """

    def __init__(
        self, url: str, name: str, *, threaded: bool, listens: bool = False, lock_timeout: str = LOCK_TIMEOUT
    ) -> None:
        self._url = url
        self._name = name
        self._threaded = threaded
        self._listens = listens
        self._lock_timeout = lock_timeout
        self._place = _Place()
        self._ends_at = float("inf")
        self._waiting: WeakSet[trio.CancelScope] = WeakSet()

    def end_by(self, moment: float) -> None:
        """Wait for nothing after this moment, by trio's time: the process ends."""
        self._ends_at = moment
        for scope in self._waiting:
            scope.deadline = min(scope.deadline, moment)

    async def run(self, work: Work[Result], *, within: float) -> Result:
        """Do something in one transaction that `work` commits, or that is undone.

        After `within` seconds StoreAway is raised whatever becomes of it, and the next use connects anew. What is still
        connecting then goes on with that: the next server of several may be the one that answers.
        """
        await trio.lowlevel.checkpoint()  # Whoever calls it over and over can be cancelled here alone.
        place, use = self._place, _Use()
        if not self._threaded:
            return self._attempt(place, work)

        def do(connection: Connection) -> Result:
            if use.is_over:
                raise StoreAway("nobody waits for it any more")
            return work(connection)

        def attempt() -> Result:
            use.began = True
            return self._attempt(place, do)

        with self._at_most(within):
            return await trio.to_thread.run_sync(attempt, limiter=place.turn, abandon_on_cancel=True)
        use.is_over = True
        if use.began and place is self._place:
            self.hang_up()
        raise NoAnswer(f"the database did not answer within {within:.0f} s")

    def _at_most(self, within: float) -> trio.CancelScope:
        scope = trio.CancelScope(shield=True, deadline=min(trio.current_time() + within, self._ends_at))
        self._waiting.add(scope)
        return scope

    def hang_up(self) -> None:
        """Use another connection from now on. Whoever waits for an answer on this one hears that there is none."""
        place = self._place
        if place.connection is None:
            return
        self._place = _Place()
        if place.turn.borrowed_tokens:
            place.hang_up()  # Its thread closes it.
        else:
            place.drop()

    async def carry_out(self, statement: Statement, values: Mapping[str, Any], *, within: float) -> list[Any]:
        """Do one statement that is a transaction by itself, on the loop. Returns its rows; otherwise as `run`."""
        if not self._threaded:
            return await self.run(partial(_alone, statement=statement, values=values), within=within)
        for _ in range(TRIES):
            place = self._place
            await _take(place.turn)
            try:
                if place.is_ready_for(statement):
                    return await self._exchange(place, statement, values, within)
            except (*IN_THE_WAY, *_STOOD_STILL):
                continue
            except errors.InvalidSqlStatementName:
                place.prepared.clear()  # The driver has the server forget all of them when it rolls back.
            finally:
                place.turn.release()
            await self.run(partial(_prepare, statement=statement, prepared=place.prepared), within=within)
        raise StoreAway(_IN_THE_WAY)

    async def _exchange(
        self, place: _Place, statement: Statement, values: Mapping[str, Any], within: float
    ) -> list[Any]:
        assert place.connection is not None
        with self._at_most(within):
            try:
                place.doubt = None
                rows = await statement.run(place.connection.pgconn, values)
                place.check_doubt()
                return rows
            except Exception as error:
                self._raise_meaning_of(error, place)
                raise
        place.drop()
        raise NoAnswer(f"the database did not answer within {within:.0f} s")

    async def told(self, within: float) -> list[str]:
        """What the server has notified of since it was last asked. Waits at most so many seconds, and no longer than
        until the server hangs up. For a line that one task alone uses.
        """
        place = self._place
        if place.connection is None or place.connection.closed:
            raise StoreAway("the connection that listens is gone")
        if told := place.take_told():
            return told
        with trio.move_on_after(within):
            await trio.lowlevel.wait_readable(place.connection.pgconn.socket)
        try:
            place.connection.pgconn.consume_input()
        except Exception as error:
            self._raise_meaning_of(error, place)
            raise
        return place.take_told()

    def close(self) -> None:
        self._place.drop()

    def _attempt(self, place: _Place, work: Work[Result]) -> Result:
        for _ in range(TRIES):
            try:
                return self._once(place, work)
            except (*IN_THE_WAY, *_STOOD_STILL):
                if place is not self._place:
                    break
        raise StoreAway(_IN_THE_WAY)

    def _once(self, place: _Place, work: Work[Result]) -> Result:
        try:
            connection = self._open(place)
            place.doubt = None
            try:
                result = work(connection)
                place.check_doubt()
                return result
            finally:
                if place is not self._place:
                    place.drop()
                elif not connection.closed:
                    _tidy(connection)
        except Exception as error:
            self._raise_meaning_of(error, place)
            raise

    def _raise_meaning_of(self, error: Exception, place: _Place) -> None:
        """Returns if it means what it is. A connection that is of no more use is dropped."""
        if isinstance(error, (*IN_THE_WAY, errors.InvalidSqlStatementName, StoreError)):
            return
        if isinstance(error, errors.DivisionByZero):
            raise Fenced() from error
        if isinstance(error, errors.LockNotAvailable):
            raise RowsLocked("rows of the database are locked by someone else") from error
        place.drop()
        if isinstance(error, _STOOD_STILL):
            return
        if isinstance(error, _AWAY):
            raise StoreAway(_text(error)) from error
        failed = CommitFailed(f"the database refused what was asked of it: {_text(error)}")
        # The place in the code is told, and not the error itself: its text would be told along.
        _logger.error("the database refused what was asked of it", exc_info=(CommitFailed, failed, error.__traceback__))
        raise failed from None

    def _open(self, place: _Place) -> Connection:
        """The connection, made if there is none, or if the server has hung up on the one there was."""
        if place.connection is not None and _is_over(place.connection, self._listens):
            place.drop()
        return place.connection or connect(self._url, self._name, place.take, self._lock_timeout)


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


def _alone(connection: Connection, statement: Statement, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    connection.autocommit = True
    return connection.execute(statement.text, values).fetchall()


def _prepare(connection: Connection, statement: Statement, prepared: set[Statement]) -> None:
    if statement not in prepared:
        statement.prepare(connection.pgconn)
        prepared.add(statement)


async def _take(turn: trio.CapacityLimiter) -> None:
    """Without a pass of the loop where nobody else has it."""
    try:
        turn.acquire_nowait()
    except trio.WouldBlock:
        await turn.acquire()


def _tidy(connection: Connection) -> None:
    """Undo what was not committed. What only reads commits: with each rollback the driver forgets what it prepared."""
    if connection.info.transaction_status:
        connection.rollback()
    connection.autocommit = False


def connect(
    url: str,
    name: str,
    connected: Callable[[Connection], None] = lambda connection: None,
    lock_timeout: str = LOCK_TIMEOUT,
) -> Connection:
    """A connection to a server that takes writes, with time-outs on what could hang; `connected` has it from the moment
    that there is a server.
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
        arrays.register(connection)
        for setting in (*_SETTINGS, f"SET lock_timeout TO '{lock_timeout}'"):
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
    looking = poll()
    looking.register(connection.pgconn.socket, POLLIN)
    try:
        # The last words come before the end of the stream, and each is a read.
        while looking.poll(0):
            connection.pgconn.consume_input()
    except psycopg.OperationalError:
        return True
    return False


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
