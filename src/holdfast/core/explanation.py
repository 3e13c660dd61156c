"""Why a message is where it is, as a sentence for operators: what it waits for, by which rule and which counters."""

from holdfast.core.circuit import Circuit, CircuitRules, CircuitState, Reason
from holdfast.core.message import Attempt, DeadReason, MessageState, Place, Standing, rfc3339
from holdfast.core.schedule import RetryRules


def why(
    state: MessageState,
    place: Place | None,
    reason: DeadReason | None,
    attempts: list[Attempt],
    circuit: Circuit | None,
    circuit_rules: CircuitRules,
    retry_rules: RetryRules,
) -> str:
    if state is MessageState.DELIVERED:
        return f"It was delivered by attempt {attempts[-1].number} with status {attempts[-1].status}."
    if state is MessageState.IN_FLIGHT:
        return "An attempt is under way."
    if state is MessageState.DEAD:
        return _why_dead(reason, retry_rules, circuit)
    if state is MessageState.HELD and circuit is not None:
        return _why_held(circuit, circuit_rules, retry_rules)
    if place is not None and place.standing is Standing.RETRY:
        return _why_later(place, attempts, retry_rules)
    return "It waits for its turn: its host is at its limit, or others of its host came first."


def _why_dead(reason: DeadReason | None, rules: RetryRules, circuit: Circuit | None) -> str:
    if reason is DeadReason.EXHAUSTED:
        return f"It is dead: the first attempt and all {rules.max_retries} retries failed (retry.max_retries)."
    state = f"is {circuit.state}" if circuit is not None else "was not enabled"
    hours = rules.expire_after / 3_600_000
    return f"It is dead: its circuit {state}, and {hours:.1f} h passed before it could be sent (retry.expire_after)."


def _why_held(circuit: Circuit, rules: CircuitRules, retry: RetryRules) -> str:
    cause = f"It waits for its circuit, {circuit.state} since {rfc3339(circuit.since)} {_cause(circuit, rules)}"
    if circuit.state is CircuitState.FROZEN:
        return f"{cause}; only an operator unfreezes it."
    probe = rfc3339(circuit.next_probe_at) if circuit.next_probe_at is not None else "as soon as it may"
    return f"{cause}; the next probe is due at {probe}, and a 2xx enables it (circuit.probe_every)."


def _cause(circuit: Circuit, rules: CircuitRules) -> str:
    run, window = circuit.consecutive_failures, circuit.window
    match circuit.reason:
        case Reason.FAILURE_RATE:
            limits = f"more than {rules.min_attempts} attempts and {rules.failure_rate:.0%} failed"
            return f"by the failure rate ({limits} in the window; now {window.failures} of {window.attempts})"
        case Reason.CONSECUTIVE_FAILURES:
            return f"by {rules.disable_after} failures in a row (circuit.disable_after; now {run})"
        case Reason.SILENCE:
            hours = rules.freeze_silence / 3_600_000
            return f"by more than {rules.freeze_after} failures in a row and no success for {hours:.0f} h (now {run})"
        case Reason.CONSECUTIVE_LIMIT:
            return f"by {rules.freeze_at} failures in a row (circuit.freeze_at; now {run})"
        case _:
            return "by an operator"


def _why_later(place: Place, attempts: list[Attempt], rules: RetryRules) -> str:
    if not place.retry:
        return f"Its first attempt is held back until {rfc3339(place.due)} (Holdfast-Delay)."
    last = attempts[-1] if attempts else None
    cause = f" after {last.error or last.status}" if last is not None else ""
    rule = "Retry-After" if place.held else "the schedule, retry.base"
    return f"It waits for retry {place.retry} of {rules.max_retries} at {rfc3339(place.due)}{cause} ({rule})."
