from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import build
from holdfast.core.message import DeadReason
from holdfast.core.schedule import Dead, RetryAt, RetryRules, after_failure, expires_at, wait_before
from tests.core.build import HOUR, MINUTE, NOW

RULES = build({}).retry
SPAN = 48 * HOUR + 13 * MINUTE + 5_600

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


def test_expire_after_is_the_configs():
    assert expires_at(replace(RULES, expire_after=5), NOW, 0) == NOW + 5


def test_the_default_numbers_are_the_published_ones():
    assert RetryRules(84_800, 11, SPAN, jitter=0.0, retry_after_limit=24 * HOUR) == RULES


def test_the_default_expiry_is_the_schedules_own_span_of_48_h_13_min_5_6_s():
    assert RULES.expire_after == SPAN == sum(wait_before(RULES, retry) for retry in range(1, 12))
