"""A connected socket, for both sides: what can be done at once is done at once.

trio's own sockets take a turn around the loop for every send and receive, also for one that needs no waiting; a
webhook has four of them, and that was a fifth of its cost. Here only a wait is a checkpoint, and a receive that need
not wait, so that a peer that never pauses can't keep all others waiting.

Everything fails with `OSError`, also what is closed meanwhile.
"""

from __future__ import annotations

import errno
import socket

import outcome
import trio

from holdfast.http.readiness import readiness

Data = bytes | bytearray | memoryview


class Wire:
    """One task may receive and one may send, at a time. `socket` is for looking at it and for its options."""

    __slots__ = ("_in_parts", "_is_unix", "_number", "_reader", "_readiness", "_ready", "socket")

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self.socket = connected
        self._ready = self._in_parts = False
        self._is_unix = connected.family == socket.AF_UNIX
        self._reader: trio.lowlevel.Task | None = None
        self._number = connected.fileno()
        self._readiness = readiness()
        self._readiness.watch(self._number, self)

    @classmethod
    def taken_from(cls, sock: trio.socket.SocketType) -> Wire:
        """The same connection; the trio socket is of no use after that."""
        return cls(socket.socket(sock.family, sock.type, sock.proto, fileno=sock.detach()))

    async def send(self, data: Data) -> int:
        """Sends what can be sent without the peer reading; the number of bytes taken, at least one."""
        while True:
            try:
                return self.socket.send(data)
            except BlockingIOError:
                await self._until_writable()

    async def send_both(self, first: bytes, second: bytes) -> int:
        """Like `send`, without joining the two."""
        while True:
            try:
                return self.socket.sendmsg([first, second])
            except BlockingIOError:
                await self._until_writable()

    def send_at_once(self, data: Data) -> int:
        """Like `send`, but waits for nothing: 0 if none can be sent."""
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0

    async def send_all(self, data: Data) -> None:
        sent = await self.send(data)
        while sent < len(data):
            sent += await self.send(memoryview(data)[sent:])

    async def receive(self, size: int) -> bytes:
        """What has come, at most so many bytes; none at the end."""
        if self._ready:
            await trio.lowlevel.checkpoint()
        while True:
            if not self._ready:
                await self._until_heard()
            try:
                data = self._take(size) if self._is_unix else self.socket.recv(size)
            except BlockingIOError:
                self._ready = False
                continue
            if len(data) < size and not self._in_parts:
                # That was all: the next byte is heard of. What one read stops before would not be heard of again.
                self._ready = False
            return data

    def _take(self, size: int) -> bytes:
        """From a Unix socket, where a read also stops behind bytes that descriptors came with. Those are dropped."""
        data, _, flags, _ = self.socket.recvmsg(size)
        if flags & socket.MSG_CTRUNC:
            self._in_parts = True
        return data

    def heard(self, in_parts: bool) -> None:
        self._ready = True
        self._in_parts = self._in_parts or in_parts
        if self._reader is not None:
            trio.lowlevel.reschedule(self._reader)
            self._reader = None

    def is_quiet(self) -> bool:
        """Whether it is still there, and nothing has come that was not asked for."""
        return not self._ready

    def has_unread(self) -> bool:
        """Whether bytes have come that are not received yet, heard of or not."""
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def close(self) -> None:
        """Whoever waits on it hears of it."""
        if self.socket.fileno() < 0:
            return
        self._readiness.forget(self._number)
        trio.lowlevel.notify_closing(self.socket)
        self.socket.close()
        if self._reader is not None:
            trio.lowlevel.reschedule(self._reader, outcome.Error(_closed_here()))
            self._reader = None

    async def _until_writable(self) -> None:
        try:
            await trio.lowlevel.wait_writable(self.socket)
        except trio.ClosedResourceError as error:
            raise _closed_here() from error

    async def _until_heard(self) -> None:
        if self.socket.fileno() < 0:
            raise _closed_here()
        assert self._reader is None, "two tasks receive on one connection"
        self._reader = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abandon)

    def _abandon(self, _: object) -> trio.lowlevel.Abort:
        self._reader = None
        return trio.lowlevel.Abort.SUCCEEDED


def _closed_here() -> OSError:
    return OSError(errno.EBADF, "it was closed here")
