"""A dispatcher in memory: start order, circuits and schedule joined as in the real one, checked at every start.

It keeps its own record of attempts in flight, due times and probes, so that it does not rely on the code under test.
"""

from collections import Counter, deque
from dataclasses import dataclass, field, replace

from holdfast.config import build
from holdfast.core.circuit import CircuitChange, CircuitRules, CircuitState
from holdfast.core.lane import Host, Lane, position
from holdfast.core.message import AttemptKind, DeadReason, Entry, Fault, MessageId, Place, Standing
from holdfast.core.outcome import Outcome
from holdfast.core.schedule import Dead, after_failure, expires_at
from holdfast.core.start_order import Start, StartOrder
from tests.core.build import NOW, entry

DEFAULTS = build({})

CIRCUIT = replace(
    DEFAULTS.circuit,
    window=60_000,
    min_attempts=0,
    disable_after=4,
    freeze_after=5,
    freeze_silence=40_000,
    freeze_at=9,
    probe_every=5_000,
)
"""Disables by a run of failures."""

BY_RATE = replace(CIRCUIT, min_attempts=5, failure_rate=0.5, disable_after=0)

RETRY = replace(DEFAULTS.retry, base=1_000, max_retries=3, expire_after=60_000, retry_after_limit=8_000)
FIRST_ATTEMPTS, RETRIES = 8, 4


@dataclass(slots=True)
class Watch:
    """Facts about one lane besides its circuit."""

    waiting: dict[MessageId, Entry] = field(default_factory=dict)
    quiet_since: int = 0  # the trip, or the last probe's start


