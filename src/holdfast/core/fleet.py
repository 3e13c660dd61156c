"""Replicas on one store: how long a claim lasts, and each one's share of what a host may be sent.

A replica holds its messages by a lease that it renews. Limits hold for the fleet, so each delivering replica has a part
of them; which ones get what can't be divided evenly goes by the host's name, so that not all of it falls to the same.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from zlib import crc32

from holdfast.core.lane import Host, Lane
from holdfast.core.message import Entry, Kind

LEASE = 6_000
"""Milliseconds after which a replica that was not heard of is taken for dead, and its messages are free."""
RENEW_EVERY = 1_000
CLOCKS_APART = 500
"""Milliseconds by which the clocks of two replicas may differ: both follow the database's."""
CLAIMED_AT_LEAST, CLAIMED_AT_MOST = 8, 64
"""Messages that one replica takes of a lane: what it has nobody else can send."""
HEARD_WITHIN = 2 * RENEW_EVERY
"""Milliseconds in which everyone hears of who came or went."""


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


@dataclass(frozen=True, slots=True)
class Watch:
    """The crew of now, after those that others may still go by. Until everyone has heard of the last one, this replica
    has the least that any of them gives it: so the parts of all never add up to more than the whole.
    """

    crews: tuple[Crew | None, ...] = (None, Crew())

    @property
    def crew(self) -> Crew:
        crew = self.crews[-1]
        assert crew is not None
        return crew

    def heard(self, crew: Crew) -> "Watch":
        return Watch((*self.crews, crew))

    def settled(self) -> "Watch":
        """Everyone has heard."""
        return Watch((self.crew,))

    def anew(self) -> "Watch":
        """As one who has just come, and had no part of anything."""
        return Watch((None, self.crew))

    def share(self, total: int, host: str) -> int:
        if self.crew.count == 1:
            return total
        return min(crew.share(total, host) if crew is not None else 0 for crew in self.crews)


def may_begin(lease_until: int, now: int) -> bool:
    """Whether an attempt may begin: once the lease is over, another replica may have its message."""
    return now < lease_until - CLOCKS_APART


def may_reap(connected_since: int, now: int) -> bool:
    """Whether leases of others that are over mean anything: not if the store was away while they could have renewed
    them.
    """
    return now - connected_since >= LEASE


@dataclass(slots=True, eq=False)
class SharedHost(Host):
    """A host that other replicas send to as well. `whole` is the fleet's limit as it was last heard of, `limit` this
    replica's part of it; `per_host` and `retries` are its parts of what the fleet may have at most.
    """

    whole: int = 0
    retries: int = 0

    def share(self, watch: Watch, per_host: int, interval: float) -> None:
        """Share out the fleet's numbers anew. Only as many replicas as `per_host` can have a part of the rate."""
        self.per_host = watch.share(per_host, self.name)
        self.retries = watch.share(max(1, per_host // 2), self.name)
        self.limit = watch.share(min(self.whole, per_host), self.name)
        self.interval = interval * min(watch.crew.count, per_host)

    def failed(self) -> None:
        """What the store will say of a failure in slow start, until it does."""
        if self.limit < self.per_host:
            self.limit = min(self.limit, 1)

    def has_room(self, kind: Kind) -> bool:
        """A probe that was claimed starts here, whatever part of the limit this replica has."""
        if self.in_flight >= self.limit:
            return kind is Kind.PROBE and not self.in_flight
        return kind is not Kind.RETRY or self.retries_in_flight < self.retries


class SharedLane(Lane):
    """A lane that other replicas send from as well. What is in memory is claimed, and nobody else can send it: so it is
    little enough to start soon, and nothing while this replica has no part of the host's limit.
    """

    __slots__ = ()

    def is_held(self, now: int) -> bool:
        """What is claimed stays: the agenda of a shared store does not know of holds."""
        return False

    @property
    def fresh_wanted(self) -> int:
        return _wanted(self.host.limit, len(self.fresh))

    @property
    def due_wanted(self) -> int:
        return _wanted(_retries(self), self.due_held)


def stranded(lane: Lane) -> list[deque[Entry]]:
    """The queues of a lane in memory from which nothing has a chance to start here."""
    if not lane.enabled or not lane.host.limit:
        return [lane.fresh, lane.due]
    return [] if _retries(lane) else [lane.due]


def at_hand(limit: int) -> int:
    """How many fresh messages a lane may have in memory that were just accepted."""
    return 2 * limit + CLAIMED_AT_LEAST if limit else 0


def has_more(lane: Lane, now: int) -> bool:
    """Whether a lane is read again by itself, since more is known to wait."""
    return lane.loading or lane.more_fresh or (lane.next_due is not None and lane.next_due <= now)


def _retries(lane: Lane) -> int:
    """How many retries may be in flight here."""
    host = lane.host
    assert isinstance(host, SharedHost)
    return min(host.limit, host.retries)


def _wanted(limit: int, held: int) -> int:
    """How many more to claim, if less than half of what may be held is."""
    most = min(max(CLAIMED_AT_LEAST, 2 * limit), CLAIMED_AT_MOST) if limit else 0
    return most - held if 2 * held < most else 0
