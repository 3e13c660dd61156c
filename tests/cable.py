"""A way to a database that can be cut and mended: what is at its end is then out of reach, and back."""

import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit

IS_OVER = b"Z\0\0\0\5I"
"""What the server says at the end of an answer, when no transaction is under way."""


class Cable:
    """Listens on loopback and passes on what it gets. It has threads of its own: those that it serves may block."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        who, at, _ = parts.netloc.rpartition("@")
        place = f"{who}{at}127.0.0.1:{self._listener.getsockname()[1]}"
        # Nobody could tell a commit from anything else in what is encrypted.
        self.url = parts._replace(netloc=place, query="sslmode=disable").geturl()
        self._guard = threading.Lock()
        self._strands: set[_Strand] = set()
        self._is_cut = False
        self.loses_answer_to: bytes | None = None
        """Then the next transaction that names this is carried out, and nobody hears of its end."""
        self._serving = threading.Thread(target=self._serve)
        self._serving.start()

    def cut(self) -> None:
        with self._guard:
            self._is_cut = True
            for strand in self._strands:
                strand.cut()

    def mend(self) -> None:
        with self._guard:
            self._is_cut = False

    def close(self) -> None:
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._serving.join()
        self._listener.close()
        for strand in self._strands:
            strand.close()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._guard:
                if self._is_cut:
                    near.close()
                else:
                    self._strands.add(_Strand(self, near, socket.create_connection(self._target)))


class _Strand:
    """One connection."""

    def __init__(self, cable: Cable, near: socket.socket, far: socket.socket) -> None:
        self._cable = cable
        self._near, self._far = near, far
        self._is_deaf = False
        self._threads = [threading.Thread(target=self._ask), threading.Thread(target=self._answer)]
        for thread in self._threads:
            thread.start()

    def cut(self) -> None:
        for end in (self._near, self._far):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for thread in self._threads:
            thread.join()
        self._near.close()
        self._far.close()

    def _ask(self) -> None:
        with suppress(OSError):
            while data := self._near.recv(1 << 16):
                marker = self._cable.loses_answer_to
                if marker is not None and marker in data:
                    self._cable.loses_answer_to = None
                    self._is_deaf = True
                self._far.sendall(data)
        self.cut()

    def _answer(self) -> None:
        with suppress(OSError):
            while data := self._far.recv(1 << 16):
                if self._is_deaf and data.endswith(IS_OVER):
                    break
                self._near.sendall(data)
        self.cut()
