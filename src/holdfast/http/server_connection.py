"""One connection of the server, from its first byte to its last.

    idle ──first byte──> head ──complete, gate passed──> body ──complete──> handling ──> sending ──> idle
                                        └──no budget──> queued ──┘              └──> streaming ──> closed

A pending response is sent by the code that resolves it. The connection meanwhile waits for the next request, which
saves one pass through the scheduler. A request that arrives earlier waits until the response is sent.

One cancel scope spans the connection, and each phase sets its deadline. `idle_timeout` closes silently. A slow head
or body is answered with 408, a body that gets no budget in time with 503. A handler has no deadline, and is never
disturbed when its client leaves, because its decision may be final already. A body keeps its part of the budget until
the request is answered, since the handler holds the body until then.

`Server.waiting` lists the connections that wait for their peer: until a head is complete, while the client does not
read a response, and while the server waits for the client to close. A full server closes only these, never one with a
request in progress. A pipelined request is in progress only once the response before it is sent. Before each of them
the other connections get a turn, so that a client gains nothing by sending many at once.
"""

from __future__ import annotations

import logging
from contextlib import aclosing, suppress
from enum import Enum, auto
from functools import partial
from socket import AF_INET, AF_INET6, IPPROTO_TCP, SHUT_WR, TCP_NODELAY, TCP_NOTSENT_LOWAT
from typing import TYPE_CHECKING

import trio

from holdfast.http.codec import RequestHead, RequestParser
from holdfast.http.deadlines import Deadline
from holdfast.http.exceptions import RETRY_SOON, Problem, ProtocolError, problem_for_status
from holdfast.http.request_response import (
    LocalAddress,
    PendingResponse,
    Request,
    Response,
    StreamingResponse,
    with_connection,
    without_body,
)
from holdfast.http.wire import Wire

if TYPE_CHECKING:
    from holdfast.http.server import Limits, Server

