"""The client side: one exchange at a time, from the addresses to the answer, under one total deadline.

Rules for an exchange:
- The final status line and its complete headers decide the outcome. Nothing in the body of the answer changes it, and
  neither does a later cancellation: the answer is returned with as much of its body as arrived.
- The body of the request is sent without a copy.
- The request is sent again at most once, on a new connection, and only if a reused connection ended before any byte of
  the answer.
- Only addresses from the resolver are dialled, and a connection serves only the origin that it was opened for.
- A connection that is older than a `renew` serves no exchange that starts after it.
- No redirects, cookies, decompression or proxy variables.
"""

import ssl
from collections.abc import Awaitable, Callable, Sequence

import trio

from holdfast.http.codec import HeadCache, HeadEngine, ResponseParser, best_engine
from holdfast.http.connection import Connection, TlsConnection
from holdfast.http.deadlines import Deadlines
from holdfast.http.dial import Address, Dial, Origin, connect_directly
from holdfast.http.exceptions import (
    BadAnswer,
    ConnectionReset,
    ExchangeError,
    ExchangeTimeout,
    ProxyError,
    Stage,
    TlsEnded,
    TlsError,
)
from holdfast.http.head_grammar import ResponseHead
from holdfast.http.pool import AddressLimit, Pool
from holdfast.http.request_response import Headers

Resolve = Callable[[Origin], Awaitable[Sequence[Address]]]

MAX_IDLE = 1024
MAX_PER_ADDRESS = 1024
SWEEP_BATCH = 64
SWEEP_AT_EACH_EXCHANGE = 2

_TIMED_OUT: dict[Stage, str] = {
    "resolve": "looking up the address took too long",
    "connect": "the connection was not established in time",
    "reach_proxy": "the proxy could not be reached in time",
    "proxy": "the proxy did not answer in time",
    "tls": "the TLS handshake took too long",
    "send": "the request could not be sent in time",
    "answer": "no answer in time",
}


class Answer:
    """The answer of an exchange, with as much of its body as arrived."""

    __slots__ = ("_parser", "address", "reused", "status")

    def __init__(self, status: int, parser: ResponseParser, address: str, reused: bool) -> None:
        self.status = status
        self.address = address
        self.reused = reused
        self._parser = parser

    @property
    def headers(self) -> Headers:
        return self._parser.headers

    @property
    def body(self) -> bytes:
        """At most `max_answer` bytes."""
        return self._parser.body

    @property
    def complete(self) -> bool:
        """Whether `body` is the whole body."""
        return self._parser.complete


class _Exchange:
    """The state of an exchange, for when its deadline passes."""

    __slots__ = ("_entered", "_limit", "address", "body", "generation", "head", "origin", "parser", "stage")

    def __init__(self, origin: Origin, head: bytes, body: bytes, generation: int, limit: AddressLimit) -> None:
        self.origin = origin
        self.head = head
        self.body = body
        self.generation = generation
        self.stage: Stage = "resolve"
        self.address: str | None = None
        self.parser: ResponseParser | None = None
        self._limit = limit
        self._entered: str | None = None

    def progress(self, address: str, stage: Stage) -> None:
        """Records that `address` is about to be dialled, or has reached `stage`. Raises AddressBusy."""
        if address != self._entered:
            self.leave_address()
            self._limit.enter(address)
            self._entered = address
        self.address, self.stage = address, stage

    def leave_address(self) -> None:
        if self._entered is not None:
            self._limit.leave(self._entered)
            self._entered = None

    def timeout_error(self) -> ExchangeError:
        if self.stage == "reach_proxy":
            return ProxyError(_TIMED_OUT[self.stage], self.address, here=True)
        return ExchangeTimeout(_TIMED_OUT[self.stage], self.address, self.stage)


