"""The server: accept loops, limits on connections and on bodies, and stopping.

One server may have several listeners, TCP and Unix. server_connection.py serves a single connection.

A full server closes the connection that has waited longest for its peer, and serves the new one. So clients that
send nothing, or don't read their responses, keep nobody out. If every connection has a request in progress, the new
one waits a moment for the first response and is then refused.
"""

import errno
import logging
import math
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import trio

from holdfast.http.codec import HeadCache, HeadEngine, RequestHead, best_engine
from holdfast.http.deadlines import Deadlines
from holdfast.http.dial import format_address
from holdfast.http.exceptions import RETRY_SOON, Problem, problem_for_status
from holdfast.http.request_response import LocalAddress, Request, Response, StreamingResponse, with_connection
from holdfast.http.server_connection import ServerConnection, linger
from holdfast.http.sockets import local_address
from holdfast.http.wire import Wire

Handler = Callable[[Request], Awaitable[Response | StreamingResponse | bytes]]
"""May also return a `PendingResponse`, which the server usually does not await."""
Gate = Callable[[RequestHead], None]
Admit = Callable[[socket.socket], str | None]

ACCEPT_PAUSE = 0.1
LOG_INTERVAL = 10.0
MAX_UNSERVED = 64
"""Connections that wait for room or for the end of their refusal. Further ones are closed without an answer."""
REFUSAL_SECONDS = 1.0
ROOM_SECONDS = 0.5
EVICTION_SCAN = 64
"""How many waiting connections are checked, at most, to find one to close."""

_logger = logging.getLogger(__name__)
_TOO_MANY_DETAIL = "too many connections"


def _closing(problem: Problem) -> bytes:
    return with_connection(problem.response().encode(), b"close")


