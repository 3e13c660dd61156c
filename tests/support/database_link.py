"""A TCP relay in front of a database. A test cuts it to make the database unreachable, and restores it."""

import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit

READY_FOR_QUERY = b"Z\0\0\0\5I"
"""PostgreSQL ends each answer with this message when no transaction is open."""


class DatabaseLink:
    """Listens on loopback and forwards to the database. It uses threads, because its clients may block the loop."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        credentials, at, _ = parts.netloc.rpartition("@")
        netloc = f"{credentials}{at}127.0.0.1:{self._listener.getsockname()[1]}"
        # Without TLS, since `loses_answer_to` searches the bytes.
        self.url = parts._replace(netloc=netloc, query="sslmode=disable").geturl()
        self._lock = threading.Lock()
        self._connections: set[_Connection] = set()
        self._is_cut = False
        self.loses_answer_to: bytes | None = None
        """If set, the next transaction that contains these bytes is executed, and its answer is dropped."""
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            for connection in self._connections:
                connection.cut()

    def restore(self) -> None:
        with self._lock:
            self._is_cut = False

    def close(self) -> None:
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_cut:
                    client.close()
                else:
                    self._connections.add(_Connection(self, client, socket.create_connection(self._target)))


class _Connection:
    def __init__(self, link: DatabaseLink, client: socket.socket, server: socket.socket) -> None:
        self._link = link
        self._client, self._server = client, server
        self._drops_answer = False
        self._threads = [
            threading.Thread(target=self._forward_requests),
            threading.Thread(target=self._forward_answers),
        ]
        for thread in self._threads:
            thread.start()

    def cut(self) -> None:
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for thread in self._threads:
            thread.join()
        self._client.close()
        self._server.close()

    def _forward_requests(self) -> None:
        with suppress(OSError):
            while data := self._client.recv(1 << 16):
                marker = self._link.loses_answer_to
                if marker is not None and marker in data:
                    self._link.loses_answer_to = None
                    self._drops_answer = True
                self._server.sendall(data)
        self.cut()

    def _forward_answers(self) -> None:
        with suppress(OSError):
            while data := self._server.recv(1 << 16):
                if self._drops_answer and data.endswith(READY_FOR_QUERY):
                    break
                self._client.sendall(data)
        self.cut()
