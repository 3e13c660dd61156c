"""Which message starts next: hosts take turns under two budgets.

First attempts and retries have separate budgets, so that many retries never delay a fresh message. budget.py shares
each budget among hosts that answer and hosts that may hang. On one host fresh messages and due retries alternate.
Probes use the budget of retries: they go to hosts that get nothing else.

A host whose address has too many unanswered attempts waits for one of them to end (`wait_for_address`): a million names
may lead to one address that hangs.

`pick` is synchronous and returns the attempt to start. The caller makes it, and reports its end.
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

# Module constants: reaching a member through its enum costs a call.
_KINDS = (AttemptKind.PROBE, AttemptKind.FIRST, AttemptKind.RETRY)
_FIRST, _RETRY, _PROBE = AttemptKind.FIRST, AttemptKind.RETRY, AttemptKind.PROBE
_ENABLED, _DISABLED, _FROZEN = CircuitState.ENABLED, CircuitState.DISABLED, CircuitState.FROZEN
_OTHER = {AttemptKind.FIRST: AttemptKind.RETRY, AttemptKind.RETRY: AttemptKind.FIRST}
ADDRESS_WAIT = 60_000
"""Milliseconds after which a host that waits for its address may start again in any case."""
WAITING_PER_ADDRESS = 64
"""Hosts in memory that wait for one address, at most."""


def attempts_per_address(first_attempts: int, per_host: int) -> int:
    """Attempts on new connections that one address may have in flight, however many names lead to it."""
    return max(per_host, first_attempts // 8)


class Start(NamedTuple):
    """One attempt to begin now. `generation` is the circuit's, `host_class` the class that the budget counts it for."""

    lane: Lane
    entry: Entry
    kind: AttemptKind
    generation: int
    host_class: int = 0


class HostGroup(IntEnum):
    """Hosts by the part of a budget that one more attempt to them may use."""

    IDLE = 0  # answers, nothing in flight
    BUSY = 1  # answers, something in flight
    UNTRIED = 2  # not tried yet
    SILENT = 3  # its last attempt got no answer
    UNHEARD = 4  # not tried yet or silent, and something in flight


_IDLE, _BUSY, _UNTRIED, _SILENT, _UNHEARD = map(int, HostGroup)
_GROUPS = len(HostGroup)
_ANSWERING, _CLASS_UNTRIED, _CLASS_SILENT = map(int, HostClass)


class AttemptBudget(Budget):
    """Attempts in flight at once. A host that may hang gets a second attempt only in the first eighth."""

    __slots__ = ()

    def admits_group(self, group: int) -> bool:
        if group == _UNHEARD:
            return self.used < self.size // 8
        if group <= _BUSY:
            return self.admits(_ANSWERING, idle=group == _IDLE)
        return self.admits(group - 1, idle=True)