_TOO_MANY = _closing(problem_for_status(503, _TOO_MANY_DETAIL, RETRY_SOON))


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes, times in seconds."""

    max_body: int
    body_budget: int
    """For all bodies that are being received or handled: see `BodyBudget`."""
    max_head: int
    max_headers: int
    max_connections: int
    head_timeout: float
    body_timeout: float
    idle_timeout: float


LOCAL_LIMITS = Limits(
    max_body=65_536,
    body_budget=64 * 65_536,
    max_head=32_768,
    max_headers=100,
    max_connections=64,
    head_timeout=10,
    body_timeout=10,
    idle_timeout=5,
)
"""For listeners with few clients, which send a request as soon as they are connected."""


class Server:
    """Answers requests with `handler`.

    `admit` gets each connection before a byte of it is read. It returns None, or the reason of a refusal.
    `gate` gets each complete head before its body is requested. It raises `Problem` to refuse the request.
    `on_refusal` gets status and detail of every refusal by the server itself.
    """

    def __init__(
        self,
        handler: Handler,
        limits: Limits,
        *,
        admit: Admit | None = None,
        gate: Gate | None = None,
        engine: HeadEngine | None = None,
        on_refusal: Callable[[int, str], None] | None = None,
    ) -> None:
        self.handler = handler
        self.body_budget = BodyBudget(limits.body_budget)
        self.set_limits(limits)
        self._admit = admit
        self.gate = gate
        self.engine = engine or best_engine()
        self._on_refusal = on_refusal
        self._stop_requested = trio.Event()
        self._live: set[ServerConnection] = set()
        self.waiting: dict[ServerConnection, float] = {}
        """Connections that wait for their peer, longest first, and the time from which each may be closed."""
        self._evicted = 0
        self._next_eviction_log = -math.inf
        self._unserved = 0
        self._room = trio.lowlevel.ParkingLot()
        self._nursery: trio.Nursery | None = None
        self.deadlines = Deadlines()

    def set_limits(self, limits: Limits) -> None:
        """Applies to new connections."""
        self.limits = limits
        self.body_budget.limit = limits.body_budget
        self.head_cache: HeadCache[RequestHead] = HeadCache()

    @property
    def connections(self) -> int:
        return len(self._live)

    @property
    def stopping(self) -> bool:
        return self._stop_requested.is_set()

    def stop(self) -> None:
        """Accepts no more connections, closes idle ones and ends streams. Requests in progress are still answered."""
        self._stop_requested.set()

    def report_refusal(self, status: int, detail: str) -> None:
        if self._on_refusal is not None:
            self._on_refusal(status, detail)

    async def serve(
        self,
        listeners: Sequence[trio.SocketListener],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Runs until `stop()` and the last response after it, or until cancelled. Closes the listeners."""
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
        """Runs a task beside the connections, while `serve` runs."""
        assert self._nursery is not None
        self._nursery.start_soon(task)

    def mark_waiting(self, connection: ServerConnection, closable_at: float = 0.0) -> None:
        """The connection waits for its peer. From `closable_at` on it may be closed to make room."""
        self.waiting[connection] = closable_at
        if self._unserved:
            self._room.unpark()

    async def _accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        local = local_address(listener)
        next_log = -math.inf
        while True:
            try:
                sock, _ = await listener.socket.accept()
            except OSError as error:
                if error.errno in (errno.EBADF, errno.EINVAL, errno.ENOTSOCK):
                    raise
                # Out of descriptors or memory: connections wait in the backlog until some are free.
                if error.errno != errno.ECONNABORTED:
                    if trio.current_time() >= next_log:
                        _logger.warning("could not accept a connection on %s: %s", _address_text(local), error)
                        next_log = trio.current_time() + LOG_INTERVAL
                    await trio.sleep(ACCEPT_PAUSE)
                continue
            wire = Wire.from_trio(sock)
            refusal = self._admit(wire.socket) if self._admit is not None else None
            if refusal is not None:
                self._refuse(wire, nursery, 403, refusal, _closing(problem_for_status(403, refusal)))
            elif self._make_room(local):
                self._start_connection(wire, local, nursery)
            elif self._unserved >= MAX_UNSERVED:
                self._refuse(wire, nursery, 503, _TOO_MANY_DETAIL, _TOO_MANY)
            else:
                self._unserved += 1
                nursery.start_soon(self._wait_for_room, wire, local, nursery)

    async def _wait_for_room(self, wire: Wire, local: LocalAddress, nursery: trio.Nursery) -> None:
        try:
            with trio.move_on_after(ROOM_SECONDS):
                while self.stopping or not self._make_room(local):
                    await self._room.park()
                self._start_connection(wire, local, nursery)
                return
        except trio.Cancelled:
            wire.close()
            raise
        finally:
            self._unserved -= 1
        self._refuse(wire, nursery, 503, _TOO_MANY_DETAIL, _TOO_MANY)

    def _start_connection(self, wire: Wire, local: LocalAddress, nursery: trio.Nursery) -> None:
        connection = ServerConnection(self, wire, local)
        self._live.add(connection)
        self.mark_waiting(connection)
        nursery.start_soon(self._run, connection)

    async def _run(self, connection: ServerConnection) -> None:
        try:
            await connection.run()
        finally:
            self._live.discard(connection)
            self.waiting.pop(connection, None)
            self._room.unpark()

    def _make_room(self, local: LocalAddress) -> bool:
        """Returns whether one more connection fits. Closes those for it that have waited longest for their peer."""
        while len(self._live) >= self.limits.max_connections:
            connection = self._find_closable()
            if connection is None:
                return False
            del self.waiting[connection]
            self._live.discard(connection)
            connection.close()
            self._log_eviction(local)
        return True

    def _find_closable(self) -> ServerConnection | None:
        now = trio.current_time()
        for connection, closable_at in islice(self.waiting.items(), EVICTION_SCAN):
            # Unread bytes are read in a moment. After that the connection has a request, or can be closed.
            if closable_at <= now and not connection.may_have_request():
                return connection
        return None

    def _log_eviction(self, local: LocalAddress) -> None:
        self._evicted += 1
        now = trio.current_time()
        if now >= self._next_eviction_log:
            self._next_eviction_log = now + LOG_INTERVAL
            text = (
                "%s has reached its limit of %d connections: those that wait longest for their peer are closed for new "
                "ones, %d since the start"
            )
            _logger.warning(text, _address_text(local), self.limits.max_connections, self._evicted)

    def _refuse(self, wire: Wire, nursery: trio.Nursery, status: int, detail: str, response: bytes) -> None:
        self.report_refusal(status, detail)
        if self._unserved >= MAX_UNSERVED:
            wire.close()
            return
        self._unserved += 1
        nursery.start_soon(self._send_refusal, wire, response)

    async def _send_refusal(self, wire: Wire, response: bytes) -> None:
        try:
            with suppress(OSError), trio.move_on_after(REFUSAL_SECONDS):
                await wire.send_all(response)
                await linger(wire)
        finally:
            wire.close()
            self._unserved -= 1


class BodyBudget:
    """Limits the bytes of request bodies that a server holds at once.

    A request takes bytes from the budget before its body is read, unless the body came with the head. If the budget is
    used up, the request waits in order of arrival. Nothing more of it is read meanwhile, so TCP slows its client down.
    A single body always fits, whatever its size, if there is no other.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._waiting: dict[trio.Event, int] = {}

    async def take(self, size: int) -> None:
        """Waits until `size` bytes fit, and takes them."""
        if not self._waiting and self._fits(size):
            self.held += size
            return
        turn = trio.Event()
        self._waiting[turn] = size
        try:
            await turn.wait()
        except trio.Cancelled:
            if self._waiting.pop(turn, None) is None:
                self.give_back(size)  # the turn came after the cancellation
            else:
                self._grant()  # a smaller body behind it may fit
            raise

    def give_back(self, size: int) -> None:
        self.held -= size
        self._grant()

    def _grant(self) -> None:
        while self._waiting:
            turn, size = next(iter(self._waiting.items()))
            if not self._fits(size):
                return
            del self._waiting[turn]
            self.held += size
            turn.set()

    def _fits(self, size: int) -> bool:
        return self.held == 0 or self.held + size <= self.limit


def _address_text(local: LocalAddress) -> str:
    return local if isinstance(local, str) else format_address(local)


def _close(listeners: Sequence[trio.SocketListener]) -> None:
    for listener in listeners:
        listener.socket.close()
