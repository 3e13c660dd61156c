"""Which message starts next: hosts take turns under two budgets. Everything that orders attempts lives in this file.

First attempts and retries have budgets of their own, so that a mass of retries never delays a fresh message. How a
budget is shared among hosts that answer and hosts that may hang is in budget.py. On one host fresh messages and due
retries alternate while both wait. Probes ride in the retries' budget: they go to hosts that get nothing else.

A host whose address has too many unanswered attempts waits for one of them to end (`wait_for_address`). Names are
cheap: a million of them may lead to one address that hangs.

`pick` is synchronous and returns what to start; the caller carries it out and reports the end.
"""

from collections import deque
from enum import IntEnum
from heapq import heappop, heappush
from itertools import takewhile
from typing import NamedTuple

from holdfast.core.budget import Budget, HostClass, class_of
from holdfast.core.circuit import CircuitRules, CircuitState
from holdfast.core.lane import Host, Lane, position
from holdfast.core.message import AttemptKind, Entry

_KINDS = (AttemptKind.PROBE, AttemptKind.FIRST, AttemptKind.RETRY)
_FIRST, _RETRY, _PROBE = AttemptKind.FIRST, AttemptKind.RETRY, AttemptKind.PROBE
_ENABLED, _DISABLED, _FROZEN = CircuitState.ENABLED, CircuitState.DISABLED, CircuitState.FROZEN
# Names of their own: reaching a member through its enum costs a call.
_OTHER = {AttemptKind.FIRST: AttemptKind.RETRY, AttemptKind.RETRY: AttemptKind.FIRST}
ADDRESS_WAIT = 60_000
"""Milliseconds after which a host that waits for its address tries again in any case."""
WAITING_PER_ADDRESS = 64
"""Hosts in memory that wait for one address."""


