"""Replicas on one store: which replica owns a host, and for how long.

Hosts are hashed to shards. Each shard has one owner among the replicas that deliver, chosen by rendezvous hashing: a
replica that comes or goes moves only its own part of the shards. An owner holds its shards by a lease, which is a
duration: the owner counts it from its last renewal, and the others from when they saw that renewal.
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from zlib import crc32

SHARDS = 256
LEASE = 6_000
"""Milliseconds without a renewal after which a replica is dead, and its shards go to others."""
RENEW_EVERY = 1_000
LAST_BEGIN = 500
"""Milliseconds before the end of its lease from which a replica starts no attempt."""


class Role(StrEnum):
    """The part that a replica plays. Ingest and delivery can be scaled separately."""

    ALL = "all"
    INGEST = "ingest"
    DELIVER = "deliver"

    @property
    def ingests(self) -> bool:
        return self is not Role.DELIVER

    @property
    def delivers(self) -> bool:
        return self is not Role.INGEST


def shard_of(host: str) -> int:
    """The shard of a host:port. All circuits of a host are in one shard, since they share its limits."""
    return crc32(host.encode()) % SHARDS


@lru_cache(maxsize=1)
def owners_of_shards(replicas: frozenset[int]) -> Mapping[int, int]:
    """The replica that owns each shard while these replicas are alive."""
    return {shard: max(replicas, key=lambda replica: _score(shard, replica)) for shard in range(SHARDS) if replicas}


def _score(shard: int, replica: int) -> bytes:
    return blake2b(shard.to_bytes(2, "big") + replica.to_bytes(8, "big"), digest_size=8).digest()


class Liveness:
    """Finds dead replicas: those whose count of renewals has not changed for a lease, while this replica watched.

    It compares durations, not clocks. An answer of the database that comes late makes others live longer, never
    shorter.
    """

    def __init__(self, lease: int = LEASE) -> None:
        self._lease = lease
        self._seen: dict[int, tuple[int, int]] = {}
        self._looked_at = 0

    def dead(self, renewals: Mapping[int, int], now: int) -> dict[int, int]:
        """The dead ones of all replicas, which are given with their counts of renewals. `now` is monotonic."""
        if now - self._looked_at > self._lease // 2:
            self.forget()  # This process was paused, and the others may have been too.
        self._looked_at = now
        before, self._seen = self._seen, {}
        for number, count in renewals.items():
            seen = before.get(number)
            self._seen[number] = seen if seen is not None and seen[0] == count else (count, now)
        return {number: count for number, (count, since) in self._seen.items() if now - since >= self._lease}

    @property
    def has_silent_replica(self) -> bool:
        """Whether a replica has not renewed for half of its lease."""
        return any(self._looked_at - since >= self._lease // 2 for _, since in self._seen.values())

    def forget(self) -> None:
        """The store was unreachable: no replica could renew."""
        self._seen.clear()
