"""Which message starts next: hosts take turns under two budgets. Everything that orders attempts lives in this file.

First attempts and retries have budgets of their own, so that a mass of retries never delays a fresh message. The last
quarter of each budget is only for hosts with nothing in flight, so that hanging hosts can't stop the others. On one
host fresh messages and due retries alternate while both wait. Probes ride in the retries' budget: they go to hosts
that get nothing else.

`pick` is synchronous and returns what to start; whoever calls it carries it out and tells of the end.
"""

from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple

from holdfast.core.circuit import CircuitRules, CircuitState
from holdfast.core.lane import Host, Lane
from holdfast.core.message import Entry, Kind

_KINDS = (Kind.PROBE, Kind.FIRST, Kind.RETRY)
_FIRST, _RETRY, _PROBE = Kind.FIRST, Kind.RETRY, Kind.PROBE
_ENABLED, _DISABLED, _FROZEN = CircuitState.ENABLED, CircuitState.DISABLED, CircuitState.FROZEN
# Names of their own: reaching a member through its enum costs a call.
_OTHER = {Kind.FIRST: Kind.RETRY, Kind.RETRY: Kind.FIRST}


class Start(NamedTuple):
    """One attempt to begin now; `spell` is what its outcome has to name to the circuit."""

    lane: Lane
    entry: Entry
    kind: Kind
    spell: int


class Side(IntEnum):
    """Hosts by what a further attempt to them would cost the others."""

    IDLE = 0  # nothing in flight
    BUSY = 1  # something in flight, and it answers
    UNHEARD = 2  # something in flight, and no answer yet


_IDLE, _BUSY, _UNHEARD = map(int, Side)


