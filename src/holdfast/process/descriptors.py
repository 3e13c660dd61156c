"""File descriptors: how many this process may have, and who gets them.

A connection costs one, on either side. Where the system allows fewer than everything at once would take, ingest and the
idle connections to receivers get what the deliveries and the operators' listeners leave over: a flood of clients must
not keep an operator from looking.
"""

import resource
from typing import NamedTuple

from holdfast.config import Config
from holdfast.http.server import LOCAL_LIMITS, MAX_UNSERVED
from holdfast.http.transport import MAX_IDLE

OWN = 64
"""The store, the log, the event loop, the listeners, look-ups of names."""
OPERATORS = 3 * LOCAL_LIMITS.max_connections + 2 * MAX_UNSERVED
"""Connections of the status, control and probe listeners, and those that are being turned away."""
FEWEST = 16
"""Connections that ingest has in any case: with fewer than that it is of no use."""


class Room(NamedTuple):
    """How many connections ingest may have, and how many to receivers may be kept idle."""

    ingest: int
    idle: int


def room_for(config: Config) -> Room:
    return share_out(
        raise_limit(), config.ingest.max_connections, config.delivery.first_attempts + config.delivery.retries
    )


def raise_limit() -> int:
    """Take as many descriptors as the system lets this process have; the number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            # Some systems call the hard limit unlimited and set a lower one all the same.
            return soft
    return hard


def share_out(limit: int, max_connections: int, deliveries: int) -> Room:
    """`deliveries` are the attempts that may be in flight at once."""
    left = limit - OWN - OPERATORS - deliveries
    if limit == resource.RLIM_INFINITY or left >= max_connections + MAX_IDLE:
        return Room(max_connections, MAX_IDLE)
    idle = max(0, min(MAX_IDLE, (left - FEWEST) // 4))
    return Room(min(max_connections, max(FEWEST, left - idle)), idle)
