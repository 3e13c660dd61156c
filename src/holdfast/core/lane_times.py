"""When a lane needs attention by time alone: `wake_at` for a lane on disk, `quiet_lane_step` for a lane in memory.

Nothing expires in the grace after a start: the process may have been down for longer than messages may wait. A
disabled circuit is also probed once before its messages expire.
"""

from dataclasses import dataclass
from enum import Enum

from holdfast.core.circuit import Circuit, CircuitRules, CircuitState
from holdfast.core.lane import Lane
from holdfast.core.schedule import RetryRules, expires_at

GRACE = 600_000
"""Milliseconds of the longest grace."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The first moment in each of a lane's indexes on disk; None if the index is empty.

    `probe_from` is when the first of its messages may be sent as a probe: 0 if one may at any time.
    """

    waiting: int | None = None
    due: int | None = None
    oldest: int | None = None
    probe_from: int | None = None


class LaneStep(Enum):
    FORGET = "remove the record of its idle circuit"
    SAVE = "write its record, which gives it a new moment"
    EXPIRE = "its oldest messages are dead"


def wake_at(circuit: Circuit, heads: Heads, rules: CircuitRules, retry: RetryRules, hold_until: int = 0) -> int:
    """When a lane that is not in memory needs attention next; 0 if only a new message or an operator changes it.

    Nothing starts before `hold_until`, which a Retry-After asked for.
    """
    if heads.oldest is None:
        return circuit.forget_at(rules) if circuit.state is CircuitState.ENABLED else 0
    if circuit.state is CircuitState.ENABLED:
        return max(hold_until, min(moment for moment in (heads.waiting, heads.due) if moment is not None))
    expiry = expires_at(retry, heads.oldest, circuit.enabled_at)
    if circuit.state is CircuitState.FROZEN or heads.probe_from is None:
        return expiry
    return min(expiry, max(circuit.next_probe_at or 0, heads.probe_from, hold_until))


def grace_ends(started: int, rules: CircuitRules) -> int:
    return started + min(GRACE, rules.probe_every)


def quiet_lane_step(
    lane: Lane, now: int, rules: CircuitRules, retry: RetryRules, *, started: int, grace_until: int
) -> LaneStep | int | None:
    """What a lane that has nothing to send needs now. An int is the moment to look again, if the agenda would name the
    lane too early. `started` is when this run began.
    """
    if not lane.hydrated or lane.stale:
        return None
    circuit = lane.circuit
    if lane.enabled:
        if lane.oldest is not None:
            return None
        if circuit.forget_at(rules) <= now:
            return LaneStep.FORGET
        return LaneStep.SAVE if lane.dirty else None
    probe = _next_probe(lane, now)
    expiry = None if lane.oldest is None else expires_at(retry, lane.oldest, circuit.enabled_at)
    if expiry is None or expiry > now:
        # All that waits is held, which only a read finds out: the agenda named the lane too early.
        is_too_early = probe is not None and lane.probe_from is not None and lane.probe_from > now
        return _earliest(expiry, probe) if is_too_early else None
    not_before = _may_expire_at(lane, started, grace_until)
    return _earliest(not_before, probe) if not_before > now else LaneStep.EXPIRE


def _may_expire_at(lane: Lane, started: int, grace_until: int) -> int:
    circuit = lane.circuit
    # Any attempt since the start to a circuit that was disabled before it was a probe.
    is_probed = max(circuit.since, circuit.last_attempt_at or 0) >= started
    if circuit.state is CircuitState.DISABLED and lane.probe_from is not None and not is_probed:
        return max(grace_until, circuit.next_probe_at or 0, lane.probe_from)
    return grace_until


def _next_probe(lane: Lane, now: int) -> int | None:
    if lane.circuit.state is not CircuitState.DISABLED or lane.probe_from is None:
        return None
    return max(lane.circuit.next_probe_at or 0, lane.probe_from, now + 1)


def _earliest(*moments: int | None) -> int:
    return min(moment for moment in moments if moment is not None)
