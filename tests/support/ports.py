"""Ports of loopback without a server."""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

NOT_EPHEMERAL = range(12_000, 32_000)
"""Ports that the kernel never assigns by itself."""

_kept: list[socket.socket] = []
"""Sockets that keep the returned ports bound for the life of this process."""


def refusing_port() -> int:
    """Returns a port that refuses connections. It stays bound here, so that no other process gets it.

    A server that listens with SO_REUSEADDR can still use it.
    """
    while True:
        port = random.choice(NOT_EPHEMERAL)
        keeper = socket.socket()
        try:
            keeper.bind(("0.0.0.0", port))
        except OSError:
            keeper.close()
            continue
        # Set after the bind, so that the bind fails if another process has the port.
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _kept.append(keeper)
        return port


@contextmanager
def dead_port() -> Iterator[int]:
    """A port that neither accepts nor refuses connections: its backlog is full."""
    with socket.socket() as listening, socket.socket() as first, socket.socket() as second:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(listening.getsockname())
        yield int(listening.getsockname()[1])
