"""A connected socket, for both sides: what can be done at once is done at once.

trio's own sockets take a turn around the loop for every send and receive, also for one that needs no waiting; a
webhook has four of them, and that was a fifth of its cost. Here only a wait is a checkpoint. Whoever receives always
waits first: what is asked for has hardly ever come already.

Everything fails with `OSError`, also what is closed meanwhile.
"""

from __future__ import annotations

import errno
import socket

import trio

Data = bytes | bytearray | memoryview


class Wire:
    __slots__ = ("socket",)

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self.socket = connected

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
                try:
                    await trio.lowlevel.wait_writable(self.socket)
                except trio.ClosedResourceError as error:
                    raise OSError(errno.EBADF, "it was closed here") from error

    async def send_all(self, data: Data) -> None:
        sent = await self.send(data)
        while sent < len(data):
            sent += await self.send(memoryview(data)[sent:])

    async def receive(self, size: int) -> bytes:
        """What has come, at most so many bytes; none at the end."""
        while True:
            try:
                await trio.lowlevel.wait_readable(self.socket)
                return self.socket.recv(size)
            except BlockingIOError:
                continue
            except trio.ClosedResourceError as error:
                raise OSError(errno.EBADF, "it was closed here") from error

    def is_quiet(self) -> bool:
        """Whether it is still there, and nothing has come that was not asked for."""
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Whoever waits on it hears of it."""
        if self.socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()
