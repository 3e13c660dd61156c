"""A circuit decides whether a host may receive requests.

The rules are Workfront's published ones, as a table. An enabled circuit sends everything, a disabled one sends a probe
every `probe_every`, a frozen one sends nothing until an operator unfreezes it. A transition happens only when a failed
outcome is recorded, when a probe succeeds, or when an operator asks for it; never by time. An outcome of an attempt
that began before the last transition is counted and changes no state: the answers of a burst that was in flight when
the circuit tripped must neither trip it twice nor enable it.

Two rules disable. The rate finds a host that is mostly broken while it has traffic. The run of consecutive failures
finds a host with so little traffic that the window never fills. Freezing needs silence too: a large sender can fail
2,000 times in a minute, which is an outage; an endpoint is dead only if it fails for days. 50,000 failures in a row
freeze in any case.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Self

BUCKETS = 60


class CircuitState(StrEnum):
    ENABLED = "enabled"
    DISABLED = "disabled"
    FROZEN = "frozen"


class Event(StrEnum):
    """What can happen to a circuit, named by the rule behind it."""

    RATE_EXCEEDED = "rate_exceeded"
    RUN_OF_FAILURES = "run_of_failures"
    SILENT_TOO_LONG = "silent_too_long"
    RUN_AT_LIMIT = "run_at_limit"
    PROBE_SUCCEEDED = "probe_succeeded"
    OPERATOR_FREEZES = "operator_freezes"
    OPERATOR_UNFREEZES = "operator_unfreezes"


class Reason(StrEnum):
    """Why a circuit is not enabled. It is shown in logs, metrics and the API."""

    FAILURE_RATE = "failure_rate"
    CONSECUTIVE_FAILURES = "consecutive_failures"
    SILENCE = "silence"
    CONSECUTIVE_LIMIT = "consecutive_limit"
    OPERATOR = "operator"


TRANSITIONS: Mapping[CircuitState, Mapping[Event, tuple[CircuitState, Reason | None]]] = {
    CircuitState.ENABLED: {
        Event.RATE_EXCEEDED: (CircuitState.DISABLED, Reason.FAILURE_RATE),
        Event.RUN_OF_FAILURES: (CircuitState.DISABLED, Reason.CONSECUTIVE_FAILURES),
        Event.SILENT_TOO_LONG: (CircuitState.FROZEN, Reason.SILENCE),
        Event.RUN_AT_LIMIT: (CircuitState.FROZEN, Reason.CONSECUTIVE_LIMIT),
        Event.OPERATOR_FREEZES: (CircuitState.FROZEN, Reason.OPERATOR),
    },
    CircuitState.DISABLED: {
        Event.SILENT_TOO_LONG: (CircuitState.FROZEN, Reason.SILENCE),
        Event.RUN_AT_LIMIT: (CircuitState.FROZEN, Reason.CONSECUTIVE_LIMIT),
        Event.PROBE_SUCCEEDED: (CircuitState.ENABLED, None),
        Event.OPERATOR_FREEZES: (CircuitState.FROZEN, Reason.OPERATOR),
        Event.OPERATOR_UNFREEZES: (CircuitState.ENABLED, None),
    },
    CircuitState.FROZEN: {
        Event.OPERATOR_UNFREEZES: (CircuitState.ENABLED, None),
    },
}


@dataclass(frozen=True, slots=True)
class CircuitRules:
    """The keys of [circuit]. Times are milliseconds. `failure_rate`, `disable_after`, `freeze_after` and `freeze_at`
    each turn a rule off when they are 0. `url_hosts` are patterns: "*", "*.example.com", "host".
    """

    scope: Literal["host", "url"]
    url_hosts: tuple[str, ...]
    window: int
    min_attempts: int
    failure_rate: float
    disable_after: int
    freeze_after: int
    freeze_silence: int
    freeze_at: int
    probe_every: int
    forget_after: int


@dataclass(frozen=True, slots=True)
class CircuitChange:
    """A transition that just happened."""

    before: CircuitState
    after: CircuitState
    event: Event
    reason: Reason | None
    at: int


class Window:
    """Attempts and failures of the last `BUCKETS` buckets, which are aligned to the clock, with running sums."""

    __slots__ = ("attempts", "buckets", "failures")

    def __init__(self, buckets: list[list[int]] | None = None) -> None:
        self.buckets = deque(buckets or [])
        self.attempts = sum(bucket[1] for bucket in self.buckets)
        self.failures = sum(bucket[2] for bucket in self.buckets)

    def add(self, now: int, width: int, failed: bool) -> None:
        self.trim(now, width)
        current = now // width
        if not self.buckets or self.buckets[-1][0] < current:
            self.buckets.append([current, 0, 0])
        bucket = self.buckets[-1]
        bucket[1] += 1
        self.attempts += 1
        if failed:
            bucket[2] += 1
            self.failures += 1

    def trim(self, now: int, width: int) -> None:
        current = now // width
        while self.buckets and self.buckets[0][0] <= current - BUCKETS:
            self._drop(self.buckets.popleft())
        # Buckets from the future are narrower ones, counted before `circuit.window` was changed.
        while self.buckets and self.buckets[-1][0] > current:
            self._drop(self.buckets.pop())

    def _drop(self, bucket: list[int]) -> None:
        self.attempts -= bucket[1]
        self.failures -= bucket[2]

    def sums(self, now: int, rules: "CircuitRules") -> tuple[int, int]:
        """Attempts and failures as of now. Changes nothing."""
        current = now // _width(rules)
        counted = [bucket for bucket in self.buckets if current - BUCKETS < bucket[0] <= current]
        return sum(bucket[1] for bucket in counted), sum(bucket[2] for bucket in counted)

    def clear(self) -> None:
        self.buckets.clear()
        self.attempts = self.failures = 0


@dataclass(slots=True)
class Circuit:
    """State and counters. `generation` counts the transitions of this run: an attempt remembers in which one it began.
    `probed` is the position of the last message that was sent as a probe.
    """

    state: CircuitState = CircuitState.ENABLED
    since: int = 0
    reason: Reason | None = None
    consecutive_failures: int = 0
    window: Window = field(default_factory=Window)
    first_attempt_at: int | None = None
    last_attempt_at: int | None = None
    last_success_at: int | None = None
    silent_since: int | None = None
    enabled_at: int = 0
    next_probe_at: int | None = None
    probed: bytes | None = None
    generation: int = 0

    @classmethod
    def new(cls, now: int) -> Self:
        """The circuit of a host that was never seen."""
        return cls(since=now, enabled_at=now)

    def begin(self, rules: CircuitRules, now: int, *, probe: bool) -> int:
        """An attempt starts. Returns the generation to pass with its outcome."""
        if self.first_attempt_at is None:
            self.first_attempt_at = now
        if self.silent_since is None:
            self.silent_since = now
        self.last_attempt_at = now
        if probe:
            self.next_probe_at = now + rules.probe_every
        return self.generation

    def succeeded(self, rules: CircuitRules, now: int, *, generation: int, probe: bool) -> CircuitChange | None:
        self.consecutive_failures = 0
        self.last_success_at = self.silent_since = now
        self.window.add(now, _width(rules), failed=False)
        if probe and generation == self.generation and self.state is CircuitState.DISABLED:
            return self._apply(Event.PROBE_SUCCEEDED, rules, now)
        return None

    def failed(self, rules: CircuitRules, now: int, *, generation: int) -> CircuitChange | None:
        """Count a failure that is the host's fault."""
        self.consecutive_failures += 1
        self.window.add(now, _width(rules), failed=True)
        if generation != self.generation:
            return None
        event = self._rule_broken(rules, now)
        return self._apply(event, rules, now) if event else None

    def freeze(self, rules: CircuitRules, now: int) -> CircuitChange | None:
        if self.state is CircuitState.FROZEN:
            return None
        return self._apply(Event.OPERATOR_FREEZES, rules, now)

    def unfreeze(self, rules: CircuitRules, now: int) -> CircuitChange | None:
        if self.state is CircuitState.ENABLED:
            return None
        self.consecutive_failures = 0
        self.silent_since = now
        return self._apply(Event.OPERATOR_UNFREEZES, rules, now)

    def forget_at(self, rules: CircuitRules) -> int:
        """When it is forgotten, if it is enabled and nothing is sent to its host until then."""
        return max(self.last_attempt_at or 0, self.since) + rules.forget_after

    @property
    def has_failures(self) -> bool:
        """Whether a success must be saved at once: a kill may lose successes only of hosts that had not failed."""
        return bool(self.consecutive_failures or self.window.failures)

    def _rule_broken(self, rules: CircuitRules, now: int) -> Event | None:
        """The strictest rule that this failure breaks and that applies in this state."""
        run = self.consecutive_failures
        known = TRANSITIONS[self.state]
        silence = now - (now if self.silent_since is None else self.silent_since)
        if rules.freeze_at and run >= rules.freeze_at and Event.RUN_AT_LIMIT in known:
            return Event.RUN_AT_LIMIT
        silent = rules.freeze_silence and silence > rules.freeze_silence
        if rules.freeze_after and run > rules.freeze_after and silent and Event.SILENT_TOO_LONG in known:
            return Event.SILENT_TOO_LONG
        if self._rate_exceeded(rules) and Event.RATE_EXCEEDED in known:
            return Event.RATE_EXCEEDED
        if rules.disable_after and run >= rules.disable_after and Event.RUN_OF_FAILURES in known:
            return Event.RUN_OF_FAILURES
        return None

    def _rate_exceeded(self, rules: CircuitRules) -> bool:
        if not rules.failure_rate or not rules.min_attempts:
            return False
        attempts, failures = self.window.attempts, self.window.failures
        # A quotient, not a product: 77/110 rounds to the same double as 0.70, and 0.70*110 to less than 77.
        return attempts > rules.min_attempts and failures / attempts > rules.failure_rate

    def _apply(self, event: Event, rules: CircuitRules, now: int) -> CircuitChange:
        before = self.state
        self.state, self.reason = TRANSITIONS[before][event]
        self.since = now
        self.generation += 1
        self.probed = None
        self.next_probe_at = now + rules.probe_every if self.state is CircuitState.DISABLED else None
        if self.state is CircuitState.ENABLED:
            self.enabled_at = now
            self.window.clear()
        return CircuitChange(before, self.state, event, self.reason, now)


def _width(rules: CircuitRules) -> int:
    return max(1, rules.window // BUCKETS)
