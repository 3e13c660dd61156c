"""One connection of the server, from its first byte to its last.

    idle ──first byte──> head ──head complete, gate passed──> body ──complete──> handling ──> sending ──> idle
                                             └──no room──> queued ──┘                 └──> streaming ──> closed

An answer that is pending when its handler returns is sent by whoever gives it; the connection meanwhile waits for the
next request, which takes one turn around the loop less than waiting for the answer first. What comes before it is sent
waits until it is.

One cancel scope spans the connection, and each phase sets its deadline: `idle_timeout` closes silently, head
and body too slow are answered with 408, no room for the body in time with 503, a handler has no deadline here.
A handler is never disturbed by its client going away, since what it does may already be decided. The room that was
taken for a body is given back when its request is answered, and not before, since the handler holds it until then.

In `Server.waiting` stands who waits for its peer: from the start or the last answer until a head is complete, while an
answer is not taken, and while the client is waited for to close. A full server closes those to make room, and never
one with a request in hand. Requests that came behind another are not in hand until it is answered: before each of them
all others have a turn, so that no client gets more of the loop by sending many at once.
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
from holdfast.http.errors import ProtocolError
from holdfast.http.message import (
    LocalAddress,
    Pending,
    Request,
    Response,
    StreamingResponse,
    with_connection,
    without_body,
)
from holdfast.http.problem import RETRY_SOON, Problem, problem_for_status
from holdfast.http.wire import Wire

if TYPE_CHECKING:
    from holdfast.http.server import Server

HEAD_READ = 16384
BODY_READ = 65536
LINGER_SECONDS = 2.0
LINGER_BYTES = 64 << 20
NEEDS_NO_ROOM = HEAD_READ
"""Bytes of a body that may come along with a head, so that they are read before anything can be asked for them."""
UNSENT = 256 << 10
"""Bytes that TCP takes and can't send yet. Behind them no answers are made for a client that does not read."""
STREAM_PATIENCE = 5.0
"""How long a stream may be stuck before it may be closed to make room: whoever reads along may pause for a moment."""

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
            familiar=server.familiar,
        )
        self._phase = Phase.IDLE
        self._owed: trio.Event | None = None
        self._closed = False
        self._reserved = 0
        """Bytes taken for the body of the current request, until it is answered."""
        self._scope = trio.CancelScope()
        self._deadline = Deadline(server.deadlines, self._scope.cancel)
        self._deadline.set(trio.current_time() + server.limits.idle_timeout)

    def close_if_idle(self) -> None:
        """Part of stopping: nothing is lost by closing now, or what is there would never end by itself."""
        if self._phase in (Phase.IDLE, Phase.STREAMING):
            self._scope.cancel()

    def may_have_request(self) -> bool:
        """Whether something has come that was not read yet, and may be a whole request. Who was already read and is
        still without one does not get out of it by sending more.
        """
        return self._phase is Phase.IDLE and not self._parser.started and self._wire.has_unread()

    def close(self) -> None:
        """At once, to make room: its task finds out."""
        self._closed = True
        self._wire.close()

    async def run(self) -> None:
        refusal: ProtocolError | None = None
        try:
            if self._wire.socket.family in (AF_INET, AF_INET6):
                self._wire.socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
                self._wire.socket.setsockopt(IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT)
            with self._scope:
                try:
                    while await self._serve_one():
                        self._parser.next_message()
                except ProtocolError as error:
                    refusal = error
            if self._scope.cancelled_caught:
                refusal = self._too_slow()
            if refusal is not None:
                await self._refuse(refusal)
        except OSError:
            # The client is gone; there is nobody to tell.
            pass
        finally:
            self._closed = True
            self._deadline.drop()
            self._wire.close()
            if self._owed is None:
                self._release()

    async def _serve_one(self) -> bool:
        """One request and its answer; whether the connection can carry another."""
        if self._owed is not None and self._parser.started:
            await self._owed.wait()
        elif self._parser.head is not None:
            await self._let_others()
        head = await self._receive_head()
        if head is None or self._server.waiting.pop(self, None) is None:
            return False  # it ended; or it was closed to make room while this head waited for its turn
        answer: Response | StreamingResponse | bytes | None = self._ask_gate(head)
        if answer is None:
            if not await self._receive_body(head):
                return False
            answer = await self._handle(head)
            if answer is None:
                return True
            self._release()
        if isinstance(answer, StreamingResponse):
            await self._stream(answer, head)
            return False
        keep = head.keep_alive and self._parser.complete and not self._server.stopping
        await self._send(_encode(answer, head, keep))
        self._server.waits(self)
        if keep and not self._server.stopping:
            self._phase = Phase.IDLE
            return True
        self._enter(Phase.LINGERING, LINGER_SECONDS)
        await linger(self._wire)
        return False

    async def _let_others(self) -> None:
        """Have their turn: this request came together with the one before."""
        self._enter(Phase.HEAD, self._limits.head_timeout)
        await trio.lowlevel.checkpoint()

    async def _receive_head(self) -> RequestHead | None:
        parser = self._parser
        while parser.head is None:
            if parser.started:
                self._enter(Phase.HEAD, self._limits.head_timeout)
            data = await self._wire.receive(HEAD_READ)
            if self._owed is not None:
                await self._owed.wait()
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
            await self._hand_over(_CONTINUE)
        # Tiny chunks cost time by their number: reading few of them at once lets others have their turn.
        at_once = HEAD_READ if head.chunked else BODY_READ
        while not parser.complete:
            if head.chunked and not self._reserved and parser.received > NEEDS_NO_ROOM:
                await self._reserve(expected)
                self._enter(Phase.BODY, self._limits.body_timeout)
            if not await self._receive(at_once):
                return False
        self._release(but=len(parser.body))
        return True

    async def _reserve(self, size: int) -> None:
        """Wait for room for a body; its time to come in begins after that."""
        if size > NEEDS_NO_ROOM:
            self._enter(Phase.QUEUED, self._limits.body_timeout)
            await self._server.receiving.take(size)
            self._reserved = size

    def _release(self, but: int = 0) -> None:
        if self._reserved > but:
            self._server.receiving.give_back(self._reserved - but)
            self._reserved = but

    async def _receive(self, size: int) -> bool:
        data = await self._wire.receive(size)
        if data:
            self._parser.feed(data)
        return bool(data)

    def _enter(self, phase: Phase, seconds: float) -> None:
        if self._phase is not phase:
            self._phase = phase
            self._allow(seconds)

    def _allow(self, seconds: float) -> None:
        self._deadline.set(trio.current_time() + seconds)

    def _ask_gate(self, head: RequestHead) -> Response | None:
        if self._server.gate is None:
            return None
        try:
            self._server.gate(head)
        except Exception as error:
            return _answer_for(error)
        return None

    async def _handle(self, head: RequestHead) -> Response | StreamingResponse | bytes | None:
        """The answer; None if it is pending, and will be sent when it comes."""
        if self._scope.cancel_called:
            # The deadline passed while the last bytes came in: no handler may start in a cancelled scope.
            await trio.lowlevel.checkpoint()
        self._phase = Phase.HANDLING
        self._deadline.clear()
        request = Request(head.method, head.target, head.headers, self._parser.take_body(), self._local)
        try:
            answer = self._server.handler(request)
            if isinstance(answer, Pending) and head.keep_alive and head.http_version == "1.1":
                self._owed = trio.Event()
                answer.then(self._pay)
                return None
            return await answer
        except Exception as error:
            return _answer_for(error)

    async def _send(self, data: bytes) -> None:
        # This deadline also serves for the wait for the next request, which saves moving it once more.
        self._enter(Phase.SENDING, self._limits.idle_timeout)
        await self._hand_over(data)

    async def _hand_over(self, data: bytes, patience: float = 0.0) -> None:
        """Sends it; while the peer does not take it, it may be closed to make room, after so many seconds."""
        sent = self._wire.send_at_once(data)
        if sent < len(data):
            self._server.waits(self, trio.current_time() + patience)
            try:
                await self._wire.send_all(memoryview(data)[sent:])
            finally:
                self._server.waiting.pop(self, None)

    def _pay(self, given: Response | bytes | Exception) -> None:
        """A pending answer has come."""
        if self._reserved:
            self._release()
        try:
            self._send_owed(given)
        except Exception:
            # Whoever gave it has others to give: what is wrong with this connection stays here.
            _logger.exception("sending an answer failed")
            self._scope.cancel()

    def _send_owed(self, given: Response | bytes | Exception) -> None:
        """What can't be sent at once is sent by a task of its own."""
        if isinstance(given, Exception):
            given = _answer_for(given)
        data = given if isinstance(given, bytes) else given.encode()
        if self._server.stopping:
            data = with_connection(data, b"close")
        try:
            sent = self._wire.send_at_once(data)
        except OSError:
            sent = len(data)  # the client is gone, which its connection's own task finds out
        self._enter(Phase.SENDING, self._limits.idle_timeout)
        if sent == len(data):
            self._paid()
        else:
            self._server.waits(self)
            self._server.spawn(partial(self._pay_rest, memoryview(data)[sent:]))

    async def _pay_rest(self, rest: memoryview) -> None:
        try:
            await self._wire.send_all(rest)
        except OSError:
            pass
        finally:
            self._server.waiting.pop(self, None)
            self._paid()

    def _paid(self) -> None:
        assert self._owed is not None
        self._owed.set()
        self._owed = None
        if self._server.stopping:
            self._enter(Phase.LINGERING, LINGER_SECONDS)
            with suppress(OSError):
                self._wire.socket.shutdown(SHUT_WR)
        else:
            self._phase = Phase.IDLE
            if not self._closed:
                self._server.waits(self)

    async def _stream(self, answer: StreamingResponse, head: RequestHead) -> None:
        """Sends pieces until they end, the client goes away, or the server stops."""
        chunked = head.http_version == "1.1"
        self._enter(Phase.SENDING, self._limits.body_timeout)
        async with aclosing(answer.pieces):
            await self._hand_over(with_connection(answer.encode_head(chunked=chunked), b"close"))
            if head.method == "HEAD":
                return
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_for_end, nursery.cancel_scope)
                self._phase = Phase.STREAMING
                self._deadline.clear()
                if self._server.stopping:
                    self._scope.cancel()
                try:
                    await self._send_pieces(answer, chunked)
                except OSError:
                    pass
                except Exception:
                    # Without its last chunk the client can tell that the answer was cut off.
                    _logger.exception("streaming an answer failed")
                nursery.cancel_scope.cancel()

    async def _send_pieces(self, answer: StreamingResponse, chunked: bool) -> None:
        async for piece in answer.pieces:
            if piece:
                await self._send_piece(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
        if chunked:
            await self._send_piece(b"0\r\n\r\n")

    async def _send_piece(self, data: bytes) -> None:
        self._allow(self._limits.body_timeout)
        await self._hand_over(data, STREAM_PATIENCE)
        self._deadline.clear()

    async def _watch_for_end(self, streaming: trio.CancelScope) -> None:
        try:
            while await self._wire.receive(HEAD_READ):
                pass
        except OSError:
            pass
        streaming.cancel()

    def _too_slow(self) -> ProtocolError | None:
        if self._phase is Phase.HEAD:
            return ProtocolError(408, f"the head took longer than {self._limits.head_timeout:g} s")
        if self._phase is Phase.BODY:
            return ProtocolError(408, f"the body took longer than {self._limits.body_timeout:g} s")
        if self._phase is Phase.QUEUED:
            return ProtocolError(503, "too many large bodies are being received")
        return None

    async def _refuse(self, refusal: ProtocolError) -> None:
        if self._owed is not None:
            await self._owed.wait()
        self._server.waiting.pop(self, None)
        self._parser.drop_body()
        self._release()
        self._server.refused(refusal.status, refusal.detail)
        headers = RETRY_SOON if refusal.status == 503 else ()
        answer = problem_for_status(refusal.status, refusal.detail, headers).response().encode()
        with trio.move_on_after(LINGER_SECONDS):
            await self._hand_over(with_connection(answer, b"close"))
            self._phase = Phase.LINGERING
            self._server.waits(self)
            await linger(self._wire)


async def linger(wire: Wire) -> None:
    """Says that no more will come, and reads on for a while.

    Closing with unread bytes resets the connection, and the reset may overtake the answer. The caller sets a
    deadline.
    """
    wire.socket.shutdown(SHUT_WR)
    left = LINGER_BYTES
    while left > 0 and (data := await wire.receive(BODY_READ)):
        left -= len(data)


def _answer_for(error: Exception) -> Response:
    if isinstance(error, Problem):
        return error.response()
    # Without anything of the request: the URL of a webhook is often a secret.
    _logger.error("answering a request failed", exc_info=error)
    return problem_for_status(500, "this is a fault of the gateway; its log says more").response()


def _encode(answer: Response | bytes, head: RequestHead, keep: bool) -> bytes:
    encoded = answer if isinstance(answer, bytes) else answer.encode()
    if head.method == "HEAD":
        encoded = without_body(encoded)
    if not keep:
        return with_connection(encoded, b"close")
    if head.http_version == "1.0":
        return with_connection(encoded, b"keep-alive")
    return encoded