HEAD_READ = 16384
BODY_READ = 65536
LINGER_SECONDS = 2.0
LINGER_BYTES = 64 << 20
UNBUDGETED_BODY = HEAD_READ
"""Bytes of a body that may arrive with its head, before any budget can be taken for them."""
MAX_UNSENT = 256 << 10
"""Unsent bytes in TCP's buffer. Beyond that, no responses are made for a client that does not read."""
STREAM_PATIENCE = 5.0
"""Seconds that a stream may be stuck before it may be closed to make room: a reader may pause for a moment."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_logger = logging.getLogger(__name__)


class Phase(Enum):
    IDLE = auto()
    HEAD = auto()
    QUEUED = auto()
    BODY = auto()
    HANDLING = auto()
    SENDING = auto()
    STREAMING = auto()
    LINGERING = auto()


class ServerConnection:
    def __init__(self, server: Server, wire: Wire, local: LocalAddress) -> None:
        self._server = server
        self._limits = server.limits
        self._wire = wire
        self._local = local
        self._parser = RequestParser(
            server.engine,
            max_head=server.limits.max_head,
            max_headers=server.limits.max_headers,
            max_body=server.limits.max_body,
            head_cache=server.head_cache,
        )
        self._phase = Phase.IDLE
        self._pending_sent: trio.Event | None = None
        """Set when the pending response is sent. None if there is none."""
        self._closed = False
        self._reserved = 0
        """Bytes of the budget for the body of the current request, until it is answered."""
        self._scope = trio.CancelScope()
        self._deadline = Deadline(server.deadlines, self._scope.cancel)
        self._deadline.set(trio.current_time() + server.limits.idle_timeout)

    def close_if_idle(self) -> None:
        """For a server that stops. Also ends streams, which may be endless."""
        if self._phase in (Phase.IDLE, Phase.STREAMING):
            self._scope.cancel()

    def may_have_request(self) -> bool:
        """Whether there are unread bytes that may be a whole request.

        False once a part of a request was read: a client can't stay by sending ever more of it.
        """
        return self._phase is Phase.IDLE and not self._parser.started and self._wire.has_unread()

    def close(self) -> None:
        """Closes at once, to make room. The task of the connection gets an OSError."""
        self._closed = True
        self._wire.close()

    async def run(self) -> None:
        refusal: ProtocolError | None = None
        try:
            if self._wire.socket.family in (AF_INET, AF_INET6):
                self._wire.socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
                self._wire.socket.setsockopt(IPPROTO_TCP, TCP_NOTSENT_LOWAT, MAX_UNSENT)
            with self._scope:
                try:
                    while await self._serve_one():
                        self._parser.next_message()
                except ProtocolError as error:
                    refusal = error
            if self._scope.cancelled_caught:
                refusal = _timeout_refusal(self._phase, self._limits)
            if refusal is not None:
                await self._refuse(refusal)
        except OSError:
            # The client is gone.
            pass
        finally:
            self._closed = True
            self._deadline.drop()
            self._wire.close()
            if self._pending_sent is None:
                self._release()

    async def _serve_one(self) -> bool:
        """Serves one request. Returns whether the connection can carry another."""
        if self._pending_sent is not None and self._parser.started:
            await self._pending_sent.wait()
        elif self._parser.head is not None:
            # This request came with the one before: the other connections get a turn first.
            self._enter(Phase.HEAD, self._limits.head_timeout)
            await trio.lowlevel.checkpoint()
        head = await self._receive_head()
        if head is None or self._server.waiting.pop(self, None) is None:
            return False  # the client closed it; or it was closed to make room while this head waited for its turn
        response: Response | StreamingResponse | bytes | None = None
        if self._server.gate is not None:
            try:
                self._server.gate(head)
            except Exception as error:
                response = _response_for(error)
        if response is None:
            if not await self._receive_body(head):
                return False
            response = await self._handle(head)
            if response is None:
                return True
            self._release()
        if isinstance(response, StreamingResponse):
            await self._stream(response, head)
            return False
        keep = head.keep_alive and self._parser.complete and not self._server.stopping
        data = _encode(response, head, keep)
        # This deadline also covers the wait for the next request, which saves setting it once more.
        self._enter(Phase.SENDING, self._limits.idle_timeout)
        await self._send(data)
        self._server.mark_waiting(self)
        if keep and not self._server.stopping:
            self._phase = Phase.IDLE
            return True
        self._enter(Phase.LINGERING, LINGER_SECONDS)
        await linger(self._wire)
        return False

    async def _receive_head(self) -> RequestHead | None:
        parser = self._parser
        while parser.head is None:
            if parser.started:
                self._enter(Phase.HEAD, self._limits.head_timeout)
            data = await self._wire.receive(HEAD_READ)
            if self._pending_sent is not None:
                await self._pending_sent.wait()
            if not data:
                return None
            if self._phase is not Phase.LINGERING:
                parser.feed(data)
        return parser.head

    async def _receive_body(self, head: RequestHead) -> bool:
        parser = self._parser
        if parser.complete:
            return True
        expected = self._limits.max_body if head.chunked else head.content_length or 0
        if not head.chunked or head.expect_continue:
            await self._reserve(expected)
        self._enter(Phase.BODY, self._limits.body_timeout)
        if head.expect_continue and not parser.body_started:
            await self._send(_CONTINUE)
        # Many tiny chunks take long to decode: small reads give the other connections their turn.
        size = HEAD_READ if head.chunked else BODY_READ
        while not parser.complete:
            if head.chunked and not self._reserved and parser.received > UNBUDGETED_BODY:
                await self._reserve(expected)
                self._enter(Phase.BODY, self._limits.body_timeout)
            data = await self._wire.receive(size)
            if not data:
                return False
            parser.feed(data)
        self._release(but=len(parser.body))
        return True

    async def _reserve(self, size: int) -> None:
        """Waits for budget for a body. The body's own timeout starts after that."""
        if size > UNBUDGETED_BODY:
            self._enter(Phase.QUEUED, self._limits.body_timeout)
            await self._server.body_budget.take(size)
            self._reserved = size

    def _release(self, but: int = 0) -> None:
        if self._reserved > but:
            self._server.body_budget.give_back(self._reserved - but)
            self._reserved = but

    def _enter(self, phase: Phase, seconds: float) -> None:
        if self._phase is not phase:
            self._phase = phase
            self._deadline.set(trio.current_time() + seconds)

    async def _handle(self, head: RequestHead) -> Response | StreamingResponse | bytes | None:
        """Returns the response, or None if it is pending."""
        if self._scope.cancel_called:
            # The deadline passed with the last bytes: no handler may start in a cancelled scope.
            await trio.lowlevel.checkpoint()
        self._phase = Phase.HANDLING
        self._deadline.clear()
        request = Request(head.method, head.target, head.headers, self._parser.take_body(), self._local)
        try:
            response = self._server.handler(request)
            if isinstance(response, PendingResponse) and head.keep_alive and head.http_version == "1.1":
                self._pending_sent = trio.Event()
                response.when_resolved(self._on_resolved)
                return None
            return await response
        except Exception as error:
            return _response_for(error)

    async def _send(self, data: bytes, patience: float = 0.0) -> None:
        """Sends `data`. If the peer does not read it for `patience` seconds, it may be closed to make room."""
        sent = self._wire.send_at_once(data)
        if sent < len(data):
            self._server.mark_waiting(self, trio.current_time() + patience)
            try:
                await self._wire.send_all(memoryview(data)[sent:])
            finally:
                self._server.waiting.pop(self, None)

    async def _refuse(self, refusal: ProtocolError) -> None:
        if self._pending_sent is not None:
            await self._pending_sent.wait()
        self._server.waiting.pop(self, None)
        self._parser.drop_body()
        self._release()
        self._server.report_refusal(refusal.status, refusal.detail)
        headers = RETRY_SOON if refusal.status == 503 else ()
        response = problem_for_status(refusal.status, refusal.detail, headers).response().encode()
        with trio.move_on_after(LINGER_SECONDS):
            await self._send(with_connection(response, b"close"))
            self._phase = Phase.LINGERING
            self._server.mark_waiting(self)
            await linger(self._wire)

    # -- pending responses -------------------------------------------------------------------------------------------

    def _on_resolved(self, result: Response | bytes | Exception) -> None:
        if self._reserved:
            self._release()
        try:
            self._send_pending(result)
        except Exception:
            # The caller has other responses to resolve: a fault of this one must not reach it.
            _logger.exception("sending an answer failed")
            self._scope.cancel()

    def _send_pending(self, result: Response | bytes | Exception) -> None:
        if isinstance(result, Exception):
            result = _response_for(result)
        data = result if isinstance(result, bytes) else result.encode()
        if self._server.stopping:
            data = with_connection(data, b"close")
        try:
            sent = self._wire.send_at_once(data)
        except OSError:
            sent = len(data)  # the client is gone, which the task of the connection notices
        self._enter(Phase.SENDING, self._limits.idle_timeout)
        if sent == len(data):
            self._finish_pending()
        else:
            self._server.mark_waiting(self)
            self._server.spawn(partial(self._send_pending_rest, memoryview(data)[sent:]))

    async def _send_pending_rest(self, rest: memoryview) -> None:
        try:
            await self._wire.send_all(rest)
        except OSError:
            pass
        finally:
            self._server.waiting.pop(self, None)
            self._finish_pending()

    def _finish_pending(self) -> None:
        assert self._pending_sent is not None
        self._pending_sent.set()
        self._pending_sent = None
        if self._server.stopping:
            self._enter(Phase.LINGERING, LINGER_SECONDS)
            with suppress(OSError):
                self._wire.socket.shutdown(SHUT_WR)
        else:
            self._phase = Phase.IDLE
            if not self._closed:
                self._server.mark_waiting(self)

    # -- streams -----------------------------------------------------------------------------------------------------

    async def _stream(self, response: StreamingResponse, head: RequestHead) -> None:
        """Sends pieces until they end, the client leaves, or the server stops."""
        chunked = head.http_version == "1.1"
        self._enter(Phase.SENDING, self._limits.body_timeout)
        async with aclosing(response.pieces):
            await self._send(with_connection(response.encode_head(chunked=chunked), b"close"))
            if head.method == "HEAD":
                return
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_at_end, self._wire, nursery.cancel_scope)
                self._phase = Phase.STREAMING
                self._deadline.clear()
                if self._server.stopping:
                    self._scope.cancel()
                try:
                    await self._send_pieces(response, chunked)
                except OSError:
                    pass
                except Exception:
                    # Without a last chunk the client can tell that the response is incomplete.
                    _logger.exception("streaming an answer failed")
                nursery.cancel_scope.cancel()

    async def _send_pieces(self, response: StreamingResponse, chunked: bool) -> None:
        async for piece in response.pieces:
            if piece:
                await self._send_piece(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
        if chunked:
            await self._send_piece(b"0\r\n\r\n")

    async def _send_piece(self, data: bytes) -> None:
        self._deadline.set(trio.current_time() + self._limits.body_timeout)
        await self._send(data, STREAM_PATIENCE)
        self._deadline.clear()


async def linger(wire: Wire) -> None:
    """Ends the sending side and reads on until the client closes. The caller sets a deadline.

    Closing a connection with unread bytes resets it, and the reset may overtake the response.
    """
    wire.socket.shutdown(SHUT_WR)
    left = LINGER_BYTES
    while left > 0 and (data := await wire.receive(BODY_READ)):
        left -= len(data)


async def _cancel_at_end(wire: Wire, streaming: trio.CancelScope) -> None:
    """Cancels a stream when its client closes the connection."""
    with suppress(OSError):
        while await wire.receive(HEAD_READ):
            pass
    streaming.cancel()


def _timeout_refusal(phase: Phase, limits: Limits) -> ProtocolError | None:
    if phase is Phase.HEAD:
        return ProtocolError(408, f"the head took longer than {limits.head_timeout:g} s")
    if phase is Phase.BODY:
        return ProtocolError(408, f"the body took longer than {limits.body_timeout:g} s")
    if phase is Phase.QUEUED:
        return ProtocolError(503, "too many large bodies are being received")
    return None


def _response_for(error: Exception) -> Response:
    if isinstance(error, Problem):
        return error.response()
    # Logs nothing of the request: the URL of a webhook is often a secret.
    _logger.error("answering a request failed", exc_info=error)
    return problem_for_status(500, "this is a fault of the gateway; its log says more").response()


def _encode(response: Response | bytes, head: RequestHead, keep: bool) -> bytes:
    encoded = response if isinstance(response, bytes) else response.encode()
    if head.method == "HEAD":
        encoded = without_body(encoded)
    if not keep:
        return with_connection(encoded, b"close")
    if head.http_version == "1.0":
        return with_connection(encoded, b"keep-alive")
    return encoded
