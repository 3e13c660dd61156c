"""An own load generator on raw sockets: closed (each connection posts as soon as it is answered) or open (paced).

Paced, each webhook has a moment at which it is meant to be sent, and its latency counts from there, whether or not a
connection was free: a gateway that stalls is charged for everything that would have come meanwhile. Connections take
turns, so with many of them and a low rate each is idle most of the time.

Prints at the end one line of JSON with every latency in microseconds. Started by `load.py`.
"""

import argparse
import json
import re
import secrets
import select
import socket
from collections import deque
from collections.abc import Sequence
from itertools import cycle
from time import perf_counter

from tests.bench.sink import loopback

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
SEND_BUFFER = 1 << 20
"""A whole request fits, so sending never blocks the other connections."""
KEY = b"0" * 32
"""In a request: where each one's own idempotency key goes."""
GRACE = 20.0
"""How long answers are waited for after the last webhook was due."""


class Client:
    """One kept-alive connection with at most one request under way."""

    def __init__(self, address: tuple[str, int], request: bytes) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.connect(address)
        self._request = request
        self._got = b""
        self.since = 0.0

    def send(self, since: float, request: bytes = b"") -> None:
        """The request that it was made with, or another one."""
        self.since = since
        request = request or self._request
        self.socket.sendall(request.replace(KEY, secrets.token_hex(16).encode(), 1) if KEY in request else request)

    def receive(self) -> int:
        """The status of the answer, or 0 while it is not whole."""
        data = self.socket.recv(65_536)
        if not data:
            raise ConnectionError("the gateway closed a connection")
        self._got += data
        head = self._got.find(b"\r\n\r\n")
        if head < 0:
            return 0
        length = LENGTH.search(self._got, 0, head + 2)
        if len(self._got) < head + 4 + (int(length[1]) if length else 0):
            return 0
        status = int(self._got[9:12])
        self._got = b""
        return status


class Generator:
    """The requests take turns."""

    def __init__(self, address: tuple[str, int], requests: Sequence[bytes], connections: int) -> None:
        self._requests = cycle(requests)
        self._poll = select.epoll()
        self._free: deque[Client] = deque()
        self._clients: dict[int, Client] = {}
        self.microseconds: list[int] = []
        self.refused = 0
        for _ in range(connections):
            client = Client(address, requests[0])
            self._clients[client.socket.fileno()] = client
            self._poll.register(client.socket, select.EPOLLIN)
            self._free.append(client)

    def greet(self) -> None:
        """One webhook on each connection, not counted: a connection that never spoke is soon closed."""
        total = len(self._free)
        while self._free:
            self._free.popleft().send(perf_counter(), next(self._requests))
        while len(self._free) < total:
            self._answers(1.0)
        self.microseconds.clear()

    def closed(self, seconds: float) -> float:
        began = perf_counter()
        while (now := perf_counter()) < began + seconds:
            while self._free:
                self._free.popleft().send(now, next(self._requests))
            self._answers(1.0)
        return perf_counter() - began

    def paced(self, rate: float, seconds: float) -> float:
        began = perf_counter()
        total, sent = int(rate * seconds), 0
        while len(self.microseconds) + self.refused < total and perf_counter() < began + seconds + GRACE:
            now = perf_counter()
            while sent < total and self._free and began + sent / rate <= now:
                self._free.popleft().send(began + sent / rate, next(self._requests))
                sent += 1
            next_due = began + sent / rate - now if sent < total and self._free else 1.0
            self._answers(max(0.0, next_due))
        self.refused = total - len(self.microseconds)
        return perf_counter() - began

    def close(self) -> None:
        for client in self._clients.values():
            client.socket.close()
        self._poll.close()

    def _answers(self, timeout: float) -> None:
        # epoll itself waits in whole milliseconds only, too coarse for pacing.
        if not select.select([self._poll.fileno()], [], [], timeout)[0]:
            return
        for descriptor, _ in self._poll.poll(0):
            client = self._clients[descriptor]
            status = client.receive()
            if not status:
                continue
            self._free.append(client)
            if 200 <= status < 300:
                self.microseconds.append(int((perf_counter() - client.since) * 1e6))
            else:
                self.refused += 1


def request(address: str, path: str, size: int, keys: bool = False) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {size}\r\n"
    key = b"idempotency-key: " + KEY + b"\r\n" if keys else b""
    return head.encode() + key + b"\r\n" + b"x" * size


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("address")
    options.add_argument("path")
    options.add_argument("--size", type=int, default=1024)
    options.add_argument("--connections", type=int, default=32)
    options.add_argument("--seconds", type=float, default=5.0)
    options.add_argument("--rate", type=float, default=0.0, help="webhooks a second; 0: as many as are answered")
    options.add_argument("--greet", action="store_true", help="post once on each connection first, and say so")
    options.add_argument("--keys", action="store_true", help="each webhook with an idempotency key of its own")
    options.add_argument("--spread", type=int, default=1, help="hosts of the sink that take turns")
    given = options.parse_args()
    host, _, port = given.address.rpartition(":")
    paths = [given.path.replace("127.0.0.1", loopback(number)) for number in range(given.spread)]
    posted = [
        request(given.address, path, given.size, given.keys) for path in (paths if given.spread > 1 else [given.path])
    ]
    generator = Generator((host, int(port)), posted, given.connections)
    if given.greet:
        generator.greet()
        print("greeted", flush=True)
    taken = generator.paced(given.rate, given.seconds) if given.rate else generator.closed(given.seconds)
    generator.close()
    print(json.dumps({"seconds": taken, "failed": generator.refused, "microseconds": generator.microseconds}))


if __name__ == "__main__":
    main()