class RoundRobin:
    """The hosts that have an attempt of one kind ready, in turn. They are kept by group, so that a host that the budget
    admits is found at once. Plain ints inside: enum members cost a fifth of an attempt.
    """

    __slots__ = ("_group_of", "_hosts", "_turn")

    def __init__(self) -> None:
        self._hosts: tuple[dict[Host, None], ...] = tuple({} for _ in HostGroup)
        self._group_of: dict[Host, int] = {}
        self._turn = 0

    def set(self, host: Host, group: int | None) -> None:
        """Put a host into a group; None removes it."""
        before = self._group_of.get(host)
        if group == before:
            return
        if before is not None:
            del self._hosts[before][host]
        if group is None:
            del self._group_of[host]
        else:
            self._hosts[group][host] = None
            self._group_of[host] = group

    def next(self, places: AttemptBudget) -> Host | None:
        """The host whose turn it is. The groups alternate: a stream of new hosts can't starve the busy ones."""
        if not self._group_of:
            return None
        for offset in range(_GROUPS):
            group = (self._turn + offset) % _GROUPS
            hosts = self._hosts[group]
            if hosts and places.admits_group(group):
                self._turn = group + 1
                return next(iter(hosts))
        return None

    def rotate(self, host: Host) -> None:
        group = self._group_of.get(host)
        if group is not None:
            hosts = self._hosts[group]
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
        self._rings_by_kind = tuple(self._rings.items())
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
        """Call after a lane's queue or circuit changed: lists what it has ready."""
        state = lane.circuit.state if lane.hydrated else _FROZEN
        ready, enabled = lane.host.ready, state is _ENABLED
        has_fresh = enabled and bool(lane.fresh)
        _set_ready(ready[_FIRST], lane, has_fresh)
        if lane.key != lane.host.name:
            lane.host.note_order(lane, is_ready=has_fresh)
        _set_ready(ready[_RETRY], lane, enabled and bool(lane.due))
        _set_ready(ready[_PROBE], lane, state is _DISABLED and lane.probe is not None)
        self._list_host(lane.host, now)

    def pick(self, now: int) -> Start | None:
        """The next attempt to begin, or None when nothing may start now."""
        self._unpark(now)
        for kind in _KINDS:
            host = self._rings[kind].next(self.budgets[kind])
            if host is not None:
                return self._start(host, self._kind_in_turn(host, kind), now)
        return None

    def ended(self, start: Start, now: int) -> None:
        """An attempt is over, whatever its outcome."""
        self.budgets[start.kind].give_back(start.host_class)
        start.lane.host.ended(start.kind)
        if start.kind is AttemptKind.PROBE:
            start.lane.probing = False
        self.touch(start.lane, now)

    def put_back(self, start: Start, now: int) -> None:
        """An attempt was not made: its message is next in its lane again."""
        lane, kind = start.lane, start.kind
        if kind is AttemptKind.PROBE:
            lane.probe = start.entry
        else:
            queue = lane.fresh if kind is AttemptKind.FIRST else lane.due
            older = sum(1 for _ in takewhile(lambda entry: position(entry) < position(start.entry), queue))
            queue.insert(older, start.entry)
        self.ended(start, now)

    def wait_for_address(self, host: Host, address: str, now: int) -> bool:
        """Start nothing to a host until an attempt to this address has ended. Returns False if too many hosts wait for
        the address: this one should leave memory for a while.
        """
        waiting = self._waiting_for.setdefault(address, deque())
        if len(waiting) >= WAITING_PER_ADDRESS:
            host.postponed_until = now + ADDRESS_WAIT
            self._list_host(host, now)
            return False
        waiting.append(host)
        host.address_wait_until = now + ADDRESS_WAIT
        self._list_host(host, now)
        return True

    def address_ended(self, address: str | None, now: int) -> None:
        """An attempt to an address has ended: the host that has waited for it the longest may start."""
        if address is None or address not in self._waiting_for:
            return
        waiting = self._waiting_for[address]
        while waiting:
            host = waiting.popleft()
            if host.address_wait_until > now:
                host.address_wait_until = 0
                self._list_host(host, now)
                break
        if not waiting:
            del self._waiting_for[address]

    def wake_at(self) -> float | None:
        """When the first host may start again of those that only wait for a time."""
        return self._parked[0][0] if self._parked else None

    def is_pacing(self, now: int) -> bool:
        """Whether messages are due that only the rates of their hosts delay. Messages under a hold are not due."""
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

    def _list_host(self, host: Host, now: int) -> None:
        quiet_until, ready = host.quiet_until(), host.ready
        group = group_of(host) if quiet_until <= now else None
        wanting = False
        for kind, ring in self._rings_by_kind:
            wants = bool(ready[kind]) and _may_start(host, kind)
            wanting = wanting or wants
            ring.set(host, group if wants else None)
        if wanting and quiet_until > now and host.parked_until != quiet_until:
            host.parked_until = quiet_until
            self._parkings += 1
            heappush(self._parked, (quiet_until, self._parkings, host))

    def _unpark(self, now: int) -> None:
        while self._parked and self._parked[0][0] <= now:
            _, _, host = heappop(self._parked)
            host.parked_until = 0.0
            self._list_host(host, now)


def _may_start(host: Host, kind: AttemptKind) -> bool:
    """Whether a host has room for an attempt of a kind, and no older message must start first."""
    return host.has_room(kind) and not (kind is _FIRST and host.reads and host.awaits_older)


def _set_ready(lanes: dict[Lane, None], lane: Lane, wanted: bool) -> None:
    if wanted:
        lanes.setdefault(lane)
    elif lane in lanes:
        del lanes[lane]
