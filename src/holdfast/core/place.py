"""Where a message stands, and what moves it: the rules that every store follows.

A store keeps places in indexes of its own. Which place a message has after something happened is decided here alone.
"""

from holdfast.core.circuit import CircuitState
from holdfast.core.message import Attempt, Message, Place, Standing, State
from holdfast.core.schedule import Dead, RetryAt


def first_place(message: Message, taken_over: Place | None = None, *, behind_others: bool = False) -> Place:
    """The place of a new message. One that comes from another store goes on from where it stood there."""
    if taken_over is not None:
        is_active = taken_over.standing is Standing.ACTIVE
        return taken_over._replace(standing=Standing.WAITING) if is_active else taken_over
    if message.is_delayed:
        return Place(Standing.RETRY, message.born, message.born, held=True)
    return Place(Standing.WAITING if behind_others else Standing.ACTIVE, message.born)


def after_attempt(place: Place, attempt: Attempt, step: RetryAt | Dead | None) -> Place:
    """The place after a failed attempt. Without a step it is where it was: a probe, or an interrupted attempt."""
    if step is None:
        return place._replace(attempts=attempt.number)
    if isinstance(step, RetryAt):
        return Place(Standing.RETRY, place.born, step.due, step.retry, attempt.number, step.held)
    return dead(place._replace(attempts=attempt.number), attempt.at + attempt.duration)


def dead(place: Place, died: int) -> Place:
    """The due time of a dead message is when it died."""
    return Place(Standing.DEAD, place.born, died, place.retry, place.attempts)


def replayed(place: Place, now: int) -> Place:
    """A dead message begins a new life: its attempts stay on record, its retries are counted anew."""
    return Place(Standing.WAITING, now, attempts=place.attempts)


def due_at_once(place: Place, now: int) -> Place:
    """A message that waits for a time no longer does; the turn of any other is for its lane to decide."""
    if place.standing is not Standing.RETRY:
        return place
    return place._replace(due=now, born=min(place.born, now), held=False)


def state_of(place: Place, circuit: CircuitState) -> State:
    """What operators know a message by that was not delivered."""
    if place.standing is Standing.DEAD:
        return State.DEAD
    if circuit is not CircuitState.ENABLED:
        return State.HELD
    return State.RETRYING if place.standing is Standing.RETRY and place.retry else State.QUEUED
