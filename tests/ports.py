"""Ports of loopback where nobody answers."""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

BELOW_THE_EPHEMERAL = range(12_000, 32_000)
"""Ports that the system gives to nobody by itself, neither to a listener that leaves it the choice nor to a client."""


def refusing_port() -> int:
    """Nobody listens on it, and it stays free for whoever wants to."""
    while True:
        port = random.choice(BELOW_THE_EPHEMERAL)
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
        return port


@contextmanager
def dead_port() -> Iterator[int]:
    """Accepts no connection and refuses none: its backlog is full."""
    with socket.socket() as listening, socket.socket() as first, socket.socket() as second:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(listening.getsockname())
        yield int(listening.getsockname()[1])
