"""A real server on a free loopback port, Ingest behind it, and the real store on an engine in memory."""

import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import trio

from holdfast.config import Address, build
from holdfast.core.errors import CommitFailed, EgressDenied
from holdfast.core.message import Message
from holdfast.http.server import Limits, Server
from holdfast.http.sockets import local_address, open_tcp_listeners
from holdfast.ingest.handler import Ingest
from holdfast.store.embedded.ledger import Ledger
from tests.store.memory import MemoryEngine
from tests.store.recorder import Recorder

NOW = 1_700_000_000_000
LIMITS = Limits(
    max_body=1 << 20,
    body_budget=24 << 20,
    max_head=32 << 10,
    max_headers=100,
    max_connections=16,
    head_timeout=5,
    body_timeout=5,
    idle_timeout=5,
)
Pairs = Iterable[tuple[str, str]]


class FrozenClock:
    def now(self) -> int:
        return NOW

    def deadline(self, moment: int) -> float:
        return trio.current_time()


def judge_literal(host: str, port: int, route: bool) -> None:
    """Replaces the egress rules: allows public addresses on ports 80 and 443, and every route."""
    if route:
        return
    if host.startswith(("127.", "10.")) or host == "::1":
        raise EgressDenied(f"{host} is a private address; open it in egress.allow.")
    if port not in (80, 443):
        raise EgressDenied(f"Port {port} is not in egress.allow_ports.")


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def slug(self) -> str:
        """The slug of the problem. Fails for an answer that is not a complete problem document."""
        assert self.header("content-type") == "application/problem+json"
        assert self.json["status"] == self.status
        assert self.json["title"] and self.json["detail"]
        return str(self.json["type"]).removeprefix("urn:holdfast:problem:")


@dataclass
class Gateway:
    """`messages` are those that the store has committed, in order."""

    port: int
    engine: MemoryEngine
    messages: list[Message] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    ingest: Ingest = field(init=False)

    @property
    def message(self) -> Message:
        """The only message in the store."""
        (message,) = self.messages
        return message

    async def send(self, raw: bytes) -> Answer:
        """Sends one request on its own connection."""
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            await stream.send_all(raw)
            received = b"".join([piece async for piece in stream])
        head, _, body = received.partition(b"\r\n\r\n")
        status_line, *lines = head.decode("ascii").split("\r\n")
        headers = [line.partition(": ") for line in lines]
        return Answer(int(status_line.split(" ")[1]), [(name, value) for name, _, value in headers], body)

    async def post(
        self,
        target: str,
        headers: Pairs = (),
        body: bytes = b"{}",
        *,
        method: str = "POST",
        host: str | None = None,
    ) -> Answer:
        lines = [f"{method} {target} HTTP/1.1", f"Host: {host or f'127.0.0.1:{self.port}'}"]
        lines += [f"{name}: {value}" for name, value in headers]
        lines += ["Connection: close", f"Content-Length: {len(body)}", "", ""]
        return await self.send("\r\n".join(lines).encode("utf-8") + body)


@asynccontextmanager
async def gateway(
    mapping: dict[str, Any] | None = None,
    *,
    token: bytes | None = None,
    judge: Callable[[str, int, bool], None] = judge_literal,
) -> AsyncIterator[Gateway]:
    config = build(mapping or {})
    listeners = await open_tcp_listeners("127.0.0.1", 0)
    host, port = local_address(listeners[0])
    running = Gateway(int(port), MemoryEngine(config.store.max_size))
    store = Ledger(running.engine, config.store_rules(NOW), FrozenClock(), lambda bits: 7)
    recorder = store.listener = Recorder()
    recorder.accepted = running.messages
    running.ingest = Ingest(
        config,
        store,
        FrozenClock(),
        judge,
        running.refusals.append,
        listening=Address(host, int(port)),
        token=token,
    )
    server = Server(running.ingest, LIMITS, gate=running.ingest.gate)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_keep_store, store)
        await nursery.start(server.serve, listeners)
        yield running
        nursery.cancel_scope.cancel()


async def _keep_store(store: Ledger) -> None:
    """A failed commit ends the process. Here it runs on for its last answers."""
    with suppress(CommitFailed):
        await store.run()
