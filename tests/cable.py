"""A connection to a server that can be cut and mended: what is behind it is then out of reach, and back."""

import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit


class Cable:
    """Listens on loopback and passes on what it gets. Runs on threads of its own: those it serves may block."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._guard = threading.Lock()
        self._ends: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._is_cut = False
        own = f"127.0.0.1:{self._listener.getsockname()[1]}"
        user = parts.netloc.rpartition("@")
        self.url = parts._replace(netloc=f"{user[0]}{user[1]}{own}").geturl()
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        with self._guard:
            self._is_cut = True
            for end in self._ends:
                _shut(end)

    def mend(self) -> None:
        with self._guard:
            self._is_cut = False

    def close(self) -> None:
        self.cut()
        _shut(self._listener)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._guard:
                if self._is_cut:
                    near.close()
                    continue
                far = socket.create_connection(self._target)
                self._ends |= {near, far}
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        with self._guard:
            for end in (source, sink):
                _shut(end)
            if source.fileno() != -1:
                self._ends.discard(source)
                source.close()


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
