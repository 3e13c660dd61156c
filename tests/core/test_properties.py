from collections import Counter

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.core.circuit import CircuitState
from holdfast.core.message import AttemptKind, ErrorKind
from holdfast.core.outcome import Outcome, of_answer, of_error
from tests.core.dispatch import BY_RATE, CIRCUIT, FIRST_ATTEMPTS, RETRIES, RETRY, Dispatcher
from tests.support.repetitions import amount

LANES = st.integers(0, 4)
STEPS = st.sampled_from([1, 300, 1_000, 2_000, 5_000, 5_000, 20_000, 70_000])
PAUSES = st.sampled_from([300, 1_000, 5_000])
ENDS = st.sampled_from(["200", "500", "500", "timeout", "503", "here"])


def end(kind: str, now: int) -> Outcome:
    match kind:
        case "here":
            return of_error(ErrorKind.EGRESS_DENIED, "denied")
        case "timeout":
            return of_error(ErrorKind.TIMEOUT, "30 s")
        case "503":
            return of_answer(503, [(b"retry-after", b"7")], b"", None, now, now)
    return of_answer(int(kind), [], b"", None, now, now)


class Gateway(RuleBasedStateMachine):
    """Messages come, attempts start and end in any order and however late, operators interfere."""

    def __init__(self) -> None:
        super().__init__()
        self.it = Dispatcher()

    @initialize(rules=st.sampled_from([CIRCUIT, BY_RATE]))
    def begin(self, rules):
        self.it = Dispatcher(rules)

    @rule(lane=LANES, number=st.integers(1, 6), delay=st.sampled_from([0, 0, 0, 3_000]))
    def accept(self, lane, number, delay):
        for _ in range(number):
            self.it.accept(self.it.lanes[lane], delay)

    @rule(by=STEPS)
    def advance(self, by):
        self.it.advance(by)

    @rule(most=st.integers(1, 12))
    def start(self, most):
        for _ in range(most):
            if self.it.start_next() is None:
                break

    @rule()
    def start_all(self):
        """When the start order returns nothing more, no message may start, and `wake_at` is set for hosts that wait."""
        while self.it.start_next() is not None:
            pass
        for lane in self.it.lanes:
            assert not self.it.may_start(lane), f"{lane.key} has a place and does not start"
            quiet_until = lane.host.quiet_until()
            has_room = lane.host.in_flight < lane.host.limit
            if lane.enabled and lane.fresh and has_room and quiet_until > self.it.now:
                assert self.it.start_order.wake_at() is not None
                assert self.it.now < self.it.start_order.wake_at() <= quiet_until

    @rule(which=st.integers(0, 11), how=ENDS)
    def finish_one(self, which, how):
        if which < len(self.it.in_flight):
            self.it.finish(self.it.in_flight[which], end(how, self.it.now))

    @rule(how=ENDS)
    def finish_all(self, how):
        for start in list(self.it.in_flight):
            self.it.finish(start, end(how, self.it.now))

    @rule(lane=LANES, rounds=st.integers(1, 12), every=PAUSES, late=st.integers(0, 3))
    def outage(self, lane, rounds, every, late):
        """One lane fails for a while. Its youngest attempts stay in flight and end late."""
        for _ in range(rounds):
            self.it.accept(self.it.lanes[lane], 0)
            self.start_all()
            flying = [start for start in self.it.in_flight if start.lane is self.it.lanes[lane]]
            for start in flying[: max(0, len(flying) - late)]:
                self.it.finish(start, end("500", self.it.now))
            self.it.advance(every)

    @rule(lane=LANES, freeze=st.sampled_from([True, False, False]))
    def an_operator_interferes(self, lane, freeze):
        (self.it.freeze if freeze else self.it.unfreeze)(self.it.lanes[lane])

    @invariant()
    def every_message_is_delivered_waiting_or_dead_with_its_reason(self):
        waiting = [id for watch in self.it.watches.values() for id in watch.waiting]
        flying = [start.entry.message.id for start in self.it.in_flight]
        assert Counter([*waiting, *flying, *self.it.delivered, *self.it.dead]) == Counter(self.it.accepted)
        assert all(self.it.dead.values())

    @invariant()
    def the_budgets_and_the_hosts_count_what_is_in_flight(self):
        kinds = Counter(start.kind for start in self.it.in_flight)
        budgets = self.it.start_order.budgets
        assert budgets[AttemptKind.FIRST].used == kinds[AttemptKind.FIRST] <= FIRST_ATTEMPTS
        assert budgets[AttemptKind.RETRY].used == kinds[AttemptKind.RETRY] + kinds[AttemptKind.PROBE] <= RETRIES
        by_host = Counter((start.lane.host.name, start.kind) for start in self.it.in_flight)
        for lane in self.it.lanes:
            mine = {kind: by_host[lane.host.name, kind] for kind in AttemptKind}
            assert lane.host.in_flight == sum(mine.values()) <= lane.host.per_host
            assert lane.host.retries_in_flight == mine[AttemptKind.RETRY]

    @invariant()
    def no_life_has_more_than_its_first_attempt_and_its_retries(self):
        assert max(self.it.scheduled.values(), default=0) <= RETRY.max_retries + 1

    @invariant()
    def a_circuit_says_why_it_is_not_enabled_and_when_it_is_probed(self):
        for lane in self.it.lanes:
            circuit = lane.circuit
            assert (circuit.state is CircuitState.ENABLED) == (circuit.reason is None)
            assert (circuit.state is CircuitState.DISABLED) == (circuit.next_probe_at is not None)
            if circuit.next_probe_at is not None:
                quiet_since = self.it.watches[lane.key].quiet_since
                assert circuit.next_probe_at == quiet_since + CIRCUIT.probe_every

    def teardown(self):
        """Once receivers answer and operators unfreeze, everything that waits is delivered."""
        for name in self.it.seen:
            event(name)
        for _ in range(200):
            for lane in self.it.lanes:
                self.it.unfreeze(lane)
            self.start_all()
            if self.it.in_flight:
                self.finish_all("200")
            self.it.advance(1_000)
            self.every_message_is_delivered_waiting_or_dead_with_its_reason()
        assert len(self.it.delivered) + len(self.it.dead) == len(self.it.accepted)


TestGateway = Gateway.TestCase
TestGateway.settings = settings(max_examples=amount(30, 150), stateful_step_count=60)
