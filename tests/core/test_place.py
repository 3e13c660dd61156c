"""Where a message stands after each thing that can happen to it."""

import pytest

from holdfast.core.circuit import CircuitState
from holdfast.core.message import Attempt, AttemptKind, DeadReason, MessageState, Place, Standing
from holdfast.core.schedule import (
    Dead,
    RetryAt,
    dead_place,
    due_at_once,
    first_place,
    place_after_attempt,
    replayed_place,
    state_of,
)
from tests.core.build import NOW, entry

ACTIVE, WAITING, RETRY, DEAD = Standing
ENABLED, DISABLED, FROZEN = CircuitState
TRIED = Attempt(3, AttemptKind.RETRY, at=1_000, duration=20)


def test_a_new_message_is_active_or_behind_the_others_of_its_lane() -> None:
    new = entry().message
    assert first_place(new) == Place(ACTIVE, new.born)
    assert first_place(new, behind_others=True) == Place(WAITING, new.born)


@pytest.mark.parametrize("behind_others", [False, True])
def test_a_delayed_message_waits_for_its_time_and_no_probe_goes_before_that(behind_others: bool) -> None:
    delayed = entry(born=NOW + 5_000).message._replace(accepted_at=NOW)
    assert first_place(delayed, behind_others=behind_others) == Place(RETRY, delayed.born, delayed.born, held=True)


@pytest.mark.parametrize("standing", [WAITING, RETRY, DEAD])
def test_a_message_that_is_taken_over_goes_on_from_where_it_stood(standing: Standing) -> None:
    there = Place(standing, 7, 8, 2, 3, held=True)
    assert first_place(entry().message, there) == there


def test_one_that_was_active_elsewhere_queues_up() -> None:
    assert first_place(entry().message, Place(ACTIVE, 7, attempts=1)) == Place(WAITING, 7, attempts=1)


def test_a_failed_attempt_moves_a_message_by_its_step() -> None:
    before = Place(RETRY, 7, 500, 2, 2, held=True)
    assert place_after_attempt(before, TRIED, RetryAt(3, 9_000, False)) == Place(RETRY, 7, 9_000, 3, 3)
    assert place_after_attempt(before, TRIED, Dead(DeadReason.EXHAUSTED)) == Place(DEAD, 7, 1_020, 2, 3)
    assert place_after_attempt(before, TRIED, None) == before._replace(attempts=3), "a probe moves nothing"


def test_a_dead_message_keeps_its_age_and_its_attempts() -> None:
    assert dead_place(Place(RETRY, 7, 500, 2, 2, held=True), 600) == Place(DEAD, 7, 600, 2, 2)


def test_a_replay_counts_the_retries_anew_and_keeps_the_attempts() -> None:
    assert replayed_place(Place(DEAD, 7, 600, 11, 12), 900) == Place(WAITING, 900, attempts=12)


def test_what_waits_for_a_time_is_made_due_and_anything_else_is_already() -> None:
    assert due_at_once(Place(RETRY, 7, 500, 2, 2, held=True), 100) == Place(RETRY, 7, 100, 2, 2)
    assert due_at_once(Place(RETRY, 500, 500, held=True), 100) == Place(RETRY, 100, 100), "delayed, and not born yet"
    assert due_at_once(Place(WAITING, 7), 100) == Place(WAITING, 7)


@pytest.mark.parametrize(
    ("place", "circuit", "state"),
    [
        (Place(ACTIVE, 1), ENABLED, MessageState.QUEUED),
        (Place(WAITING, 1), ENABLED, MessageState.QUEUED),
        (Place(RETRY, 1, 2), ENABLED, MessageState.QUEUED),
        (Place(RETRY, 1, 2, retry=1), ENABLED, MessageState.RETRYING),
        (Place(ACTIVE, 1), DISABLED, MessageState.HELD),
        (Place(RETRY, 1, 2, retry=1), FROZEN, MessageState.HELD),
        (Place(DEAD, 1, 2), ENABLED, MessageState.DEAD),
        (Place(DEAD, 1, 2), FROZEN, MessageState.DEAD),
    ],
)
def test_what_operators_know_a_message_by(place: Place, circuit: CircuitState, state: MessageState) -> None:
    assert state_of(place, circuit) is state
