"""What is kept of a message's attempts is bounded, whatever came before."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.message import Attempt, AttemptKind, Fault
from holdfast.core.store_rules import is_kept, keeps_answer, kept_attempts, truncated_attempt

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


@given(attempts)
def test_a_recorded_attempt_is_the_beginning_of_what_happened(attempt: Attempt) -> None:
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
def test_a_history_from_elsewhere_is_bounded_too(history: list[Attempt]) -> None:
    kept = kept_attempts(history)
    assert len(kept) <= 16
    assert sum(attempt.answer is not None for attempt in kept) <= 3
    assert {attempt.number for attempt in kept} <= {attempt.number for attempt in history}