def attempts_per_address(first_attempts: int, per_host: int) -> int:
    """How many attempts on new connections one address may have in flight, however many names lead to it."""
    return max(per_host, first_attempts // 8)


class Start(NamedTuple):
    """One attempt to begin now. `generation` is the circuit's, `host_class` the class that the budget counts it for."""

    lane: Lane
    entry: Entry
    kind: AttemptKind
    generation: int
    host_class: int = 0


class HostGroup(IntEnum):
    """Hosts by what a further attempt to them may take of a budget."""

    IDLE = 0  # answers, nothing in flight
    BUSY = 1  # answers, something in flight
    UNTRIED = 2  # not tried yet
    SILENT = 3  # its last attempt got no answer
    UNHEARD = 4  # not tried yet or silent, and something in flight


_IDLE, _BUSY, _UNTRIED, _SILENT, _UNHEARD = map(int, HostGroup)
_SIDES = len(HostGroup)
_ANSWERING, _CLASS_UNTRIED, _CLASS_SILENT = map(int, HostClass)


class AttemptBudget(Budget):
    """Attempts in flight at once. A host that may hang gets a second attempt only in the first eighth."""

    __slots__ = ()

    def admits_group(self, side: int) -> bool:
        if side == _UNHEARD:
            return self.used < self.size // 8
        if side <= _BUSY:
            return self.admits(_ANSWERING, idle=side == _IDLE)
        return self.admits(side - 1, idle=True)


class RoundRobin:
    """Hosts with something to start of one kind, in turn; apart by side, so that whom the budget admits is found at
    once. Plain numbers inside: going through an enum's members cost a fifth of an attempt.
    """

    __slots__ = ("_seats", "_sides", "_turn")

    def __init__(self) -> None:
        self._sides: tuple[dict[Host, None], ...] = tuple({} for _ in HostGroup)
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

    def next(self, places: AttemptBudget) -> Host | None:
        """The host whose turn it is. The sides alternate: a stream of new hosts can't starve the busy ones."""
        if not self._seats:
            return None
        for offset in range(_SIDES):
            side = (self._turn + offset) % _SIDES
            hosts = self._sides[side]
            if hosts and places.admits_group(side):
                self._turn = side + 1
                return next(iter(hosts))
        return None

    def rotate(self, host: Host) -> None:
        side = self._seats.get(host)
        if side is not None:
            hosts = self._sides[side]
            del hosts[host]
            hosts[host] = None


def group_of(host: Host) -> int:
    if host.answers:
        return _BUSY if host.in_flight else _IDLE
    if host.in_flight:
        return _UNHEARD
    return _UNTRIED if host.answers is None else _SILENT


class StartOrder:
    """The lanes in memory, and whose turn it is."""

    def __init__(self, rules: CircuitRules, *, first_attempts: int, retries: int) -> None:
        self._rules = rules
        first, retry = AttemptBudget(first_attempts), AttemptBudget(retries)
        self.budgets = {AttemptKind.FIRST: first, AttemptKind.RETRY: retry, AttemptKind.PROBE: retry}
        self._rings = {kind: RoundRobin() for kind in _KINDS}
        self._seating = tuple(self._rings.items())
        self._parked: list[tuple[float, int, Host]] = []
        self._parkings = 0
        self._waiting_for: dict[str, deque[Host]] = {}

    def configure(self, rules: CircuitRules, *, first_attempts: int, retries: int) -> None:
        self._rules = rules
        self.budgets[AttemptKind.FIRST].resize(first_attempts)
        self.budgets[AttemptKind.RETRY].resize(retries)

    @property
    def in_flight(self) -> int:
        return self.budgets[AttemptKind.FIRST].used + self.budgets[AttemptKind.RETRY].used

    def touch(self, lane: Lane, now: int) -> None:
        """A lane's queue or circuit changed: put it among those that may start, or take it away."""
        state = lane.circuit.state if lane.hydrated else _FROZEN
        ready, enabled = lane.host.ready, state is _ENABLED
        has_fresh = enabled and bool(lane.fresh)
        _list(ready[_FIRST], lane, has_fresh)
        if lane.key != lane.host.name:
            lane.host.note_order(lane, is_ready=has_fresh)
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
        self.budgets[start.kind].give_back(start.host_class)
        start.lane.host.ended(start.kind)
        if start.kind is AttemptKind.PROBE:
            start.lane.probing = False
        self.touch(start.lane, now)

    def put_back(self, start: Start, now: int) -> None:
        """An attempt was not made after all: its message is next in its lane again."""
        lane, kind = start.lane, start.kind
        if kind is AttemptKind.PROBE:
            lane.probe = start.entry
        else:
            queue = lane.fresh if kind is AttemptKind.FIRST else lane.due
            older = sum(1 for _ in takewhile(lambda entry: position(entry) < position(start.entry), queue))
            queue.insert(older, start.entry)
        self.ended(start, now)

    def wait_for_address(self, host: Host, address: str, now: int) -> bool:
        """Start nothing to a host until an attempt to this address has ended. False if too many wait for that here:
        the host should leave memory for a while.
        """
        waiting = self._waiting_for.setdefault(address, deque())
        if len(waiting) >= WAITING_PER_ADDRESS:
            host.postponed_until = now + ADDRESS_WAIT
            self._seat(host, now)
            return False
        waiting.append(host)
        host.address_wait_until = now + ADDRESS_WAIT
        self._seat(host, now)
        return True

    def address_ended(self, address: str | None, now: int) -> None:
        """An attempt to an address has ended: the host that waits for it the longest is next."""
        if address is None or address not in self._waiting_for:
            return
        waiting = self._waiting_for[address]
        while waiting:
            host = waiting.popleft()
            if host.address_wait_until > now:
                host.address_wait_until = 0
                self._seat(host, now)
                break
        if not waiting:
            del self._waiting_for[address]

    def wake_at(self) -> float | None:
        """When the first host that only waits for its rate or a Retry-After may start again."""
        return self._parked[0][0] if self._parked else None

    def is_pacing(self, now: int) -> bool:
        """Whether something could start if its host's rate let it: that is due, as what a Retry-After holds is not."""
        return any(host.hold_until <= now < moment for moment, _, host in self._parked)

    def _kind_in_turn(self, host: Host, kind: AttemptKind) -> AttemptKind:
        other = _OTHER.get(kind)
        if other is None or host.last_kind is not kind or not host.ready[other]:
            return kind
        allowed = _may_start(host, other) and self.budgets[other].admits_group(group_of(host))
        return other if allowed else kind

    def _start(self, host: Host, kind: AttemptKind, now: int) -> Start:
        lane = host.next_lane(kind)
        entry = self._take(lane, kind)
        host_class = class_of(host.answers)
        self.budgets[kind].take(host_class)
        host.started(kind, now)
        generation = lane.circuit.begin(self._rules, now, probe=kind is AttemptKind.PROBE)
        lane.dirty = True
        self.touch(lane, now)
        self._rings[kind].rotate(host)
        return Start(lane, entry, kind, generation, host_class)

    def _take(self, lane: Lane, kind: AttemptKind) -> Entry:
        if kind is AttemptKind.PROBE:
            entry = lane.probe
            assert entry is not None
            lane.probe = None
            lane.probing = True
            lane.circuit.probed = position(entry)
            return entry
        return (lane.fresh if kind is AttemptKind.FIRST else lane.due).popleft()

    def _seat(self, host: Host, now: int) -> None:
        quiet_until, ready = host.quiet_until(), host.ready
        side = group_of(host) if quiet_until <= now else None
        wanting = False
        for kind, ring in self._seating:
            wants = bool(ready[kind]) and _may_start(host, kind)
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


def _may_start(host: Host, kind: AttemptKind) -> bool:
    """Whether a host has a place for what it has ready of a kind, and nothing has to start before that."""
    return host.has_room(kind) and not (kind is _FIRST and host.reads and host.awaits_older)


def _list(lanes: dict[Lane, None], lane: Lane, wanted: bool) -> None:
    if wanted:
        lanes.setdefault(lane)
    elif lane in lanes:
        del lanes[lane]
