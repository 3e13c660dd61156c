"""Ports of loopback where nobody answers."""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

BELOW_THE_EPHEMERAL = range(12_000, 32_000)
"""Ports that the system gives to nobody by itself, neither to a listener that leaves it the choice nor to a client."""

_kept: list[socket.socket] = []
"""Bound to the ports that were given out, for as long as this process lives."""


def refusing_port() -> int:
    """Nobody listens on it but who is told of it: it is bound here, so that no other call, in no process, returns it.

    A bound port refuses connections. Who listens with SO_REUSEADDR, as servers do, can have it nevertheless.
    """
    while True:
        port = random.choice(BELOW_THE_EPHEMERAL)
        keeper = socket.socket()
        try:
            keeper.bind(("0.0.0.0", port))
        except OSError:
            keeper.close()
            continue
        # Set after the bind: until then it is a conflict that somebody else has this port.
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _kept.append(keeper)
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
