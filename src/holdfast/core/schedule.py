"""When a failed message is tried again, when it is dead, and its place after each event.

    wait before retry n = 2^(n-1) * base, counted from the end of the attempt before it

With instant answers the n-th retry is due (2^n - 1) * base after the first failure. A late attempt never makes the
following ones bunch up. Jitter and Retry-After only add to a wait.

Each store keeps places in its own indexes. The place of a message after an event is decided here alone.
"""

from dataclasses import dataclass

from holdfast.core.circuit import CircuitState
from holdfast.core.message import Attempt, DeadReason, Message, MessageState, Place, Standing

MOST_RETRIES = 20
"""The largest `max_retries`."""


@dataclass(frozen=True, slots=True)
class RetryRules:
    """The keys of [retry]. Times are milliseconds; `jitter` is a fraction of the wait."""

    base: int
    max_retries: int
    expire_after: int
    jitter: float
    retry_after_limit: int


@dataclass(frozen=True, slots=True)
class RetryAt:
    """The next retry: its number, when it is due, and whether Retry-After pushed it there."""

    retry: int
    due: int
    held: bool


@dataclass(frozen=True, slots=True)
class Dead:
    reason: DeadReason


def schedule_span(base: int, max_retries: int) -> int:
    """Milliseconds from the first failed attempt to the last retry."""
    return ((1 << max_retries) - 1) * base


def wait_before(rules: RetryRules, retry: int) -> int:
    return rules.base << (retry - 1)


def after_failure(
    rules: RetryRules, retry: int, ended_at: int, retry_after: int | None, chance: float
) -> RetryAt | Dead:
    """The next step after the failure of an attempt with this retry number (0: the first attempt).

    `retry_after` is the moment that the receiver asked for. `chance` is a random number below 1, for the jitter.
    """
    if retry >= rules.max_retries:
        return Dead(DeadReason.EXHAUSTED)
    wait = wait_before(rules, retry + 1)
    scheduled = ended_at + wait + int(wait * rules.jitter * chance)
    pushed = min(retry_after or 0, scheduled + rules.retry_after_limit)
    return RetryAt(retry + 1, max(scheduled, pushed), held=pushed > scheduled)


def expires_at(rules: RetryRules, born: int, enabled_at: int) -> int:
    """When a message is dead while its circuit is not enabled. In an enabled circuit only the last retry ends it."""
    return max(born, enabled_at) + rules.expire_after


def first_place(message: Message, taken_over: Place | None = None, *, behind_others: bool = False) -> Place:
    """The place of a new message. A message from another store continues at the place that it had there."""
    if taken_over is not None:
        is_active = taken_over.standing is Standing.ACTIVE
        return taken_over._replace(standing=Standing.WAITING) if is_active else taken_over
    if message.is_delayed:
        return Place(Standing.RETRY, message.born, message.born, held=True)
    return Place(Standing.WAITING if behind_others else Standing.ACTIVE, message.born)


def place_after_attempt(place: Place, attempt: Attempt, step: RetryAt | Dead | None) -> Place:
    """The place after a failed attempt. After a probe or an interrupted attempt there is no step: it stays."""
    if step is None:
        return place._replace(attempts=attempt.number)
    if isinstance(step, RetryAt):
        return Place(Standing.RETRY, place.born, step.due, step.retry, attempt.number, step.held)
    return dead_place(place._replace(attempts=attempt.number), attempt.at + attempt.duration)


def dead_place(place: Place, died: int) -> Place:
    """The due time of a dead message is when it died."""
    return Place(Standing.DEAD, place.born, died, place.retry, place.attempts)


def replayed_place(place: Place, now: int) -> Place:
    """The place of a dead message that is replayed: its attempts stay on record, its retries start again at 0."""
    return Place(Standing.WAITING, now, attempts=place.attempts)


def due_at_once(place: Place, now: int) -> Place:
    """The place of a message that is retried now. Without a due time its lane decides when it starts."""
    if place.standing is not Standing.RETRY:
        return place
    return place._replace(due=now, born=min(place.born, now), held=False)


def state_of(place: Place, circuit: CircuitState) -> MessageState:
    """The state that operators see of a message that was not delivered."""
    if place.standing is Standing.DEAD:
        return MessageState.DEAD
    if circuit is not CircuitState.ENABLED:
        return MessageState.HELD
    return MessageState.RETRYING if place.standing is Standing.RETRY and place.retry else MessageState.QUEUED
