"""Everything that clients and receivers of a fleet observed, in one order, and the checks on it.

Each process of a replica identifies itself to the receivers by its user agent. One counter numbers all events, so
"before" and "after" need no clock.
"""

import itertools
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(eq=False)
class Request:
    """One request at a receiver. `at` is when it came, in seconds since 1970."""

    arrived: int
    at: float
    host: str
    id: str
    life: int
    connection: int
    status: int = 0
    ended: int = sys.maxsize

    @property
    def delivered(self) -> bool:
        return 200 <= self.status <= 299


class Acknowledged(NamedTuple):
    """`began` is when it was posted."""

    id: str
    host: str
    began: int


@dataclass
class Life:
    """One process of a replica. `killed` and `stops` are the moments at which somebody did that to it."""

    number: int
    killed: int | None = None
    stops: list[int] = field(default_factory=list)
    continued: list[int] = field(default_factory=list)


class Stint(NamedTuple):
    """The parts of its life that a request may belong to, from `first` to `last`.

    A part ends by a stop past the lease, by a kill, or in peace. What it owned does not outlast it. What comes just
    after a stop may belong to the part before it or after it.
    """

    life: int
    first: int
    last: int

    @property
    def is_certain(self) -> bool:
        return self.first == self.last


@dataclass
class Witness:
    acknowledged: list[Acknowledged] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    delivered: set[str] = field(default_factory=set)
    lives: dict[int, Life] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def number(self) -> int:
        return next(self._numbers)

    def answered(self, request: Request, status: int) -> None:
        request.status = status
        request.ended = self.number()
        if request.delivered:
            self.delivered.add(request.id)

    def new_life(self) -> Life:
        life = Life(len(self.lives))
        self.lives[life.number] = life
        return life

    def kills(self) -> int:
        return sum(life.killed is not None for life in self.lives.values())

    def stops(self) -> int:
        return sum(len(life.stops) for life in self.lives.values())

    def ids(self, *hosts: str) -> set[str]:
        return {each.id for each in self.acknowledged if not hosts or each.host in hosts}

    def missing(self, *hosts: str) -> set[str]:
        """Acknowledged and not delivered."""
        return self.ids(*hosts) - self.delivered

    # -- what came again -----------------------------------------------------------------------------------------------

    def stints(self) -> dict[Request, Stint]:
        """Which part of its life each request belongs to.

        An attempt that had begun when its replica was stopped may arrive after it went on. A message that was posted
        after the stop began can only have come to it in the part after it: from the first such request on, nothing of
        the part before may come.
        """
        posted = {each.id: each.began for each in self.acknowledged}
        parts: Counter[int] = Counter()
        found = {}
        for request in self.requests:
            life = self.lives[request.life]
            last = sum(request.arrived > continued for continued in life.continued)
            began = sum(posted.get(request.id, 0) > stop for stop in life.stops)
            first = parts[request.life] = max(parts[request.life], began)
            found[request] = Stint(request.life, first, last)
        return found

    def in_peace(self, stint: Stint) -> bool:
        """Whether a stint had every chance to record what it did."""
        life = self.lives[stint.life]
        return life.killed is None and stint.first == len(life.stops)

    def recorded(self, stints: dict[Request, Stint]) -> set[Request]:
        """Deliveries whose outcome was surely committed.

        A connection that carries another request was given back, and its outcome handed to the store before that. A
        replica's outcomes are committed in their order: if a later request of the same stint was the only one of its
        message, its outcome counted, and so did the earlier ones.
        """
        times = Counter(request.id for request in self.requests)
        last: dict[Stint, int] = {}
        for request, stint in stints.items():
            stops = self.lives[stint.life].stops
            is_before_stop = stint.first == len(stops) or request.arrived < stops[stint.first]
            if request.delivered and times[request.id] == 1 and is_before_stop:
                last[stint] = request.arrived
        connections: defaultdict[int, list[Request]] = defaultdict(list)
        for request in self.requests:
            connections[request.connection].append(request)
        pairs = itertools.chain.from_iterable(map(itertools.pairwise, connections.values()))
        return {
            request for request, after in pairs if request.delivered and after.arrived < last.get(stints[request], 0)
        }

    def repeats(self) -> int:
        """Deliveries of what had been delivered. Checks that each was in flight at a kill or a stop."""
        stints = self.stints()
        recorded = self.recorded(stints)
        sent = [[each for each in requests if each.delivered] for requests in self._by_message().values()]
        several = [requests for requests in sent if len(requests) > 1]
        for requests in several:
            made_in = [stints[request] for request in requests]
            assert _differ(made_in), f"twice in one part of a life: {list(zip(requests, made_in, strict=True))}"
            assert sum(map(self.in_peace, made_in)) <= 1, f"twice by replicas that nobody disturbed: {requests}"
            known = [request for request in requests[:-1] if request in recorded]
            assert not known, f"sent again although its delivery was recorded: {requests}"
        return sum(len(requests) - 1 for requests in several)

    # -- what was open at once -----------------------------------------------------------------------------------------

    def check_one_at_a_time(self) -> None:
        """No message had two attempts open at once, but for one whose replica was killed or stopped past its lease."""
        stints = self.stints()
        for requests in self._by_message().values():
            for earlier, later in itertools.pairwise(requests):
                if later.arrived < self._closed(earlier):
                    assert not (self.in_peace(stints[earlier]) and self.in_peace(stints[later])), (earlier, later)

    def most_open(self, host: str) -> int:
        """How many requests were open at a host at once. What a replica had begun when it was stopped past its lease,
        and sent when it went on, does not count: nobody can take it back.
        """
        counted = [request for request, stint in self.stints().items() if request.host == host and stint.is_certain]
        changes = sorted([(each.arrived, 1) for each in counted] + [(self._closed(each), -1) for each in counted])
        return max(itertools.accumulate(change for _, change in changes), default=0)

    def _closed(self, request: Request) -> int:
        """A killed replica's connections are closed with it."""
        killed = self.lives[request.life].killed
        return request.ended if killed is None else min(request.ended, max(killed, request.arrived))

    def _by_message(self) -> dict[str, list[Request]]:
        sent: defaultdict[str, list[Request]] = defaultdict(list)
        for request in self.requests:
            sent[request.id].append(request)
        return sent

    def in_flight_at_disturbances(self) -> int:
        """Deliveries whose outcome may not have been recorded when their replica was killed or stopped."""
        stints = self.stints()
        recorded = self.recorded(stints)
        return sum(
            request.delivered and request not in recorded and not self.in_peace(stint)
            for request, stint in stints.items()
        )


def _differ(stints: list[Stint]) -> bool:
    """Whether requests, given in their order, may all belong to different parts of lives."""
    latest: dict[int, int] = {}
    for life, first, last in stints:
        part = latest[life] = max(first, latest.get(life, -1) + 1)
        if part > last:
            return False
    return True
