"""Which messages a store has no room for, and how many attempts it keeps."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.message import Attempt, AttemptKind, Fault
from holdfast.core.store_rules import (
    MESSAGE_COST,
    cost_of,
    is_kept,
    keeps_answer,
    kept_attempts,
    refusal,
    truncated_attempt,
)
from tests.core.build import entry

MESSAGE = entry("h:443").message._replace(body=b"x" * 100)

texts = st.none() | st.text(max_size=400)
attempts = st.builds(
    Attempt,
    number=st.integers(1, 1 << 40),
    kind=st.sampled_from(AttemptKind),
    at=st.just(1),
    duration=st.just(1),
    address=texts,
    detail=texts,
    fault=st.just(Fault.HOST),
    answer=st.none() | st.binary(max_size=2_000),
)


def test_a_message_costs_its_body_and_a_fixed_part() -> None:
    assert cost_of(MESSAGE) == MESSAGE_COST + 100


def test_a_full_store_refuses_everyone() -> None:
    full = refusal(MESSAGE, is_full=True, held=0, share=1e9)
    assert full is not None
    assert full.host is None


def test_a_host_may_fill_its_share_and_no_more() -> None:
    held, share = 10_000, 10_000 + cost_of(MESSAGE)
    assert refusal(MESSAGE, is_full=False, held=held, share=share) is None
    over = refusal(MESSAGE, is_full=False, held=held + 1, share=share)
    assert over is not None
    assert over.host == "h:443"


@given(attempts)
def test_a_truncated_attempt_has_the_beginning_of_each_text(attempt: Attempt) -> None:
    kept = truncated_attempt(attempt)
    for text, whole, limit in ((kept.address, attempt.address, 56), (kept.detail, attempt.detail, 144)):
        assert (text is None) == (whole is None)
        if text is not None and whole is not None:
            assert whole.startswith(text)
            assert min(limit - 3, len(whole.encode())) <= len(text.encode()) <= limit
    assert truncated_attempt(kept) == kept


def test_the_default_schedule_keeps_every_attempt() -> None:
    assert all(is_kept(number, 12) for number in range(1, 13))


@given(st.integers(1, 500))
def test_the_first_and_the_last_attempts_are_kept(latest: int) -> None:
    kept = [number for number in range(1, latest + 1) if is_kept(number, latest)]
    assert kept == sorted({1, *range(max(1, latest - 14), latest + 1)})
    assert [number for number in kept if keeps_answer(number, latest)] == sorted({1, max(1, latest - 1), latest})


@given(st.lists(attempts, max_size=60, unique_by=lambda attempt: attempt.number))
def test_imported_attempts_are_bounded_too(history: list[Attempt]) -> None:
    kept = kept_attempts(history)
    assert len(kept) <= 16
    assert sum(attempt.answer is not None for attempt in kept) <= 3
    assert {attempt.number for attempt in kept} <= {attempt.number for attempt in history}
