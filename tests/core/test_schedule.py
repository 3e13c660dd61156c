"""The retry schedule, and the place of a message after each event."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import build
from holdfast.core.circuit import CircuitState
from holdfast.core.message import Attempt, AttemptKind, DeadReason, MessageState, Place, Standing
from holdfast.core.schedule import (
    Dead,
    RetryAt,
    RetryRules,
    after_failure,
    dead_place,
    due_at_once,
    expires_at,
    first_place,
    place_after_attempt,
    replayed_place,
    state_of,
    wait_before,
)
from tests.core.build import HOUR, MINUTE, NOW, entry

RULES = build({}).retry
SPAN = 48 * HOUR + 13 * MINUTE + 5_600

ACTIVE, WAITING, RETRY, DEAD = Standing
ENABLED, DISABLED, FROZEN = CircuitState
TRIED = Attempt(3, AttemptKind.RETRY, at=1_000, duration=20)

RETRIES = st.integers(0, 10)
CHANCES = st.floats(0, 1, exclude_max=True)


def due_after(retry: int, *, ended_at: int = NOW, asked: int | None = None) -> RetryAt:
    following = after_failure(RULES, retry, ended_at, asked, 0.0)
    assert isinstance(following, RetryAt)
    return following


@pytest.mark.parametrize(
    ("retry", "seconds"),
    [
        (1, 84.8),
        (2, 254.4),
        (3, 593.6),
        (4, 1272),
        (5, 2628.8),
        (6, 5342.4),
        (7, 10769.6),
        (8, 21624),
        (9, 43332.8),
        (10, 86750.4),
        (11, 173585.6),
    ],
)
def test_with_instant_answers_retry_n_is_due_2_to_the_n_less_1_bases_after_the_first_failure(retry, seconds):
    moment = NOW
    for used in range(retry):
        following = due_after(used, ended_at=moment)
        assert following.retry == used + 1
        moment = following.due
    assert (moment - NOW) / 1000 == seconds


def test_after_the_11th_retry_fails_the_message_is_dead_exhausted():
    assert isinstance(after_failure(RULES, 10, NOW, None, 0.0), RetryAt)
    assert after_failure(RULES, 11, NOW, None, 0.0) == Dead(DeadReason.EXHAUSTED)


def test_retry_after_does_not_save_a_message_from_being_exhausted():
    assert after_failure(RULES, 11, NOW, NOW + HOUR, 0.0) == Dead(DeadReason.EXHAUSTED)


def test_without_retries_the_first_failure_is_the_last():
    assert after_failure(replace(RULES, max_retries=0), 0, NOW, None, 0.0) == Dead(DeadReason.EXHAUSTED)


def test_a_failure_without_retry_after_is_not_held():
    assert due_after(0) == RetryAt(1, NOW + 84_800, held=False)


@given(st.lists(st.integers(0, 72 * HOUR), min_size=11, max_size=11))
def test_a_late_attempt_never_makes_the_following_ones_bunch_up(delays):
    """However late an attempt ends, the next one waits its whole time from there."""
    moment = NOW
    for used, delay in enumerate(delays):
        ended_at = moment + delay
        moment = due_after(used, ended_at=ended_at).due
        assert moment - ended_at == 84_800 * 2**used


@pytest.mark.parametrize("retry", range(1, 12))
def test_the_wait_before_retry_n_is_2_to_the_n_minus_1_bases(retry):
    assert wait_before(RULES, retry) == 2 ** (retry - 1) * 84_800


@given(RETRIES, CHANCES, st.floats(0, 4))
def test_jitter_can_only_add_and_at_most_its_fraction_of_the_wait(retry, chance, jitter):
    following = after_failure(replace(RULES, jitter=jitter), retry, NOW, None, chance)
    plain = due_after(retry)
    assert isinstance(following, RetryAt)
    assert plain.due <= following.due <= plain.due + jitter * wait_before(RULES, retry + 1)
    assert (following.retry, following.held) == (retry + 1, False)


def test_jitter_spreads_over_its_whole_fraction():
    rules = replace(RULES, jitter=0.5)
    dues = [after_failure(rules, 0, NOW, None, chance).due - NOW for chance in (0.0, 0.5, 0.999_999)]
    assert dues == [84_800, 84_800 + 21_200, 84_800 + 42_399]


@given(CHANCES)
def test_by_default_there_is_no_jitter(chance):
    assert after_failure(RULES, 3, NOW, None, chance) == due_after(3)


@pytest.mark.parametrize(
    ("asked", "due", "held"),
    [
        (1, 84_800, False),
        (84_799, 84_800, False),
        (84_800, 84_800, False),
        (84_801, 84_801, True),
        (HOUR, HOUR, True),
        (24 * HOUR + 84_800, 24 * HOUR + 84_800, True),
        (24 * HOUR + 84_801, 24 * HOUR + 84_800, True),
        (365 * 24 * HOUR, 24 * HOUR + 84_800, True),
        (-HOUR, 84_800, False),
    ],
)
def test_retry_after_only_pushes_later_and_at_most_24_h_past_the_schedule(asked, due, held):
    assert due_after(0, asked=NOW + asked) == RetryAt(1, NOW + due, held)


@given(RETRIES, st.integers(0, NOW * 2), CHANCES, st.floats(0, 1))
def test_retry_after_never_pulls_a_retry_forward_nor_past_24_h(retry, asked, chance, jitter):
    rules = replace(RULES, jitter=jitter)
    plain = after_failure(rules, retry, NOW, None, chance)
    pushed = after_failure(rules, retry, NOW, asked, chance)
    assert pushed.due == min(max(plain.due, asked), plain.due + 24 * HOUR)
    assert pushed.held == (pushed.due > plain.due)


def test_retry_after_moves_only_its_own_retry():
    pushed = due_after(0, asked=NOW + HOUR)
    assert due_after(1, ended_at=pushed.due) == RetryAt(2, pushed.due + 169_600, held=False)


@pytest.mark.parametrize(("born", "enabled_at"), [(NOW, 0), (NOW, NOW - 1), (NOW - 1, NOW), (NOW, NOW)])
def test_a_message_expires_one_span_after_the_latest_of_its_birth_and_its_circuits_enabling(born, enabled_at):
    assert expires_at(RULES, born, enabled_at) == NOW + SPAN


def test_expire_after_is_configured():
    assert expires_at(replace(RULES, expire_after=5), NOW, 0) == NOW + 5


def test_the_default_numbers_are_the_published_ones():
    assert RetryRules(84_800, 11, SPAN, jitter=0.0, retry_after_limit=24 * HOUR) == RULES


def test_the_default_expiry_is_the_span_of_the_schedule_48_h_13_min_5_6_s():
    assert RULES.expire_after == SPAN == sum(wait_before(RULES, retry) for retry in range(1, 12))


# places


def test_a_new_message_is_active_or_behind_the_others_of_its_lane() -> None:
    new = entry().message
    assert first_place(new) == Place(ACTIVE, new.born)
    assert first_place(new, behind_others=True) == Place(WAITING, new.born)


@pytest.mark.parametrize("behind_others", [False, True])
def test_a_delayed_message_is_held_until_its_time(behind_others: bool) -> None:
    delayed = entry(born=NOW + 5_000).message._replace(accepted_at=NOW)
    assert first_place(delayed, behind_others=behind_others) == Place(RETRY, delayed.born, delayed.born, held=True)


@pytest.mark.parametrize("standing", [WAITING, RETRY, DEAD])
def test_a_message_that_is_taken_over_keeps_its_place(standing: Standing) -> None:
    there = Place(standing, 7, 8, 2, 3, held=True)
    assert first_place(entry().message, there) == there


def test_a_message_that_was_active_elsewhere_waits_in_the_queue() -> None:
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


def test_retrying_now_moves_only_messages_with_a_due_time() -> None:
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
def test_the_state_that_operators_see(place: Place, circuit: CircuitState, state: MessageState) -> None:
    assert state_of(place, circuit) is state
