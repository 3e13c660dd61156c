"""A connected socket, used by the server and by the transport. It waits only if it must.

trio's sockets pass through the scheduler for every send and receive, even if nothing has to be waited for. A webhook
has four of them, and that was a fifth of its cost. Here a send is a checkpoint only if it waits. A receive is always
one, so that a peer that never pauses leaves the others their turn.

trio also registers a socket anew for every wait: one system call, a third of the cost of a wait. Here a socket is
registered once, edge-triggered, with an epoll of our own. One system task waits for that epoll and wakes the readers.

Every failure is an `OSError`, also on a wire that is closed meanwhile.
"""

from __future__ import annotations

import errno
import select
import socket

import outcome
import trio

Data = bytes | bytearray | memoryview

_EVENTS = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLPRI | select.EPOLLET
_ENDS_A_READ_EARLY = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR | select.EPOLLPRI
"""The end of the stream, or an urgent byte: a read stops before either, and no further event follows."""


class Wire:
    """One task may receive while another one sends. `socket` is for socket options and for inspection."""

    __slots__ = ("_is_unix", "_number", "_reader", "_readiness", "_ready", "_short_reads", "socket")

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self.socket = connected
        self._ready = self._short_reads = False
        self._is_unix = connected.family == socket.AF_UNIX
        self._reader: trio.lowlevel.Task | None = None
        self._number = connected.fileno()
        self._readiness = _current_readiness()
        self._readiness.watch(self._number, self)

    @classmethod
    def from_trio(cls, sock: trio.socket.SocketType) -> Wire:
        """Takes the connection out of a trio socket, which can't be used afterwards."""
        return cls(socket.socket(sock.family, sock.type, sock.proto, fileno=sock.detach()))

    async def send(self, data: Data) -> int:
        """Sends as much as fits into the socket's buffer. Returns the number of bytes, at least one."""
        while True:
            try:
                return self.socket.send(data)
            except BlockingIOError:
                await self._wait_writable()

    async def send_both(self, first: bytes, second: bytes) -> int:
        """Like `send`, without joining the two."""
        while True:
            try:
                return self.socket.sendmsg([first, second])
            except BlockingIOError:
                await self._wait_writable()

    def send_at_once(self, data: Data) -> int:
        """Like `send`, but never waits: returns 0 if the buffer is full."""
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0

    async def send_all(self, data: Data) -> None:
        sent = await self.send(data)
        while sent < len(data):
            sent += await self.send(memoryview(data)[sent:])

    async def receive(self, size: int) -> bytes:
        """Returns up to `size` bytes, or none at the end of the stream."""
        if self._ready:
            await trio.lowlevel.checkpoint()
        while True:
            if not self._ready:
                await self._wait_readable()
            try:
                data = self._receive_from_unix(size) if self._is_unix else self.socket.recv(size)
            except BlockingIOError:
                self._ready = False
                continue
            if len(data) < size and not self._short_reads:
                # The buffer is empty, and the next byte causes an event.
                self._ready = False
            return data

    def _receive_from_unix(self, size: int) -> bytes:
        """A read from a Unix socket also stops behind bytes that came with descriptors. The descriptors are dropped."""
        data, _, flags, _ = self.socket.recvmsg(size)
        if flags & socket.MSG_CTRUNC:
            self._short_reads = True
        return data

    def on_readable(self, short_reads: bool) -> None:
        """With `short_reads`, a read may return less than there is. May be called without need, never too seldom."""
        self._ready = True
        self._short_reads = self._short_reads or short_reads
        if self._reader is not None:
            trio.lowlevel.reschedule(self._reader)
            self._reader = None

    def is_quiet(self) -> bool:
        """Whether the peer has neither closed the connection nor sent anything since the last receive."""
        return not self._ready

    def has_unread(self) -> bool:
        """Whether the socket holds unread bytes, also if their event is still to come."""
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def close(self) -> None:
        """Tasks that wait on the wire get an OSError."""
        if self.socket.fileno() < 0:
            return
        self._readiness.forget(self._number)
        trio.lowlevel.notify_closing(self.socket)
        self.socket.close()
        if self._reader is not None:
            trio.lowlevel.reschedule(self._reader, outcome.Error(_closed_here()))
            self._reader = None

    async def _wait_writable(self) -> None:
        try:
            await trio.lowlevel.wait_writable(self.socket)
        except trio.ClosedResourceError as error:
            raise _closed_here() from error

    async def _wait_readable(self) -> None:
        if self.socket.fileno() < 0:
            raise _closed_here()
        assert self._reader is None, "two tasks receive on one connection"
        self._reader = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort_wait)

    def _abort_wait(self, _: object) -> trio.lowlevel.Abort:
        self._reader = None
        return trio.lowlevel.Abort.SUCCEEDED


class Readiness:
    """Tells the wires of one trio run when they are readable. Lives as long as the run."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wires: dict[int, Wire] = {}
        trio.lowlevel.spawn_system_task(self._notify)

    def watch(self, number: int, wire: Wire) -> None:
        self._wires[number] = wire
        self._epoll.register(number, _EVENTS)

    def forget(self, number: int) -> None:
        """For a socket that is about to be closed: closing removes it from the epoll."""
        del self._wires[number]

    async def _notify(self) -> None:
        with self._epoll:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                for number, events in self._epoll.poll(0):
                    wire = self._wires.get(number)
                    if wire is not None:
                        wire.on_readable(bool(events & _ENDS_A_READ_EARLY))


_readiness: trio.lowlevel.RunVar[Readiness] = trio.lowlevel.RunVar("readiness")


def _current_readiness() -> Readiness:
    try:
        return _readiness.get()
    except LookupError:
        made = Readiness()
        _readiness.set(made)
        return made


def _closed_here() -> OSError:
    return OSError(errno.EBADF, "the connection was closed on this side")