class Transport:
    """`resolve` returns the addresses of an origin in order, and `dial` connects to one of them.

    `exchange` passes on the errors of both.
    """

    def __init__(
        self,
        resolve: Resolve,
        *,
        dial: Dial = connect_directly,
        ssl_context: ssl.SSLContext | Callable[[Origin], ssl.SSLContext],
        max_answer: int,
        max_idle_per_origin: int,
        idle_timeout: float,
        max_idle: int = MAX_IDLE,
        max_per_address: int = MAX_PER_ADDRESS,
        engine: HeadEngine | None = None,
    ) -> None:
        self._resolve = resolve
        self._dial = dial
        self._ssl_context = ssl_context
        self._max_answer = max_answer
        self._idle_timeout = idle_timeout
        self._engine = engine or best_engine()
        self.pool = Pool(max_per_origin=max_idle_per_origin, max_total=max_idle, idle_timeout=idle_timeout)
        self._address_limit = AddressLimit(max_per_address)
        self._deadlines = Deadlines()
        self._head_cache: HeadCache[ResponseHead] = HeadCache()
        self._became_idle = trio.Event()
        self._closed = False
        self._generation = 0
        self.in_use = self.opened = self.reused = self.resent = 0

    async def exchange(self, origin: Origin, head: bytes, body: bytes, deadline: float) -> Answer:
        """Sends a request and returns the answer. `head` includes the empty line at its end.

        Raises `ExchangeError`, or `AddressBusy` before anything is dialled.
        """
        exchange = _Exchange(origin, head, body, self._generation, self._address_limit)
        now = trio.current_time()
        connection = self.pool.take(origin, now)
        self.pool.sweep(now, SWEEP_AT_EACH_EXCHANGE)
        if connection is not None:
            self.reused += 1
            try:
                return await self._use(connection, exchange, deadline, reused=True)
            except (ConnectionReset, TlsEnded):
                if exchange.parser is None or exchange.parser.started:
                    raise
                self.resent += 1
        try:
            connection = await self._open(exchange, deadline)
            return await self._use(connection, exchange, deadline, reused=False)
        finally:
            exchange.leave_address()

    async def run(self) -> None:
        """Closes idle connections when they expire. Runs beside the exchanges until cancelled.

        Without it, only later exchanges close them. It does not wake up while no connection is idle.
        """
        while True:
            expiry = self.pool.next_expiry
            if expiry is None:
                self._became_idle = trio.Event()
                await self._became_idle.wait()
                # Connections put back meanwhile expire soon after the first one: one wake-up for many.
                await trio.sleep(self._idle_timeout)
            else:
                await trio.sleep_until(expiry)
            self.pool.sweep(trio.current_time(), SWEEP_BATCH)

    def renew(
        self, *, max_idle_per_origin: int, max_idle: int = MAX_IDLE, max_per_address: int = MAX_PER_ADDRESS
    ) -> None:
        """Applies new limits. Connections that are open now finish their exchange and serve no other."""
        self._address_limit.limit = max_per_address
        self._generation += 1
        self.pool.clear()
        self.pool.max_per_origin, self.pool.max_total = max_idle_per_origin, max_idle

    async def aclose(self) -> None:
        """Closes idle connections. Exchanges in progress continue, and close theirs at the end."""
        self._closed = True
        self.pool.clear()
        await trio.lowlevel.checkpoint()

    async def _open(self, exchange: _Exchange, deadline: float) -> Connection:
        origin = exchange.origin
        with trio.CancelScope(deadline=deadline):
            exchange.stage = "resolve"
            addresses = await self._resolve(origin)
            exchange.stage = "connect"
            dialled = await self._dial(origin, addresses, deadline, exchange.progress)
            try:
                self.opened += 1
                if origin.scheme != "https":
                    return Connection(origin, dialled, self._deadlines)
                exchange.stage = "tls"
                context = self._ssl_context
                if not isinstance(context, ssl.SSLContext):
                    context = context(origin)
                tls = TlsConnection(origin, dialled, self._deadlines, context)
                await tls.handshake()
            except BaseException:
                dialled.wire.close()
                raise
            return tls
        raise exchange.timeout_error()

    async def _use(self, connection: Connection, exchange: _Exchange, deadline: float, *, reused: bool) -> Answer:
        exchange.address = connection.address
        exchange.parser = parser = ResponseParser(
            self._engine,
            max_body=self._max_answer,
            to_head_request=exchange.head.startswith(b"HEAD "),
            head_cache=self._head_cache,
        )
        self.in_use += 1
        can_be_reused = False
        connection.deadline.set(deadline)
        try:
            sent_whole = await _talk(connection, parser, exchange)
            is_current = exchange.generation == self._generation and not self._closed
            can_be_reused = sent_whole and parser.reusable and is_current
        except ExchangeError as error:
            if connection.expired:
                raise exchange.timeout_error() from error
            raise
        finally:
            self.in_use -= 1
            connection.deadline.clear()
            if can_be_reused:
                self.pool.put(connection, trio.current_time())
                self._became_idle.set()
            else:
                connection.close()
        assert parser.head is not None
        return Answer(parser.head.status, parser, connection.address, reused)


async def _talk(connection: Connection, parser: ResponseParser, exchange: _Exchange) -> bool:
    """Sends the request and reads the answer. Returns whether the whole request was sent."""
    exchange.stage = "send"
    try:
        sent = await connection.send_some(exchange.head, exchange.body)
    except OSError:
        # The peer closed the connection, but may have sent an answer before.
        await _read_answer(connection, parser)
        return False
    if sent < len(exchange.head) + len(exchange.body):
        return await _send_and_listen(connection, parser, exchange, sent)
    exchange.stage = "answer"
    await _read_answer(connection, parser)
    return True


async def _send_and_listen(connection: Connection, parser: ResponseParser, exchange: _Exchange, sent: int) -> bool:
    """Reads while sending: a receiver may answer before it has read everything, and stop reading."""
    failure: ExchangeError | trio.Cancelled | None = None

    async def send_rest() -> None:
        try:
            await connection.send_rest(exchange.head, exchange.body, sent)
        except (OSError, trio.Cancelled):
            return  # the reader decides about the outcome
        exchange.stage = "answer"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_rest)
        try:
            await _read_answer(connection, parser)
        except (ExchangeError, trio.Cancelled) as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # the error holds this frame: a reference back would keep the body until a collection
    return exchange.stage == "answer"


async def _read_answer(connection: Connection, parser: ResponseParser) -> None:
    detail = "the connection was closed"
    try:
        while parser.head is None and (data := await connection.receive()):
            parser.feed(data)
    except OSError as error:
        detail = error.strerror or str(error)
    except (BadAnswer, TlsError) as error:
        error.address = connection.address
        raise
    if parser.head is None:
        when = "in the middle of the answer's head" if parser.started else "before any answer"
        raise ConnectionReset(f"{detail}, {when}", connection.address)
    if not parser.complete:
        await _read_body(connection, parser)


async def _read_body(connection: Connection, parser: ResponseParser) -> None:
    """No error changes the outcome any more. A cancelled task is cancelled again at its next checkpoint."""
    try:
        while not parser.complete and not parser.broken:
            if data := await connection.receive():
                parser.feed(data)
            else:
                parser.feed_end()
    except (OSError, TlsError, trio.Cancelled):
        pass
