"""Both ends of the demo's webhooks, on loopback: the app that sends them, and receivers whose behaviour changes."""

import json
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import trio

from holdfast.config import Address
from holdfast.demo.narrator import promise
from holdfast.http.dial import Origin
from holdfast.http.request_response import Request, Response
from holdfast.http.server import LOCAL_LIMITS, Server
from holdfast.http.sockets import open_tcp_listeners
from holdfast.http.transport import Resolve, Transport

LOOPBACK = "127.0.0.1"
PROCESSING_TIME = 0.02
"""Seconds that a receiver takes for a webhook: enough for several to be in progress at once."""
IDLE_TIMEOUT = 50.0
ANSWER_TIMEOUT = 30.0
ACCEPTED = 202

Addresses = Sequence[tuple[socket.AddressFamily, tuple[Any, ...]]]


class Behaviour(Enum):
    HEALTHY = auto()
    REFUSING = auto()
    HANGING = auto()
    CRASHING = auto()
    REDIRECTING = auto()
    OVERLOADED = auto()
    GONE = auto()


ANSWERS = {
    Behaviour.HEALTHY: Response(200),
    Behaviour.CRASHING: Response(500),
    Behaviour.REDIRECTING: Response(302, [(b"location", b"http://elsewhere.example/")]),
    Behaviour.OVERLOADED: Response(503),
    Behaviour.GONE: Response(410),
}


@dataclass
class Receiver:
    """Answers webhooks by its behaviour. A healthy one is overloaded after `overloaded_after` webhooks.

    `delivered` has the ids of webhooks that got 200; `concurrency` has, for each request, how many were open.
    """

    name: str
    behaviour: Behaviour = Behaviour.HEALTHY
    overloaded_after: int | None = None
    delivered: set[str] = field(default_factory=set)
    requests: int = 0
    concurrency: list[int] = field(default_factory=list)
    _open: int = 0
    _port: int = 0
    _closed_port: int = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await open_tcp_listeners(LOOPBACK, 0)
        self._port = int(listeners[0].socket.getsockname()[1])
        with socket.socket() as closed:
            # Bound and not listened on: connections to it are refused, and no other process gets it.
            closed.bind((LOOPBACK, 0))
            self._closed_port = int(closed.getsockname()[1])
            await Server(self.answer, LOCAL_LIMITS).serve(listeners, task_status=task_status)

    @property
    def addresses(self) -> Addresses:
        port = self._closed_port if self.behaviour is Behaviour.REFUSING else self._port
        return [(socket.AF_INET, (LOOPBACK, port))]

    async def answer(self, request: Request) -> Response:
        self.requests += 1
        self._open += 1
        self.concurrency.append(self._open)
        try:
            return await self._answer(request)
        finally:
            self._open -= 1

    async def _answer(self, request: Request) -> Response:
        if self.behaviour is Behaviour.HEALTHY and self.overloaded_after is not None:
            self.overloaded_after -= 1
            if self.overloaded_after < 0:
                self.behaviour, self.overloaded_after = Behaviour.OVERLOADED, None
        behaviour = self.behaviour
        if behaviour is Behaviour.HANGING:
            await trio.sleep_forever()
        if behaviour is Behaviour.HEALTHY:
            await trio.sleep(PROCESSING_TIME)
            self.delivered.add((request.header(b"webhook-id") or b"").decode())
        return ANSWERS[behaviour]


class Names:
    """The addresses of the demo's host names. It replaces the gateway's resolver."""

    def __init__(self, *receivers: Receiver) -> None:
        self._receivers = {receiver.name: receiver for receiver in receivers}

    async def resolve(self, origin: Origin) -> Addresses:
        await trio.lowlevel.checkpoint()
        return self._receivers[origin.host].addresses


class Sender:
    """The app. `sent` are the ids from its 202 answers, in order; `busy` is true while it waits for an answer."""

    def __init__(self, ingest: Address) -> None:
        self.ingest = ingest
        self._transport = plain_transport(self._resolve, max_answer=65_536, max_idle=1)
        self.sent: list[str] = []
        self.busy = False

    async def send(self, target: str) -> str:
        """Sends one webhook and returns its id."""
        body = json.dumps({"order": len(self.sent) + 1}).encode()
        head = (
            f"POST /{target} HTTP/1.1\r\nhost: {self.ingest}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        origin = Origin("http", self.ingest.host, self.ingest.port)
        self.busy = True
        try:
            answer = await self._transport.exchange(origin, head.encode(), body, trio.current_time() + ANSWER_TIMEOUT)
        finally:
            self.busy = False
        promise(answer.status == ACCEPTED, f"202 for a webhook to {target}", (answer.status, answer.body))
        self.sent.append(json.loads(answer.body)["id"])
        return self.sent[-1]

    async def _resolve(self, origin: Origin) -> Addresses:
        await trio.lowlevel.checkpoint()
        return [(socket.AF_INET, (origin.host, origin.port))]


def plain_transport(resolve: Resolve, *, max_answer: int, max_idle: int) -> Transport:
    """A client for plain HTTP: nothing in the demo uses TLS."""
    return Transport(
        resolve,
        ssl_context=lambda origin: ssl.create_default_context(),
        max_answer=max_answer,
        max_idle_per_origin=max_idle,
        idle_timeout=IDLE_TIMEOUT,
    )
