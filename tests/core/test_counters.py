"""Histograms and series."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.counters import BUCKET_WIDTH, BUCKETS, OPERATIONS, SECONDS, Distribution, Histogram, Series

NOW = 1_750_000_000_000 // BUCKET_WIDTH * BUCKET_WIDTH


def test_a_value_is_counted_under_the_first_bound_that_is_not_below_it() -> None:
    histogram = Histogram((1, 2, 4))
    for value in (0, 1, 1.5, 2, 4, 4.5, 100):
        histogram.observe(value)
    assert histogram.snapshot() == Distribution((1, 2, 4), (2, 2, 1, 2), 113)


def test_a_snapshot_does_not_change_any_more() -> None:
    histogram = Histogram((1,))
    before = histogram.snapshot()
    histogram.observe(0.5)
    assert before == Distribution((1,), (0, 0), 0)


@given(st.lists(st.floats(0, 100)))
def test_a_histogram_loses_nothing(values: list[float]) -> None:
    histogram = Histogram(SECONDS)
    for value in values:
        histogram.observe(value)
    bounds, counts, total = histogram.snapshot()
    assert sum(counts) == len(values)
    assert total == pytest.approx(sum(values))
    for index, bound in enumerate(bounds):
        assert sum(counts[: index + 1]) == sum(value <= bound for value in values)


@pytest.mark.parametrize("bounds", [SECONDS, OPERATIONS])
def test_bounds_ascend(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))


def test_a_series_is_a_rate_by_bucket_oldest_first() -> None:
    series = Series()
    for _ in range(10):
        series.add(NOW)
    series.add(NOW + BUCKET_WIDTH)
    rates = series.per_second(NOW + 2 * BUCKET_WIDTH)
    assert len(rates) == BUCKETS
    assert rates[-2:] == [10 * 1000 / BUCKET_WIDTH, 1000 / BUCKET_WIDTH]
    assert set(rates[:-2]) == {0}


def test_the_current_bucket_is_left_out() -> None:
    series = Series()
    series.add(NOW + BUCKET_WIDTH - 1)
    assert sum(series.per_second(NOW + BUCKET_WIDTH - 1)) == 0
    assert sum(series.per_second(NOW + BUCKET_WIDTH)) > 0


def test_counts_older_than_15_minutes_are_not_shown() -> None:
    series = Series()
    series.add(NOW)
    assert series.per_second(NOW + BUCKETS * BUCKET_WIDTH)[0] > 0
    assert sum(series.per_second(NOW + (BUCKETS + 1) * BUCKET_WIDTH)) == 0


def test_a_series_stays_small_however_long_it_runs() -> None:
    series = Series()
    for number in range(20 * BUCKETS):
        series.add(NOW + number * BUCKET_WIDTH)
        assert len(series._counts) <= BUCKETS + 2
    assert set(series.per_second(NOW + 20 * BUCKETS * BUCKET_WIDTH)) == {1000 / BUCKET_WIDTH}
