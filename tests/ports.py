"""Ports of loopback where nobody answers."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


def refusing_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
