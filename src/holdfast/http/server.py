"""The server: accept loops, the limit on connections, and stopping.

One server may have several listeners, TCP and Unix; what happens on a connection is in server_connection.py.

A full server closes the connection that has waited for its peer for longest, and serves the new one: whoever opens
connections and says nothing, or does not take its answers, keeps nobody out. Where every connection has a request in
hand the new one waits a moment for the first that is answered, and is refused then.
"""

from __future__ import annotations

import errno
import logging
import math
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import trio

from holdfast.http.codec import Engine, RequestHead, best_engine
from holdfast.http.deadlines import Deadlines
from holdfast.http.familiar import Familiar
from holdfast.http.listeners import local_address, open_tcp_listeners, open_unix_listener
from holdfast.http.message import LocalAddress, Request, Response, StreamingResponse, with_connection
from holdfast.http.problem import RETRY_SOON, Problem, problem_for_status
from holdfast.http.receiving import Receiving
from holdfast.http.server_connection import ServerConnection, linger
from holdfast.http.wire import Wire

__all__ = [
    "LOCAL_LIMITS",
    "Admission",
    "Gate",
    "Handler",
    "Limits",
    "Request",
    "Response",
    "Server",
    "StreamingResponse",
    "open_tcp_listeners",
    "open_unix_listener",
]

Handler = Callable[[Request], Awaitable[Response | StreamingResponse | bytes]]
"""A `Pending` is awaitable too; where it can the server does not wait for it."""
Gate = Callable[[RequestHead], None]
Admission = Callable[[socket.socket], str | None]

ACCEPT_PAUSE = 0.1
COMPLAINTS_EVERY = 10.0
TURN_AWAY_AT_ONCE = 64
"""Connections that wait for room or are told that there is none; more are just closed."""
TURN_AWAY_SECONDS = 1.0
ROOM_SECONDS = 0.5
LOOKED_AT = 64
"""Connections that are looked at, at most, to find one to close: those whose request may just have come are kept."""

_logger = logging.getLogger(__name__)
_TOO_MANY_DETAIL = "too many connections"


def _closing(problem: Problem) -> bytes:
    return with_connection(problem.response().encode(), b"close")


