"""A client of the database: one connection, used by one transaction at a time and replaced when it breaks."""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self
from weakref import WeakSet

import psycopg
import trio
from psycopg import errors

from holdfast.core.errors import StoreUnreachable
from holdfast.store.postgres.schema import LOCK_TIMEOUT
from holdfast.store.postgres.statements import Statement
from holdfast.store.postgres.transactions import (
    CONFLICTING,
    CONFLICTS,
    STALLED,
    TRIES,
    Connection,
    Result,
    Work,
    connect,
    is_closed,
    one_line,
    raise_meaning_of,
    roll_back,
)

LOCKED_WITHIN = "200ms"
"""For rows that delivery writes. They are its own: a lock of another session delays only their lanes."""
_NOT_REPLICATED = ("01000", "57P01")
"""Codes of the server's warning that it committed and did not wait for its standby: cancelled, or told to end."""


class NoAnswer(StoreUnreachable):
    """The database did not answer in time."""


class _Slot:
    """A client's connection, and the turn to use it. A thread that was given up keeps its slot; the client goes on with
    another.
    """

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.prepared: set[Statement] = set()
        self.turn = trio.CapacityLimiter(1)
        self.warning: str | None = None
        self.payloads: list[str] = []
        """Of notifications that came with the answers to other statements."""
        self._socket: socket.socket | None = None

    def take(self, connection: Connection) -> None:
        # A descriptor of our own: the driver's number may be reused by the time of `abort`.
        self._socket = socket.socket(fileno=os.dup(connection.pgconn.socket))
        self.connection = connection
        connection.add_notice_handler(self._keep_warning)
        connection.add_notify_handler(lambda notification: self.payloads.append(notification.payload))

    def _keep_warning(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING" and notice.sqlstate in _NOT_REPLICATED:
            self.warning = notice.message_primary

    def take_payloads(self) -> list[str]:
        """Of all notifications that the driver and libpq have received."""
        assert self.connection is not None
        payloads, self.payloads = self.payloads, []
        return payloads + [each.extra.decode() for each in iter(self.connection.pgconn.notifies, None)]

    def check_warning(self) -> None:
        if self.warning is not None:
            raise StoreUnreachable(f"the commit may not be on the standby: {one_line(self.warning)}")

    def abort(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def is_ready_for(self, statement: Statement) -> bool:
        connection = self.connection
        return connection is not None and statement in self.prepared and not is_closed(connection, False)

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
    """One use of a slot. `began`: it has its turn. `is_over`: its caller has given up."""

    began: bool = False
    is_over: bool = False


class Client:
    """`threaded` False does everything on the loop: in virtual time no thread may run. `listens`: notifications are
    waited for on this connection.
    """

    def __init__(
        self, url: str, name: str, *, threaded: bool, listens: bool = False, lock_timeout: str = LOCK_TIMEOUT
    ) -> None:
        self._url = url
        self._name = name
        self._threaded = threaded
        self._listens = listens
        self._lock_timeout = lock_timeout
        self._slot = _Slot()
        self._ends_at = float("inf")
        self._waiting: WeakSet[trio.CancelScope] = WeakSet()

    def end_by(self, moment: float) -> None:
        """Wait for nothing after this moment, by trio's time: the process ends."""
        self._ends_at = moment
        for scope in self._waiting:
            scope.deadline = min(scope.deadline, moment)

    async def run(self, work: Work[Result], *, within: float) -> Result:
        """Does `work` in one transaction, in a thread. `work` commits; what it did not commit is undone.

        After `within` seconds this raises StoreUnreachable, and the next use connects anew. A thread that is still
        connecting goes on: the next server of several may be the one that answers.
        """
        await trio.lowlevel.checkpoint()  # A caller's loop may have no other point to be cancelled at.
        slot, use = self._slot, _Use()
        if not self._threaded:
            return self._try(slot, work)

        def do(connection: Connection) -> Result:
            if use.is_over:
                raise StoreUnreachable("nobody waits for it any more")
            return work(connection)

        def attempt() -> Result:
            use.began = True
            return self._try(slot, do)

        with self._deadline(within):
            return await trio.to_thread.run_sync(attempt, limiter=slot.turn, abandon_on_cancel=True)
        use.is_over = True
        if use.began and slot is self._slot:
            self.abort()
        raise NoAnswer(f"the database did not answer within {within:.0f} s")

    def _deadline(self, within: float) -> trio.CancelScope:
        scope = trio.CancelScope(shield=True, deadline=min(trio.current_time() + within, self._ends_at))
        self._waiting.add(scope)
        return scope

    def abort(self) -> None:
        """Use another connection from now on. Whoever waits for an answer on this one gets StoreUnreachable."""
        slot = self._slot
        if slot.connection is None:
            return
        self._slot = _Slot()
        if slot.turn.borrowed_tokens:
            slot.abort()  # Its thread closes it.
        else:
            slot.drop()

    async def execute(self, statement: Statement, values: Mapping[str, Any], *, within: float) -> list[Any]:
        """Executes a statement that is a transaction by itself, on the loop. Returns its rows; otherwise as `run`."""
        if not self._threaded:
            return await self.run(partial(_execute_alone, statement=statement, values=values), within=within)
        for _ in range(TRIES):
            slot = self._slot
            await _acquire(slot.turn)
            try:
                if slot.is_ready_for(statement):
                    return await self._exchange(slot, statement, values, within)
            except (*CONFLICTS, *STALLED):
                continue
            except errors.InvalidSqlStatementName:
                slot.prepared.clear()  # The driver has the server forget all of them when it rolls back.
            finally:
                slot.turn.release()
            await self.run(partial(_prepare, statement=statement, prepared=slot.prepared), within=within)
        raise StoreUnreachable(CONFLICTING)

    async def _exchange(self, slot: _Slot, statement: Statement, values: Mapping[str, Any], within: float) -> list[Any]:
        assert slot.connection is not None
        with self._deadline(within):
            try:
                slot.warning = None
                rows = await statement.run(slot.connection.pgconn, values)
                slot.check_warning()
                return rows
            except Exception as error:
                raise_meaning_of(error, slot.drop)
                raise
        slot.drop()
        raise NoAnswer(f"the database did not answer within {within:.0f} s")

    async def notifications(self, within: float) -> list[str]:
        """The payloads of new notifications. Waits for at most `within` seconds, and no longer than until the server
        closes the connection. For a client that one task alone uses.
        """
        slot = self._slot
        if slot.connection is None or slot.connection.closed:
            raise StoreUnreachable("the connection that listens is gone")
        if payloads := slot.take_payloads():
            return payloads
        with trio.move_on_after(within):
            await trio.lowlevel.wait_readable(slot.connection.pgconn.socket)
        try:
            slot.connection.pgconn.consume_input()
        except Exception as error:
            raise_meaning_of(error, slot.drop)
            raise
        return slot.take_payloads()

    def close(self) -> None:
        self._slot.drop()

    def _try(self, slot: _Slot, work: Work[Result]) -> Result:
        for _ in range(TRIES):
            try:
                return self._try_once(slot, work)
            except (*CONFLICTS, *STALLED):
                if slot is not self._slot:
                    break
        raise StoreUnreachable(CONFLICTING)

    def _try_once(self, slot: _Slot, work: Work[Result]) -> Result:
        try:
            connection = self._open(slot)
            slot.warning = None
            try:
                result = work(connection)
                slot.check_warning()
                return result
            finally:
                if slot is not self._slot:
                    slot.drop()
                elif not connection.closed:
                    roll_back(connection)
        except Exception as error:
            raise_meaning_of(error, slot.drop)
            raise

    def _open(self, slot: _Slot) -> Connection:
        """The connection; a new one if there is none or the server has closed it."""
        if slot.connection is not None and is_closed(slot.connection, self._listens):
            slot.drop()
        return slot.connection or connect(self._url, self._name, slot.take, self._lock_timeout)


class Clients(NamedTuple):
    """The connections of a replica; the table in store.py says what each is for."""

    accepts: Client
    outcomes: Client
    reads: Client
    status: Client
    presence: Client
    moves: Client

    @classmethod
    def of(cls, url: str, name: str, threaded: bool) -> Self:
        options: dict[str, dict[str, Any]] = {
            "outcomes": {"lock_timeout": LOCKED_WITHIN},
            "presence": {"listens": True},
        }
        return cls(*(Client(url, f"{use} {name}", threaded=threaded, **options.get(use, {})) for use in cls._fields))


def _execute_alone(connection: Connection, statement: Statement, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    connection.autocommit = True
    return connection.execute(statement.text, values).fetchall()


def _prepare(connection: Connection, statement: Statement, prepared: set[Statement]) -> None:
    if statement not in prepared:
        statement.prepare(connection.pgconn)
        prepared.add(statement)


async def _acquire(turn: trio.CapacityLimiter) -> None:
    """Without a pass of the loop if nobody else has it."""
    try:
        turn.acquire_nowait()
    except trio.WouldBlock:
        await turn.acquire()
