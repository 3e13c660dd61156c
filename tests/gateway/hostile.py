"""Hostile receivers and clients on raw sockets, and the gateway's memory meanwhile."""

import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.harness import PATIENCE, Gateway

Script = Callable[["Caller"], None]


class Caller:
    """One connection of the gateway, as a receiver sees it."""

    def __init__(self, sock: socket.socket, closing: threading.Event) -> None:
        self._socket = sock
        self._closing = closing
        self._left = b""

    def head(self) -> bytes:
        """The next request's head; b"" when there is none any more."""
        while b"\r\n\r\n" not in self._left:
            data = self._socket.recv(65536)
            if not data:
                return b""
            self._left += data
        head, _, self._left = self._left.partition(b"\r\n\r\n")
        return head + b"\r\n\r\n"

    def request(self) -> tuple[bytes, bytes]:
        """The next request whole: head and body."""
        head = self.head()
        found = re.search(rb"content-length: (\d+)", head)
        length = int(found[1]) if found else 0
        while len(self._left) < length and (data := self._socket.recv(65536)):
            self._left += data
        body, self._left = self._left[:length], self._left[length:]
        return head, body

    def hear(self) -> None:
        """Until something comes, whatever it is."""
        self._left += self._socket.recv(65536)

    def say(self, data: bytes) -> None:
        self._socket.sendall(data)

    def say_forever(self, data: bytes) -> None:
        while not self._closing.is_set():
            self.say(data)

    def drip(self, data: bytes, then: bytes, pause: float = 0.02) -> None:
        """`data` and then `then` again and again, a byte at a time."""
        for byte in data:
            self.say(bytes([byte]))
        while not self._closing.wait(pause):
            self.say(then)

    def hang(self) -> None:
        """Until the gateway ends the connection."""
        while self._socket.recv(65536):
            pass

    def wait(self) -> None:
        """Without reading anything, until the test is over."""
        self._closing.wait(PATIENCE)

    def reset(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class RawReceiver:
    """Listens on loopback and runs a script for each connection, on its own thread."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._closing = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.connections = 0
        self.port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listening.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, suppress(OSError):
            sock.settimeout(PATIENCE)
            self._script(Caller(sock, self._closing))

    def close(self) -> None:
        self._closing.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@contextmanager
def raw_receiver(script: Script) -> Iterator[RawReceiver]:
    receiver = RawReceiver(script)
    try:
        yield receiver
    finally:
        receiver.close()


@contextmanager
def raw_client(address: str) -> Iterator[socket.socket]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE) as sock:
        yield sock


def rest(sock: socket.socket) -> bytes:
    """Everything until the gateway closes; fails if it does not."""
    said = b""
    with suppress(ConnectionResetError):
        while data := sock.recv(65536):
            said += data
    return said


def say(address: str, raw: bytes) -> bytes:
    """What the gateway says to these bytes until it closes the connection by itself."""
    with raw_client(address) as sock:
        with suppress(ConnectionError):
            sock.sendall(raw)
        return rest(sock)


def statuses(said: bytes) -> list[int]:
    """Of every answer in it; an answer's body need not end with a line."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", said)]


def accepted(gateway: Gateway) -> int:
    """Webhooks stored since the start."""
    return int(gateway.get("/status").json()["totals"]["accepted"])


def refusals(gateway: Gateway) -> Counter[str]:
    """What was refused since the start, by the slug of its problem."""
    return Counter(gateway.get("/status").json()["totals"]["refused"])


class Memory:
    """The memory of all the gateway's processes, in kB, against what it was when this began."""

    def __init__(self, gateway: Gateway) -> None:
        self._processes = [Path(f"/proc/{pid}") for pid in gateway.pids]
        for process in self._processes:
            # From here on the kernel's high-water mark is of what the test does.
            (process / "clear_refs").write_text("5")
        self.before = self._highest()

    @property
    def growth(self) -> int:
        """Of the highest it ever was since, between any two looks."""
        return self._highest() - self.before

    def _highest(self) -> int:
        marks = [re.search(r"VmHWM:\s+(\d+) kB", (process / "status").read_text()) for process in self._processes]
        return sum(int(found[1]) for found in marks if found is not None)


def anonymous(gateway: Gateway) -> int:
    """Memory in kB that is not backed by a file, of the process that has most."""
    found = [re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text()) for pid in gateway.pids]
    return max(int(match[1]) for match in found if match is not None)
