"""Replicas on one store: how long a claim lasts, and each one's share of what a host may be sent.

A replica holds its messages by a lease that it renews. Limits hold for the fleet, so each delivering replica has a part
of them; which ones get what can't be divided evenly goes by the host's name, so that not all of it falls to the same.
"""

from dataclasses import dataclass
from enum import StrEnum
from zlib import crc32

LEASE = 6_000
"""Milliseconds after which a replica that was not heard of is taken for dead, and its messages are free."""
RENEW_EVERY = 1_000


class Role(StrEnum):
    """What a replica does: all of it, or one side, so that the two can be scaled apart."""

    ALL = "all"
    INGEST = "ingest"
    DELIVER = "deliver"

    @property
    def ingests(self) -> bool:
        return self is not Role.DELIVER

    @property
    def delivers(self) -> bool:
        return self is not Role.INGEST


@dataclass(frozen=True, slots=True)
class Crew:
    """The delivering replicas that are alive: how many, and which of them this one is."""

    rank: int = 0
    count: int = 1

    def share(self, total: int, host: str) -> int:
        """This replica's part of a number that holds for the whole fleet; the parts of all add up to it."""
        if self.count == 1:
            return total
        turn = (self.rank + crc32(host.encode())) % self.count
        return total // self.count + (turn < total % self.count)


def may_begin(lease_until: int, now: int) -> bool:
    """Whether an attempt may begin: once the lease is over, another replica may have its message."""
    return now < lease_until


def may_reap(connected_since: int, now: int) -> bool:
    """Whether leases of others that are over mean anything: not if the store was away while they could have renewed
    them.
    """
    return now - connected_since >= LEASE
