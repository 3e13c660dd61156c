"""How many file descriptors this process may have, and how listeners and connections share them.

Each connection needs one. If the system allows too few, deliveries and the operators' listeners get theirs first.
Ingest and idle connections to receivers share the rest: a flood of clients never locks an operator out.
"""

import resource
from typing import NamedTuple

from holdfast.config import Config
from holdfast.http.server import LOCAL_LIMITS, MAX_UNSERVED
from holdfast.http.transport import MAX_IDLE

OWN = 64
"""For the store, the log, the event loop, the listeners and name look-ups."""
OPERATORS = 3 * LOCAL_LIMITS.max_connections + 2 * MAX_UNSERVED
"""Connections of the status, control and probe listeners, and connections that are being refused."""
FEWEST = 16
"""Connections that ingest always gets. It is useless with fewer."""


class DescriptorShares(NamedTuple):
    """How many connections ingest may have, and how many to receivers may be kept idle."""

    ingest: int
    idle: int


def room_for(config: Config) -> DescriptorShares:
    return share_out(
        raise_limit(), config.ingest.max_connections, config.delivery.first_attempts + config.delivery.retries
    )


def raise_limit() -> int:
    """Raise the limit as far as the system allows. Returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            # Some systems report an unlimited hard limit and refuse to set it.
            return soft
    return hard


def share_out(limit: int, max_connections: int, deliveries: int) -> DescriptorShares:
    """`deliveries` is how many attempts may be in flight at once."""
    left = limit - OWN - OPERATORS - deliveries
    if limit == resource.RLIM_INFINITY or left >= max_connections + MAX_IDLE:
        return DescriptorShares(max_connections, MAX_IDLE)
    idle = max(0, min(MAX_IDLE, (left - FEWEST) // 4))
    return DescriptorShares(min(max_connections, max(FEWEST, left - idle)), idle)
