"""Receivers of a fleet, on one loop. They record each request before they answer it."""

import re
import time
from collections.abc import Callable

import trio

from tests.fleet.event_log import Request, Witness

_HEAD = re.compile(rb"\r\n(content-length|webhook-id|user-agent): *([^\r]*)", re.IGNORECASE)
_ANSWER = "HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n"

Behaviour = Callable[[Request], tuple[int, float]]
"""What a request is answered, and after how many seconds."""


class Host:
    """One receiver on a port of its own. `most` is how many requests were open at it at once."""

    def __init__(self, name: str, witness: Witness, behave: Behaviour) -> None:
        self.name = name
        self.most = self.answered = 0
        self._witness = witness
        self._behave = behave
        self._open = 0
        self.key = ""
        self.url = ""

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=512)
        self.key = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        self.url = f"http://{self.key}"
        task_status.started()
        await trio.serve_listeners(self._talk, listeners)

    async def _talk(self, stream: trio.SocketStream) -> None:
        connection, got = self._witness.number(), b""
        try:
            while data := await stream.receive_some(65_536):
                got += data
                while taken := _whole(got):
                    head, got = got[:taken], got[taken:]
                    await self._answer(stream, head, connection)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # A replica that was killed leaves broken connections behind.

    async def _answer(self, stream: trio.SocketStream, head: bytes, connection: int) -> None:
        fields = {name.lower(): value.decode() for name, value in _HEAD.findall(head)}
        life = int(fields[b"user-agent"].removeprefix("life-"))
        request = Request(self._witness.number(), time.time(), self.name, fields[b"webhook-id"], life, connection)
        self._witness.requests.append(request)
        self._open += 1
        self.most = max(self.most, self._open)
        status, delay = self._behave(request)
        if delay:
            await trio.sleep(delay)
        # It is over for the replica once it has the answer: so it is over here before.
        self._open -= 1
        self.answered += 1
        self._witness.answered(request, status)
        await stream.send_all(_ANSWER.format(status=status).encode())


def _whole(got: bytes) -> int:
    """How many bytes the first whole request in the buffer has; 0 if there is none."""
    end = got.find(b"\r\n\r\n")
    if end < 0:
        return 0
    length = next((int(value) for name, value in _HEAD.findall(got[:end]) if name.lower() == b"content-length"), 0)
    return end + 4 + length if len(got) >= end + 4 + length else 0
