"""Fixtures: both engines, a server with raw clients, scripted receivers, TLS. All use real sockets."""

import gc
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import trio
import trustme
from trio.testing import wait_all_tasks_blocked

from holdfast.http.codec import ENGINES, HeadEngine, RequestParser, ResponseParser, engine
from holdfast.http.dial import Origin
from holdfast.http.server import Limits, Server
from holdfast.http.sockets import open_tcp_listeners
from holdfast.http.transport import Transport
from tests.support import http_fuzz
from tests.support.http_fuzz import Head, head_of

LIMITS = Limits(
    max_body=1 << 20,
    body_budget=24 << 20,
    max_head=32768,
    max_headers=100,
    max_connections=100,
    head_timeout=60,
    body_timeout=60,
    idle_timeout=60,
)


@pytest.fixture
def limits() -> Limits:
    return LIMITS


@pytest.fixture(params=ENGINES)
def each_engine(request: pytest.FixtureRequest) -> HeadEngine:
    return engine(request.param)


@pytest.fixture(scope="session")
def read_requests() -> Callable[..., list[object]]:
    return http_fuzz.read_requests


@pytest.fixture(scope="session")
def read_response() -> Callable[..., tuple[object, ...]]:
    return http_fuzz.read_response


def all_splits(data: bytes) -> Iterable[list[bytes]]:
    """One byte at a time, and in two parts at every position. Long data only at some positions."""
    if len(data) < 10_000:
        yield [data[i : i + 1] for i in range(len(data))]
    for cut in range(1, len(data), 1 + len(data) // 400):
        yield [data[:cut], data[cut:]]


@pytest.fixture(scope="session")
def splits() -> Callable[[bytes], Iterable[list[bytes]]]:
    return all_splits


@dataclass
class Client:
    """A raw client: sends exactly these bytes and reads responses."""

    stream: trio.SocketStream
    held: bytes = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def answer(self, to_head_request: bool = False) -> tuple[int, Head, bytes]:
        parser = ResponseParser(engine("h11"), max_body=1 << 24, to_head_request=to_head_request)
        if self.held:
            parser.feed(self.held)
        with trio.fail_after(30):
            while not parser.complete:
                data = await self.stream.receive_some(65536)
                if not data:
                    parser.feed_end()
                    break
                parser.feed(data)
        head = head_of(parser)
        assert head is not None
        assert parser.complete
        self.held = parser.leftover
        return head.status, head, parser.body

    async def rest(self) -> bytes:
        """Reads everything until the server closes."""
        data = self.held
        with trio.fail_after(30):
            while piece := await self.stream.receive_some(65536):
                data += piece
        return data


@dataclass
class Running:
    server: Server
    port: int

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            yield Client(stream)


Serve = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def serve() -> Serve:
    @asynccontextmanager
    async def run(handler: Any, **options: Any) -> AsyncIterator[Running]:
        changed = {name: options.pop(name) for name in list(options) if hasattr(LIMITS, name)}
        server = Server(handler, replace(LIMITS, **changed), **options)
        listeners = await open_tcp_listeners("127.0.0.1", 0)
        port = listeners[0].socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: server.serve(listeners, task_status=task_status))
            yield Running(server, port)
            nursery.cancel_scope.cancel()

    return run


@dataclass
class Receiver:
    """Runs one script for each connection, in order of arrival. A script gets the stream."""

    port: int
    scripts: list[Callable[[trio.abc.Stream], Awaitable[None]]]
    heard: list[bytes] = field(default_factory=list)
    connections: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def request(self, stream: trio.abc.Stream) -> bytes:
        """Reads one request with its body, and records it."""
        parser = RequestParser(engine("h11"), max_head=65536, max_headers=100, max_body=1 << 24)
        data = b""
        while not parser.complete:
            piece = await stream.receive_some(65536)
            if not piece:
                return b""
            data += piece
            parser.feed(piece)
        self.heard.append(data)
        return data

    def answering(self, *answers: bytes, close: bool = True) -> Callable[[trio.abc.Stream], Awaitable[None]]:
        async def script(stream: trio.abc.Stream) -> None:
            for answer in answers:
                if await self.request(stream):
                    await stream.send_all(answer)
            if not close:
                await trio.sleep_forever()

        return script


@pytest.fixture
def receiver() -> Callable[..., AbstractAsyncContextManager[Receiver]]:
    @asynccontextmanager
    async def run(tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        running = Receiver(listeners[0].socket.getsockname()[1], [])

        async def connection(stream: trio.abc.Stream) -> None:
            script = running.scripts[running.connections]
            running.connections += 1
            if tls is not None:
                stream = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
            async with stream:
                with suppress(trio.BrokenResourceError):
                    await script(stream)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, connection, listeners)
            yield running
            nursery.cancel_scope.cancel()

    return run


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("a.example", "b.example", "127.0.0.1").configure_cert(context)
    return context


@pytest.fixture
def client_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.fixture
async def transport_to(each_engine: HeadEngine) -> AsyncIterator[Callable[..., Transport]]:
    """A transport whose resolver returns these ports of loopback for every name."""
    made: list[Transport] = []

    def make(*ports: int, **options: Any) -> Transport:
        async def resolve(origin: Origin) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
            return [(socket.AF_INET, ("127.0.0.1", port)) for port in ports]

        settings: dict[str, Any] = {
            "ssl_context": ssl.create_default_context(),
            "max_answer": 65536,
            "max_idle_per_origin": 8,
            "idle_timeout": 60,
        }
        made.append(Transport(resolve, engine=each_engine, **(settings | options)))
        return made[-1]

    yield make
    for transport in made:
        await transport.aclose()


@pytest.fixture
def settled() -> Callable[[], Awaitable[None]]:
    """Waits until all other tasks are blocked: data sent over loopback has arrived by then."""
    return lambda: wait_all_tasks_blocked(0.01)


class Tracked(bytes):
    """A body. `alive` counts the instances that still exist."""

    alive = 0

    def __init__(self, _: bytes) -> None:
        Tracked.alive += 1

    def __del__(self) -> None:
        Tracked.alive -= 1


@pytest.fixture
def tracked() -> Iterator[type[Tracked]]:
    """Turns the garbage collector off, so that a body in a reference cycle counts as alive."""
    gc.collect()
    gc.disable()
    yield Tracked
    gc.enable()