class Dispatcher:
    def __init__(self, rules: CircuitRules = CIRCUIT) -> None:
        self.now = NOW
        self.rules = rules
        self.start_order = StartOrder(rules, first_attempts=FIRST_ATTEMPTS, retries=RETRIES)
        alone, small, paced = Host("alone", 6, 6), Host("small", 2, 2), Host("paced", 4, 4, interval=300.0)
        shared = Host("shared", 4, 4)
        on = [alone, small, paced, shared, shared]
        self.lanes = [Lane(f"{host.name}/{number}", host, hydrated=True) for number, host in enumerate(on)]
        self.watches = {lane.key: Watch() for lane in self.lanes}
        self.accepted: set[MessageId] = set()
        self.delivered: set[MessageId] = set()
        self.dead: dict[MessageId, DeadReason] = {}
        self.in_flight: list[Start] = []
        self.scheduled: Counter[MessageId] = Counter()
        self.last_start: dict[Host, int] = {}
        self.seen: Counter[str] = Counter()

    # what happens

    def accept(self, lane: Lane, delay: int) -> None:
        made = entry(lane.key, born=self.now + delay, due=self.now + delay if delay else 0, held=bool(delay))
        self.accepted.add(made.message.id)
        self.watches[lane.key].waiting[made.message.id] = made
        self.look_after(lane)

    def advance(self, by: int) -> None:
        self.now += by
        for lane in self.lanes:
            self.look_after(lane, touch=False)

    def start_next(self) -> Start | None:
        start = self.start_order.pick(self.now)
        if start is not None:
            self.check(start)
            watch, id = self.watches[start.lane.key], start.entry.message.id
            del watch.waiting[id]
            if start.kind is AttemptKind.PROBE:
                watch.quiet_since = self.now
            else:
                self.scheduled[id] += 1
            self.last_start[start.lane.host] = self.now
            self.in_flight.append(start)
            self.look_after(start.lane)
        return start

    def finish(self, start: Start, outcome: Outcome) -> None:
        self.in_flight.remove(start)
        if outcome.status is not None or outcome.fault is Fault.HOST:
            start.lane.host.answers = outcome.status is not None
        lane, probe = start.lane, start.kind is AttemptKind.PROBE
        circuit, host = lane.circuit, lane.host
        change = None
        if outcome.delivered:
            host.succeeded()
            change = circuit.succeeded(self.rules, self.now, generation=start.generation, probe=probe)
            self.delivered.add(start.entry.message.id)
        else:
            if outcome.fault is Fault.HOST:
                host.failed()
                change = circuit.failed(self.rules, self.now, generation=start.generation)
            host.hold_until = max(host.hold_until, outcome.host_hold(self.now + self.rules.probe_every))
            self.put_back(start, outcome)
        self.changed(lane, change)
        self.start_order.ended(start, self.now)
        self.look_after(lane)

    def put_back(self, start: Start, outcome: Outcome) -> None:
        message, place = start.entry
        if start.kind is not AttemptKind.PROBE:
            following = after_failure(RETRY, place.retry, self.now, outcome.retry_after, 0.0)
            if isinstance(following, Dead):
                self.dead[message.id] = following.reason
                return
            place = Place(Standing.RETRY, place.born, following.due, following.retry, held=following.held)
        self.watches[start.lane.key].waiting[message.id] = Entry(message, place)

    def freeze(self, lane: Lane) -> None:
        self.changed(lane, lane.circuit.freeze(self.rules, self.now))
        self.look_after(lane)

    def unfreeze(self, lane: Lane) -> None:
        self.changed(lane, lane.circuit.unfreeze(self.rules, self.now))
        self.look_after(lane)

    def changed(self, lane: Lane, change: CircuitChange | None) -> None:
        if change is None:
            return
        self.seen[change.event] += 1
        self.watches[lane.key].quiet_since = self.now
        if change.after is CircuitState.ENABLED:
            lane.host.slow_start()

    def look_after(self, lane: Lane, *, touch: bool = True) -> None:
        """Waiting and due messages stay in memory whatever the circuit says: the start order must check it."""
        before = (lane.fresh, lane.due, lane.probe)
        waiting = self.watches[lane.key].waiting
        self.expire(lane, waiting)
        by_age = sorted(waiting.values(), key=position)
        by_due = sorted(waiting.values(), key=lambda each: each.place.due)
        lane.fresh = deque(each for each in by_age if not each.place.due)
        lane.due = deque(each for each in by_due if 0 < each.place.due <= self.now)
        lane.oldest = by_age[0].place.born if by_age else None
        lane.probe_from = min((each.place.due if each.place.held else 0 for each in by_age), default=None)
        if lane.circuit.state is CircuitState.DISABLED:
            lane.probe = None
            if lane.wants_probe(self.now):
                may = self.may_be_probed(lane)
                following = (each for each in may if position(each) > (lane.circuit.probed or b""))
                lane.probe = next(following, may[0])
        if touch or before != (lane.fresh, lane.due, lane.probe):
            self.start_order.touch(lane, self.now)

    def may_be_probed(self, lane: Lane) -> list[Entry]:
        waiting = sorted(self.watches[lane.key].waiting.values(), key=position)
        return [each for each in waiting if not each.place.held or each.place.due <= self.now]

    def expire(self, lane: Lane, waiting: dict[MessageId, Entry]) -> None:
        if lane.enabled:
            return
        for id, each in list(waiting.items()):
            if expires_at(RETRY, each.place.born, lane.circuit.enabled_at) <= self.now:
                del waiting[id]
                self.dead[id] = DeadReason.EXPIRED

    # what must hold

    def check(self, start: Start) -> None:
        """The start order's counters already hold this start, this dispatcher's list does not yet."""
        lane, host, kind, place = start.lane, start.lane.host, start.kind, start.entry.place
        state, watch = lane.circuit.state, self.watches[lane.key]
        assert start.entry.message.id in watch.waiting, "started what does not wait"
        assert state is not CircuitState.FROZEN, "started something in a frozen lane"
        assert (kind is AttemptKind.PROBE) == (state is CircuitState.DISABLED), "disabled means probes"
        if kind is AttemptKind.PROBE:
            assert self.now >= watch.quiet_since + self.rules.probe_every, "a probe too soon"
            assert start.entry in self.may_be_probed(lane), "a probe took a held message"
            assert not self.is_probing(lane), "a second probe"
        elif kind is AttemptKind.FIRST:
            assert position(start.entry) == min(self.fresh_of(host)), "first attempts out of order"
        else:
            assert 0 < place.due <= self.now, "a retry before it was due"
        mine = [other.kind for other in self.in_flight if other.lane.host is host]
        assert len(mine) < host.limit <= host.per_host, "over the host's limit"
        assert kind is not AttemptKind.RETRY or mine.count(AttemptKind.RETRY) < max(1, host.per_host // 2)
        assert host.hold_until <= self.now, "started on a held host"
        assert self.now - self.last_start.get(host, 0) >= host.interval, "faster than the rate"
        assert self.has_budget(kind, host, bool(mine)), "over the budget, or into what others have to have"

    def fresh_of(self, host: Host) -> list[bytes]:
        """The positions of the fresh messages of a host in all its enabled circuits."""
        lanes = [lane for lane in self.lanes if lane.host is host and lane.enabled]
        waiting = [each for lane in lanes for each in self.watches[lane.key].waiting.values()]
        return [position(each) for each in waiting if not each.place.due]

    def is_probing(self, lane: Lane) -> bool:
        return any(other.lane is lane and other.kind is AttemptKind.PROBE for other in self.in_flight)

    def has_budget(self, kind: AttemptKind, host: Host, is_busy: bool) -> bool:
        """The last quarter is for idle hosts that answer. Untried hosts share half, silent ones a quarter. Either kind
        has a second attempt in the first eighth.
        """
        size = FIRST_ATTEMPTS if kind is AttemptKind.FIRST else RETRIES
        beside = [other for other in self.in_flight if (other.kind is AttemptKind.FIRST) == (kind is AttemptKind.FIRST)]
        if host.answers:
            return len(beside) < (size - size // 4 if is_busy else size)
        if is_busy:
            return len(beside) < size // 8
        share = size // 2 if host.answers is None else size // 4
        alike = sum(other.host_class == host.host_class for other in beside)
        return len(beside) < size - size // 4 and alike < share

    def may_start(self, lane: Lane) -> bool:
        """Whether a message of this lane may start, by the rules as they are written."""
        host, watch = lane.host, self.watches[lane.key]
        mine = [other.kind for other in self.in_flight if other.lane.host is host]
        if len(mine) >= host.limit or max(host.hold_until, host.next_slot) > self.now:
            return False
        retries_full = mine.count(AttemptKind.RETRY) >= max(1, host.per_host // 2)
        probe_is_due = self.now >= watch.quiet_since + self.rules.probe_every and not self.is_probing(lane)
        ready = {
            CircuitState.ENABLED: {AttemptKind.FIRST: lane.fresh, AttemptKind.RETRY: lane.due and not retries_full},
            CircuitState.DISABLED: {AttemptKind.PROBE: probe_is_due and self.may_be_probed(lane)},
            CircuitState.FROZEN: {},
        }[lane.circuit.state]
        return any(some and self.has_budget(kind, host, bool(mine)) for kind, some in ready.items())