_TOO_MANY = _closing(problem_for_status(503, _TOO_MANY_DETAIL, RETRY_SOON))


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes, times in seconds."""

    max_body: int
    max_receiving: int
    """Of all bodies that are being received or handled; see receiving.py."""
    max_head: int
    max_headers: int
    max_connections: int
    head_timeout: float
    body_timeout: float
    idle_timeout: float


LOCAL_LIMITS = Limits(
    max_body=65_536,
    max_receiving=64 * 65_536,
    max_head=32_768,
    max_headers=100,
    max_connections=64,
    head_timeout=10,
    body_timeout=10,
    idle_timeout=5,
)
"""For listeners that are not busy. Their clients send a request as soon as they are connected."""


class Server:
    """Answers requests with `handler`.

    `admit` is shown each connection before a byte of it is read, and returns None, or why its peer is refused.
    `gate` is called with each complete head before its body is asked for, and raises `Problem` to refuse.
    `on_refusal` hears status and detail of everything refused before it got that far.
    """

    def __init__(
        self,
        handler: Handler,
        limits: Limits,
        *,
        admit: Admission | None = None,
        gate: Gate | None = None,
        engine: Engine | None = None,
        on_refusal: Callable[[int, str], None] | None = None,
    ) -> None:
        self.handler = handler
        self.receiving = Receiving(limits.max_receiving)
        self.set_limits(limits)
        self._admit = admit
        self.gate = gate
        self.engine = engine or best_engine()
        self._on_refusal = on_refusal
        self._stop_requested = trio.Event()
        self._live: set[ServerConnection] = set()
        self.waiting: dict[ServerConnection, float] = {}
        """Those that wait for their peer, in the order in which that began, and when each may be closed for it."""
        self._evicted = 0
        self._quiet_until = -math.inf
        self._at_the_door = 0
        self._room = trio.lowlevel.ParkingLot()
        self._nursery: trio.Nursery | None = None
        self.deadlines = Deadlines()

    def set_limits(self, limits: Limits) -> None:
        """For connections from now on."""
        self.limits = limits
        self.receiving.most = limits.max_receiving
        self.familiar: Familiar[RequestHead] = Familiar()

    @property
    def connections(self) -> int:
        return len(self._live)

    @property
    def stopping(self) -> bool:
        return self._stop_requested.is_set()

    def stop(self) -> None:
        """Take no more connections, close idle ones, end streams. Requests under way are still answered."""
        self._stop_requested.set()

    def refused(self, status: int, detail: str) -> None:
        if self._on_refusal is not None:
            self._on_refusal(status, detail)

    async def serve(
        self,
        listeners: Sequence[trio.SocketListener],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Runs until `stop()` and the last answer after it, or until cancelled. Closes the listeners."""
        try:
            async with trio.open_nursery() as connections:
                self._nursery = connections
                async with trio.open_nursery() as acceptors:
                    for listener in listeners:
                        acceptors.start_soon(self._accept, listener, connections)
                    task_status.started()
                    await self._stop_requested.wait()
                    acceptors.cancel_scope.cancel()
                _close(listeners)
                for connection in self._live:
                    connection.close_if_idle()
        finally:
            _close(listeners)

    def spawn(self, task: Callable[[], Awaitable[None]]) -> None:
        """Have something done beside the connections; only while they are served."""
        assert self._nursery is not None
        self._nursery.start_soon(task)

    async def _accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        local = local_address(listener)
        quiet_until = -math.inf
        while True:
            try:
                sock, _ = await listener.socket.accept()
            except OSError as error:
                if error.errno in (errno.EBADF, errno.EINVAL, errno.ENOTSOCK):
                    raise
                # Out of descriptors or memory: connections wait in the backlog until some are free again.
                if error.errno != errno.ECONNABORTED:
                    if trio.current_time() >= quiet_until:
                        _logger.warning("could not accept a connection on %s: %s", _shown(local), error)
                        quiet_until = trio.current_time() + COMPLAINTS_EVERY
                    await trio.sleep(ACCEPT_PAUSE)
                continue
            wire = Wire.taken_from(sock)
            refusal = self._admit(wire.socket) if self._admit is not None else None
            if refusal is not None:
                self._turn_away(wire, nursery, 403, refusal, _closing(problem_for_status(403, refusal)))
            elif self._make_room(local):
                self._take_in(wire, local, nursery)
            elif self._at_the_door >= TURN_AWAY_AT_ONCE:
                self._turn_away(wire, nursery, 503, _TOO_MANY_DETAIL, _TOO_MANY)
            else:
                self._at_the_door += 1
                nursery.start_soon(self._wait_for_room, wire, local, nursery)

    async def _wait_for_room(self, wire: Wire, local: LocalAddress, nursery: trio.Nursery) -> None:
        try:
            with trio.move_on_after(ROOM_SECONDS):
                while self.stopping or not self._make_room(local):
                    await self._room.park()
                self._take_in(wire, local, nursery)
                return
        except trio.Cancelled:
            wire.close()
            raise
        finally:
            self._at_the_door -= 1
        self._turn_away(wire, nursery, 503, _TOO_MANY_DETAIL, _TOO_MANY)

    def _take_in(self, wire: Wire, local: LocalAddress, nursery: trio.Nursery) -> None:
        connection = ServerConnection(self, wire, local)
        self._live.add(connection)
        self.waits(connection)
        nursery.start_soon(self._run, connection)

    def waits(self, connection: ServerConnection, moment: float = 0.0) -> None:
        """For its peer, from now on; from `moment` on it may be closed to make room."""
        self.waiting[connection] = moment
        if self._at_the_door:
            self._room.unpark()

    async def _run(self, connection: ServerConnection) -> None:
        try:
            await connection.run()
        finally:
            self._live.discard(connection)
            self.waiting.pop(connection, None)
            self._room.unpark()

    def _make_room(self, local: LocalAddress) -> bool:
        """Whether there is room for one more; close those for it that have waited for their peer for longest."""
        while len(self._live) >= self.limits.max_connections:
            connection = self._one_to_close()
            if connection is None:
                return False
            del self.waiting[connection]
            self._live.discard(connection)
            connection.close()
            self._tell_evicted(local)
        return True

    def _one_to_close(self) -> ServerConnection | None:
        now = trio.current_time()
        for connection, moment in islice(self.waiting.items(), LOOKED_AT):
            # What has come and is not read yet is read in a moment: the connection has a request then, or can go.
            if moment <= now and not connection.may_have_request():
                return connection
        return None

    def _tell_evicted(self, local: LocalAddress) -> None:
        self._evicted += 1
        now = trio.current_time()
        if now >= self._quiet_until:
            self._quiet_until = now + COMPLAINTS_EVERY
            most, detail = self.limits.max_connections, "those that wait longest for their peer are closed for new ones"
            text = "%s has all its %d connections: %s, %d since the start"
            _logger.warning(text, _shown(local), most, detail, self._evicted)

    def _turn_away(self, wire: Wire, nursery: trio.Nursery, status: int, detail: str, answer: bytes) -> None:
        self.refused(status, detail)
        if self._at_the_door >= TURN_AWAY_AT_ONCE:
            wire.close()
            return
        self._at_the_door += 1
        nursery.start_soon(self._send_away, wire, answer)

    async def _send_away(self, wire: Wire, answer: bytes) -> None:
        try:
            with suppress(OSError), trio.move_on_after(TURN_AWAY_SECONDS):
                await wire.send_all(answer)
                await linger(wire)
        finally:
            wire.close()
            self._at_the_door -= 1


def _shown(local: LocalAddress) -> str:
    if isinstance(local, str):
        return local
    host, port = local
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _close(listeners: Sequence[trio.SocketListener]) -> None:
    for listener in listeners:
        listener.socket.close()
