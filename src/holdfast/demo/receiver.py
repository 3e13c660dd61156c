"""A receiver of webhooks with moods, and the names that receivers of the demo go by.

It listens on loopback. While it refuses connections its name leads to a port that is bound and not listened on.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import trio

from holdfast.http.dial import Origin
from holdfast.http.message import Request, Response
from holdfast.http.server import LOCAL_LIMITS, Server
from holdfast.http.sockets import open_tcp_listeners

LOOPBACK = "127.0.0.1"
WORK = 0.02
"""Seconds that a webhook takes here: enough for several to be under way at once."""

Addresses = Sequence[tuple[socket.AddressFamily, tuple[Any, ...]]]


class Mood(Enum):
    FINE = auto()
    REFUSING = auto()
    HANGING = auto()
    CRASHING = auto()
    REDIRECTING = auto()
    OVERLOADED = auto()
    GONE = auto()


ANSWERS = {
    Mood.FINE: Response(200),
    Mood.CRASHING: Response(500),
    Mood.REDIRECTING: Response(302, [(b"location", b"http://elsewhere.example/")]),
    Mood.OVERLOADED: Response(503),
    Mood.GONE: Response(410),
}


@dataclass
class Receiver:
    """`taken` are the ids of webhooks that got 200, `beside` how many were open with each request since `watch`.

    A `patience` is a number of webhooks after which a fine receiver is overloaded.
    """

    name: str
    mood: Mood = Mood.FINE
    patience: int | None = None
    taken: set[str] = field(default_factory=set)
    requests: int = 0
    beside: list[int] = field(default_factory=list)
    _open: int = 0
    _port: int = 0
    _closed_port: int = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await open_tcp_listeners(LOOPBACK, 0)
        self._port = int(listeners[0].socket.getsockname()[1])
        with socket.socket() as closed:
            closed.bind((LOOPBACK, 0))
            self._closed_port = int(closed.getsockname()[1])
            await Server(self.answer, LOCAL_LIMITS).serve(listeners, task_status=task_status)

    @property
    def addresses(self) -> Addresses:
        port = self._closed_port if self.mood is Mood.REFUSING else self._port
        return [(socket.AF_INET, (LOOPBACK, port))]

    def watch(self) -> None:
        self.beside.clear()

    async def answer(self, request: Request) -> Response:
        self.requests += 1
        self._open += 1
        self.beside.append(self._open)
        try:
            return await self._answer(request)
        finally:
            self._open -= 1

    async def _answer(self, request: Request) -> Response:
        if self.mood is Mood.FINE and self.patience is not None:
            self.patience -= 1
            if self.patience < 0:
                self.mood, self.patience = Mood.OVERLOADED, None
        mood = self.mood
        if mood is Mood.HANGING:
            await trio.sleep_forever()
        if mood is Mood.FINE:
            await trio.sleep(WORK)
            self.taken.add((request.header(b"webhook-id") or b"").decode())
        return ANSWERS[mood]


class Names:
    """Where the names of the demo lead to; in place of the gateway's resolver."""

    def __init__(self, *receivers: Receiver) -> None:
        self._receivers = {receiver.name: receiver for receiver in receivers}

    async def resolve(self, origin: Origin) -> Addresses:
        await trio.lowlevel.checkpoint()
        return self._receivers[origin.host].addresses
