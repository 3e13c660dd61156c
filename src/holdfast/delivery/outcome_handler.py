"""Decides what the outcome of an attempt changes: the circuit, the host's limit, the schedule, and the one operation
that records it all.

All decisions are made here, synchronously, and logged. attempts.py carries them out.
"""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.core.circuit import CircuitChange, CircuitRules
from holdfast.core.counters import Counters
from holdfast.core.lane import Lane
from holdfast.core.message import Attempt, AttemptKind, ErrorKind, Fault, Message, id_text, masked_lane, rfc3339
from holdfast.core.outcome import Outcome
from holdfast.core.redaction import without_secrets
from holdfast.core.schedule import Dead, RetryAt, RetryRules, after_failure
from holdfast.core.start_order import Start
from holdfast.events import Events
from holdfast.store.port import Deliver, Fail, LaneRecord, Operation


class OutcomeEffects(NamedTuple):
    """The operation to write, when the message is due again, and the circuit's change of state. None: there is none."""

    operation: Operation
    due: int | None
    change: CircuitChange | None


class EventReporter:
    """Counts events in the counters and logs them."""

    def __init__(self, counters: Counters, events: Events) -> None:
        self.counters = counters
        self.events = events

    def log_accepted(self, message: Message, now: int) -> None:
        """A message that another holdfast handed over counts as accepted now, whenever it was accepted there."""
        self.counters.accepted += 1
        self.counters.accepted_lately.add(now)
        if self.events.has_listeners:
            id, target = id_text(message.id), message.masked_target
            self.events.publish("accepted", message=id, host=message.host, target=target, route=message.route)

    def log_change(self, lane: Lane | LaneRecord, change: CircuitChange) -> None:
        circuit = lane.circuit
        if change.reason is not None:
            self.counters.trips[change.reason] += 1
        self.events.log(
            logging.WARNING if change.reason else logging.INFO,
            "circuit_changed",
            host=masked_lane(lane.key),
            before=change.before,
            after=change.after,
            rule=change.event,
            reason=change.reason,
            consecutive_failures=circuit.consecutive_failures,
            window_attempts=circuit.window.attempts,
            window_failures=circuit.window.failures,
        )


class OutcomeHandler(EventReporter):
    """Turns outcomes into effects. `chance` returns random numbers from 0 up to 1 for the jitter."""

    def __init__(
        self, circuit: CircuitRules, retry: RetryRules, chance: Callable[[], float], counters: Counters, events: Events
    ) -> None:
        super().__init__(counters, events)
        self.circuit_rules = circuit
        self._retry = retry
        self._chance = chance

    def configure(self, circuit: CircuitRules, retry: RetryRules) -> None:
        self.circuit_rules = circuit
        self._retry = retry

    def effects(self, start: Start, outcome: Outcome, began: int, now: int) -> OutcomeEffects:
        attempt = Attempt(
            start.entry.place.attempts + 1,
            start.kind,
            began,
            now - began,
            outcome.address,
            outcome.status,
            outcome.error,
            outcome.detail,
            outcome.fault,
            without_secrets(outcome.answer, start.entry.message),
        )
        self.counters.outcomes[str(outcome.error or outcome.status)] += 1
        self.counters.attempt_seconds.observe(attempt.duration / 1000)
        if outcome.status is not None:
            start.lane.host.answers = True
        elif outcome.fault is Fault.HOST:
            start.lane.host.answers = False  # a failure on this side says nothing about the host
        if outcome.delivered:
            return self._delivered(start, attempt, now)
        return self._failed(start, attempt, outcome, now)

    def _delivered(self, start: Start, attempt: Attempt, now: int) -> OutcomeEffects:
        lane = start.lane
        had_failures = lane.circuit.has_failures
        change = lane.circuit.succeeded(
            self.circuit_rules, now, generation=start.generation, probe=start.kind is AttemptKind.PROBE
        )
        lane.host.succeeded()
        if change is not None:
            lane.host.slow_start()
            self.log_change(lane, change)
        self._log_delivery(start, attempt, now)
        saved = lane if had_failures or change is not None or not lane.stored else None
        lane.stored = True
        lane.dirty = saved is None
        return OutcomeEffects(Deliver(start.entry, attempt, saved), None, change)

    def _failed(self, start: Start, attempt: Attempt, outcome: Outcome, now: int) -> OutcomeEffects:
        lane = start.lane
        change = None
        if outcome.fault is Fault.HOST:
            change = lane.circuit.failed(self.circuit_rules, now, generation=start.generation)
            lane.host.failed()
        lane.host.hold_until = max(lane.host.hold_until, outcome.host_hold(now + self.circuit_rules.probe_every))
        step = self._step(start, outcome, now)
        self._log_failure(start, attempt, step)
        if isinstance(step, Dead):
            self._log_dead(start, attempt, step)
        if change is not None:
            self.log_change(lane, change)
        due = step.due if isinstance(step, RetryAt) else None
        lane.dirty = False
        return OutcomeEffects(Fail(start.entry, attempt, step, lane), due, change)

    def _step(self, start: Start, outcome: Outcome, now: int) -> RetryAt | Dead | None:
        """The message's next step in the schedule; None if it keeps its place."""
        if start.kind is AttemptKind.PROBE or outcome.error is ErrorKind.INTERRUPTED:
            return None
        chance = self._chance() if self._retry.jitter else 0.0
        return after_failure(self._retry, start.entry.place.retry, now, outcome.retry_after, chance)

    def log_lost(self, start: Start) -> None:
        """An attempt ended whose message now belongs to another replica."""
        self.counters.fenced += 1
        message = start.entry.message
        self.events.log(logging.WARNING, "outcome_fenced", message=id_text(message.id), host=message.host)

    def _log_delivery(self, start: Start, attempt: Attempt, now: int) -> None:
        self.counters.delivered += 1
        self.counters.delivered_lately.add(now)
        if self.events.has_listeners:
            self.events.publish("delivered", **_attempt_fields(start, attempt))

    def _log_failure(self, start: Start, attempt: Attempt, step: RetryAt | Dead | None) -> None:
        self.counters.failed += 1
        fields = _attempt_fields(start, attempt)
        if isinstance(step, RetryAt):
            fields |= {"retry": step.retry, "next_attempt_at": rfc3339(step.due)}
        self.events.log(logging.WARNING, "attempt_failed", **fields)

    def _log_dead(self, start: Start, attempt: Attempt, step: Dead) -> None:
        self.counters.dead[step.reason] += 1
        message = start.entry.message
        self.events.log(
            logging.ERROR,
            "message_dead",
            message=id_text(message.id),
            host=message.host,
            target=message.masked_target,
            reason=step.reason,
            attempts=attempt.number,
        )


def _attempt_fields(start: Start, attempt: Attempt) -> dict[str, Any]:
    """The fields of an attempt for the log and for live listeners: nothing of the body, and no path."""
    message = start.entry.message
    fields: dict[str, Any] = {
        "message": id_text(message.id),
        "host": message.host,
        "target": message.masked_target,
        "route": message.route,
        "number": attempt.number,
        "kind": attempt.kind,
        "duration": attempt.duration / 1000,
        "address": attempt.address,
        "status": attempt.status,
        "error": attempt.error,
        "detail": attempt.detail,
        "fault": attempt.fault,
    }
    return {name: value for name, value in fields.items() if value is not None}
