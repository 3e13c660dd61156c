"""One end of the socketpair between the two processes.

What gathers during one round of the loop travels as one frame, and frames travel in one call of the system: under load
a message costs neither a call nor a task of its own.
"""

import socket
from typing import Any

import trio

from holdfast.http.wire import Wire
from holdfast.split.frames import Frame, Kind, cut, frame

READ = 64 << 10


class Channel:
    """`gathered` is the kind of frame that `add` fills; all other frames are posted whole. Order is kept."""

    def __init__(self, sock: socket.socket, gathered: Kind) -> None:
        self._wire = Wire(sock)
        self._gathered = gathered
        self._items: list[Any] = []
        self._frames: list[bytes] = []
        self._some = trio.Event()
        self._received = bytearray()

    def add(self, item: Any) -> None:
        self._items.append(item)
        self._some.set()

    def post(self, kind: Kind, content: Any = None) -> None:
        self._gather()
        self._frames.append(frame(kind, content))
        self._some.set()

    async def send(self) -> None:
        """Send what was given, until the other side is gone."""
        try:
            while True:
                await self._some.wait()
                self._some = trio.Event()
                self._gather()
                data, self._frames = b"".join(self._frames), []
                await self._wire.send_all(data)
        except OSError:
            # Whoever receives hears that the other side is gone.
            pass

    async def receive(self) -> list[Frame]:
        """The next frames, at least one; none when the other side is gone. What it left unfinished is nothing."""
        while True:
            try:
                data = await self._wire.receive(READ)
            except OSError:
                return []
            if not data:
                return []
            self._received += data
            if frames := cut(self._received):
                return frames

    def close(self) -> None:
        self._wire.close()

    def _gather(self) -> None:
        if self._items:
            self._frames.append(frame(self._gathered, self._items))
            self._items = []
