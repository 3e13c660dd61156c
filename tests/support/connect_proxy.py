"""A forward proxy for tests: real CONNECT on loopback, with a record of its requests.

`routes` maps the requested "ip:port" to a server of the test; any other target is a 502. `script` replaces this:
`answering(407)`, `saying(b"garbage")`, `hanging`, `closing`, or a function of the test.
"""

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

from tests.support.harness import PATIENCE

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


@dataclass(frozen=True)
class Asked:
    """`headers` as they came, names in lower case."""

    line: str
    headers: tuple[tuple[str, str], ...]

    @property
    def target(self) -> str:
        return self.line.split(" ")[1]


Script = Callable[["ConnectProxy", socket.socket, Asked], None]


class ConnectProxy:
    """Serves until `close`."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.routes: dict[str, tuple[str, int]] = {}
        self.script: Script = tunnel
        self.connections = 0
        self.closing = threading.Event()
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self.address = f"127.0.0.1:{self.port}"
        self._start(self._accept)

    @property
    def targets(self) -> list[str]:
        with self._changed:
            return [asked.target for asked in self.asked]

    def wait_for(self, condition: Callable[["ConnectProxy"], bool], patience: float = PATIENCE) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), patience), f"not met; asked {self.asked}"

    def wait_until_all_left(self) -> None:
        """Waits until every client has disconnected."""
        self.wait_for(lambda proxy: proxy.connections > 0 and not proxy._open)

    def close(self) -> None:
        self.closing.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        with self._changed:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE)
        self._listening.close()

    def _start(self, job: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=job, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self.closing.is_set():
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with self._changed:
                if self.closing.is_set():
                    connection.close()
                    return
                self.connections += 1
                self._open.add(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if (asked := _read_request(connection)) is not None:
                with self._changed:
                    self.asked.append(asked)
                    self._changed.notify_all()
                self.script(self, connection, asked)
        with self._changed:
            self._open.discard(connection)
            self._changed.notify_all()


def tunnel(proxy: ConnectProxy, connection: socket.socket, asked: Asked) -> None:
    try:
        onward = socket.create_connection(proxy.routes[asked.target], PATIENCE)
    except (KeyError, OSError):
        answering(502)(proxy, connection, asked)
        return
    with onward:
        onward.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(ESTABLISHED)
        _pass_on(connection, onward)


def answering(status: int) -> Script:
    phrase = HTTPStatus(status).phrase
    body = b"<html>from the proxy</html>"
    head = f"HTTP/1.1 {status} {phrase}\r\ncontent-length: {len(body)}\r\nx-proxy: test\r\n\r\n"
    return saying(head.encode() + body)


def saying(*pieces: bytes) -> Script:
    """Sends these bytes and then nothing, until the client disconnects."""

    def script(proxy: ConnectProxy, connection: socket.socket, asked: Asked) -> None:
        for piece in pieces:
            connection.sendall(piece)
        hanging(proxy, connection, asked)

    return script


def dripping(first: bytes, endlessly: bytes) -> Script:
    """Sends without end, until the client disconnects."""

    def script(proxy: ConnectProxy, connection: socket.socket, asked: Asked) -> None:
        connection.sendall(first)
        while not proxy.closing.wait(0.001):
            connection.sendall(endlessly)

    return script


def hanging(proxy: ConnectProxy, connection: socket.socket, asked: Asked) -> None:
    while connection.recv(65536):
        pass


def closing(proxy: ConnectProxy, connection: socket.socket, asked: Asked) -> None:
    """Disconnects without an answer."""


def resetting(proxy: ConnectProxy, connection: socket.socket, asked: Asked) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")


def _read_request(connection: socket.socket) -> Asked | None:
    """Reads byte by byte, so that nothing after the head is consumed."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            return None
        head += byte
    line, *fields = head.decode("latin-1").split("\r\n")[:-2]
    parted = (field.partition(":") for field in fields)
    return Asked(line, tuple((name.lower(), value.strip()) for name, _, value in parted))


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    onward = {one: other, other: one}
    while True:
        for ready in select.select([one, other], [], [])[0]:
            data = ready.recv(65536)
            if not data:
                return
            onward[ready].sendall(data)