class Budget:
    """Attempts in flight at once.

    The last quarter is only for idle hosts, and one that may hang gets a second attempt only in the first eighth: 200
    hosts that never answer, however much waits for them, leave room for all others.
    """

    __slots__ = ("_limits", "used")

    def __init__(self, size: int) -> None:
        self.used = 0
        self.resize(size)

    def resize(self, size: int) -> None:
        """What is in flight above a smaller size ends by itself."""
        self._limits = (size, size - size // 4, size // 8)

    def admits(self, side: int) -> bool:
        return self.used < self._limits[side]


class Ring:
    """Hosts with something to start of one kind, in turn; apart by side, so that whom the budget admits is found at
    once. Plain numbers inside: going through an enum's members cost a fifth of an attempt.
    """

    __slots__ = ("_seats", "_sides", "_turn")

    def __init__(self) -> None:
        self._sides: tuple[dict[Host, None], ...] = ({}, {}, {})
        self._seats: dict[Host, int] = {}
        self._turn = 0

    def set(self, host: Host, mine: int | None) -> None:
        """Put a host on this side, or take it away."""
        before = self._seats.get(host)
        if mine == before:
            return
        if before is not None:
            del self._sides[before][host]
        if mine is None:
            del self._seats[host]
        else:
            self._sides[mine][host] = None
            self._seats[host] = mine

    def next(self, budget: Budget) -> Host | None:
        """The host whose turn it is. The sides alternate: a stream of new hosts can't starve the busy ones."""
        if not self._seats:
            return None
        for offset in range(3):
            side = (self._turn + offset) % 3
            hosts = self._sides[side]
            if hosts and budget.admits(side):
                self._turn = side + 1
                return next(iter(hosts))
        return None

    def rotate(self, host: Host) -> None:
        side = self._seats.get(host)
        if side is not None:
            hosts = self._sides[side]
            del hosts[host]
            hosts[host] = None


def side_of(host: Host) -> int:
    if not host.in_flight:
        return _IDLE
    return _BUSY if host.answers else _UNHEARD


class Board:
    """The lanes in memory, and whose turn it is."""

    def __init__(self, rules: CircuitRules, *, first_attempts: int, retries: int) -> None:
        self._rules = rules
        first, retry = Budget(first_attempts), Budget(retries)
        self.budgets = {Kind.FIRST: first, Kind.RETRY: retry, Kind.PROBE: retry}
        self._rings = {kind: Ring() for kind in _KINDS}
        self._seating = tuple(self._rings.items())
        self._parked: list[tuple[float, int, Host]] = []
        self._parkings = 0

    def configure(self, rules: CircuitRules, *, first_attempts: int, retries: int) -> None:
        self._rules = rules
        self.budgets[Kind.FIRST].resize(first_attempts)
        self.budgets[Kind.RETRY].resize(retries)

    @property
    def in_flight(self) -> int:
        return self.budgets[Kind.FIRST].used + self.budgets[Kind.RETRY].used

    def touch(self, lane: Lane, now: int) -> None:
        """A lane's queue or circuit changed: put it among those that may start, or take it away."""
        state = lane.circuit.state if lane.hydrated else _FROZEN
        ready, enabled = lane.host.ready, state is _ENABLED
        _list(ready[_FIRST], lane, enabled and bool(lane.fresh))
        _list(ready[_RETRY], lane, enabled and bool(lane.due))
        _list(ready[_PROBE], lane, state is _DISABLED and lane.probe is not None)
        self._seat(lane.host, now)

    def pick(self, now: int) -> Start | None:
        """The next attempt to begin, or None when nothing may start now."""
        self._unpark(now)
        for kind in _KINDS:
            host = self._rings[kind].next(self.budgets[kind])
            if host is not None:
                return self._start(host, self._kind_in_turn(host, kind), now)
        return None

    def ended(self, start: Start, now: int) -> None:
        """An attempt is over, whatever became of it."""
        self.budgets[start.kind].used -= 1
        start.lane.host.ended(start.kind)
        if start.kind is Kind.PROBE:
            start.lane.probing = False
        self.touch(start.lane, now)

    def wake_at(self) -> float | None:
        """When the first host that only waits for its rate or a Retry-After may start again."""
        return self._parked[0][0] if self._parked else None

    def is_pacing(self, now: int) -> bool:
        """Whether something could start if its host's rate let it: that is due, as what a Retry-After holds is not."""
        return any(host.hold_until <= now < moment for moment, _, host in self._parked)

    def _kind_in_turn(self, host: Host, kind: Kind) -> Kind:
        other = _OTHER.get(kind)
        if other is None or host.last_kind is not kind or not host.ready[other]:
            return kind
        allowed = host.has_room(other) and self.budgets[other].admits(side_of(host))
        return other if allowed else kind

    def _start(self, host: Host, kind: Kind, now: int) -> Start:
        lane = next(iter(host.ready[kind]))
        del host.ready[kind][lane]
        host.ready[kind][lane] = None
        entry = self._take(lane, kind)
        self.budgets[kind].used += 1
        host.started(kind, now)
        spell = lane.circuit.begin(self._rules, now, probe=kind is Kind.PROBE)
        lane.dirty = True
        self.touch(lane, now)
        self._rings[kind].rotate(host)
        return Start(lane, entry, kind, spell)

    def _take(self, lane: Lane, kind: Kind) -> Entry:
        if kind is Kind.PROBE:
            entry = lane.probe
            assert entry is not None
            lane.probe = None
            lane.probing = True
            lane.circuit.probed = position(entry)
            return entry
        return (lane.fresh if kind is Kind.FIRST else lane.due).popleft()

    def _seat(self, host: Host, now: int) -> None:
        quiet_until, ready = host.quiet_until(), host.ready
        side = side_of(host) if quiet_until <= now else None
        wanting = False
        for kind, ring in self._seating:
            wants = bool(ready[kind]) and host.has_room(kind)
            wanting = wanting or wants
            ring.set(host, side if wants else None)
        if wanting and quiet_until > now and host.parked_until != quiet_until:
            host.parked_until = quiet_until
            self._parkings += 1
            heappush(self._parked, (quiet_until, self._parkings, host))

    def _unpark(self, now: int) -> None:
        while self._parked and self._parked[0][0] <= now:
            _, _, host = heappop(self._parked)
            host.parked_until = 0.0
            self._seat(host, now)


def _list(lanes: dict[Lane, None], lane: Lane, wanted: bool) -> None:
    if wanted:
        lanes.setdefault(lane)
    elif lane in lanes:
        del lanes[lane]


def position(entry: Entry) -> bytes:
    """A message's place in the order of age within its lane: what probes rotate by."""
    return entry.place.born.to_bytes(8, "big") + entry.message.id
