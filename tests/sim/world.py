"""A gateway in virtual time: everything but sockets, disk and threads, with receivers that do as they are told."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from holdfast.clock import TrioClock
from holdfast.config import Config, build
from holdfast.core.message import Message, MessageId, State, id_text, parse_id
from holdfast.delivery.service import Delivery, circuit_rules, retry_rules
from holdfast.http.errors import ExchangeTimeout
from holdfast.http.transport import Answer, Origin
from holdfast.store.ledger import Ledger
from holdfast.store.memory import MemoryEngine
from holdfast.store.port import Accept, Story
from holdfast.store.work import StoreRules

START = 1_800_000_000_000
"""Aligned to no bucket on purpose."""


@dataclass(frozen=True)
class Request:
    """What a receiver saw: seconds since the world began, and which message."""

    at: float
    host: str
    id: str


Script = Callable[[Request], Any]


async def hang(request: Request) -> int:
    await trio.sleep_forever()
    return 200


def slow(seconds: float, status: int = 200) -> Callable[[Request], Awaitable[int]]:
    async def answer(request: Request) -> int:
        await trio.sleep(seconds)
        return status

    return answer


@dataclass
class World:
    """`scripts` say how each host answers: a status, an Answer, an exception, or a function of the request."""

    config: Config
    engine: MemoryEngine = field(default_factory=MemoryEngine)
    scripts: dict[str, Any] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    began: float = field(default_factory=trio.current_time)
    clock: TrioClock = field(default_factory=lambda: TrioClock(START))

    @asynccontextmanager
    async def gateway(self) -> AsyncIterator["World"]:
        """Run the gateway; leaving is a clean shutdown, and it can be entered again on the same store."""
        rules = StoreRules(
            circuit_rules(self.config),
            retry_rules(self.config),
            self.config.ingest.idempotency,
            self.config.store.host_share,
            self.config.delivery.per_host,
            self.clock.now(),
        )
        self.ledger = Ledger(self.engine, rules, self.clock, lambda bits: 0)
        await self.ledger.open()
        self.delivery = Delivery(self.config, self.ledger, self, self.clock, lambda: 0.5, rules.run)
        self.dispatcher = self.delivery.dispatcher
        async with trio.open_nursery() as store_nursery:
            await store_nursery.start(self.ledger.run)
            async with trio.open_nursery() as nursery:
                await nursery.start(self.delivery.run)
                yield self
                nursery.cancel_scope.cancel()
            store_nursery.cancel_scope.cancel()

    async def accept(self, host: str = "a.test:80", *, delay: float = 0, lane: str | None = None, body: bytes = b"{}") -> str:
        now = self.clock.now()
        message = Message(
            self.ledger.mint(now),
            lane or host,
            host,
            "http",
            host,
            b"/hook",
            "POST",
            (),
            body,
            now,
            now + round(delay * 1000),
        )
        await self.ledger.perform(Accept(message))
        return id_text(message.id)

    async def exchange(self, origin: Origin, head: bytes, body: bytes, deadline: float) -> Answer:
        host = f"{origin.host}:{origin.port}"
        found = re.search(rb"webhook-id: (\S+)", head)
        assert found is not None
        id = found[1].decode()
        request = Request(round(trio.current_time() - self.began, 3), host, id)
        self.requests.append(request)
        script = self.scripts.get(host, 200)
        answer: Any = None
        with trio.CancelScope(deadline=deadline) as scope:
            answer = script(request) if callable(script) else script
            if isinstance(answer, Awaitable):
                answer = await answer
        if scope.cancelled_caught:
            raise ExchangeTimeout("no answer in time", "192.0.2.1:80")
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Answer):
            return answer
        return Answer(answer, [], b"", "192.0.2.1:80", reused=False, complete=True)

    def times(self, id: str | None = None, host: str | None = None) -> list[float]:
        return [
            request.at
            for request in self.requests
            if (id is None or request.id == id) and (host is None or request.host == host)
        ]

    async def story(self, id: str) -> Story:
        parsed = parse_id(id)
        assert parsed is not None
        story = await self.ledger.story(parsed)
        assert story is not None
        return story

    async def state(self, id: str) -> State:
        return (await self.story(id)).state


def world(**sections: dict[str, Any]) -> World:
    return World(build(sections))


def raw_id(id: str) -> MessageId:
    parsed = parse_id(id)
    assert parsed is not None
    return parsed
