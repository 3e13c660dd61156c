"""Which message starts next: hosts take turns under two budgets. Everything that orders attempts lives in this file.

First attempts and retries have budgets of their own, so that a mass of retries never delays a fresh message. The last
quarter of each budget is only for hosts with nothing in flight, so that hanging hosts can't stop the others. On one
host fresh messages and due retries alternate while both wait. Probes ride in the retries' budget: they go to hosts
that get nothing else.

`pick` is synchronous and returns what to start; whoever calls it carries it out and tells of the end.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from holdfast.core.circuit import CircuitRules, CircuitState
from holdfast.core.lane import Host, Lane
from holdfast.core.message import Entry, Kind

_KINDS = (Kind.PROBE, Kind.FIRST, Kind.RETRY)
_OTHER = {Kind.FIRST: Kind.RETRY, Kind.RETRY: Kind.FIRST}


class Start(NamedTuple):
    """One attempt to begin now; `spell` is what its outcome has to name to the circuit."""

    lane: Lane
    entry: Entry
    kind: Kind
    spell: int


@dataclass(slots=True)
class Budget:
    """Attempts in flight at once, with the last quarter kept for idle hosts."""

    size: int
    used: int = 0

    def admits(self, *, idle_host: bool) -> bool:
        return self.used < (self.size if idle_host else self.size - self.size // 4)


class Ring:
    """Hosts with something to start of one kind, in turn; idle and busy ones apart, so that the reserve is found at
    once.
    """

    __slots__ = ("busy", "idle", "idle_turn")

    def __init__(self) -> None:
        self.idle: dict[Host, None] = {}
        self.busy: dict[Host, None] = {}
        self.idle_turn = True

    def set(self, host: Host, present: bool) -> None:
        side, other = (self.busy, self.idle) if host.in_flight else (self.idle, self.busy)
        other.pop(host, None)
        if present:
            side.setdefault(host)
        else:
            side.pop(host, None)

    def next(self, budget: Budget) -> Host | None:
        """The host whose turn it is. Idle and busy ones alternate: new hosts can't starve the busy ones."""
        if not self.busy or not budget.admits(idle_host=False):
            return next(iter(self.idle), None) if budget.admits(idle_host=True) else None
        self.idle_turn = not self.idle_turn
        return next(iter(self.idle if self.idle and self.idle_turn else self.busy))

    def rotate(self, host: Host) -> None:
        for side in (self.idle, self.busy):
            if host in side:
                del side[host]
                side[host] = None


class Board:
    """The lanes in memory, and whose turn it is."""

    def __init__(self, rules: CircuitRules, *, first_attempts: int, retries: int) -> None:
        self._rules = rules
        first, retry = Budget(first_attempts), Budget(retries)
        self.budgets = {Kind.FIRST: first, Kind.RETRY: retry, Kind.PROBE: retry}
        self._rings = {kind: Ring() for kind in _KINDS}
        self._parked: list[tuple[float, int, Host]] = []
        self._parkings = 0

    @property
    def in_flight(self) -> int:
        return self.budgets[Kind.FIRST].used + self.budgets[Kind.RETRY].used

    def touch(self, lane: Lane, now: int) -> None:
        """A lane's queue or circuit changed: put it among those that may start, or take it away."""
        state = lane.circuit.state if lane.hydrated else CircuitState.FROZEN
        ready = lane.host.ready
        for kind, wanted in (
            (Kind.FIRST, state is CircuitState.ENABLED and lane.fresh),
            (Kind.RETRY, state is CircuitState.ENABLED and lane.due),
            (Kind.PROBE, state is CircuitState.DISABLED and lane.probe),
        ):
            if wanted:
                ready[kind].setdefault(lane)
            else:
                ready[kind].pop(lane, None)
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

    def _kind_in_turn(self, host: Host, kind: Kind) -> Kind:
        other = _OTHER.get(kind)
        if other is None or host.last_kind is not kind or not host.ready[other]:
            return kind
        allowed = host.has_room(other) and self.budgets[other].admits(idle_host=not host.in_flight)
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
        quiet_until = host.quiet_until()
        wanting = False
        for kind, ring in self._rings.items():
            wants = bool(host.ready[kind]) and host.has_room(kind)
            wanting = wanting or wants
            ring.set(host, wants and quiet_until <= now)
        if wanting and quiet_until > now and host.parked_until != quiet_until:
            host.parked_until = quiet_until
            self._parkings += 1
            heappush(self._parked, (quiet_until, self._parkings, host))

    def _unpark(self, now: int) -> None:
        while self._parked and self._parked[0][0] <= now:
            _, _, host = heappop(self._parked)
            host.parked_until = 0.0
            self._seat(host, now)


def position(entry: Entry) -> bytes:
    """A message's place in the order of age within its lane: what probes rotate by."""
    return entry.place.born.to_bytes(8, "big") + entry.message.id
