from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import format_duration, format_size, parse_duration, parse_size
from holdfast.config.readers import DURATIONS, LARGEST_SIZE, LONGEST_DURATION, SIZES


@given(st.integers(0, LONGEST_DURATION))
def test_durations_survive_the_round_trip(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds)) == milliseconds


@given(st.integers(0, LARGEST_SIZE))
def test_sizes_survive_the_round_trip(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.integers(1, 36_500), st.sampled_from(sorted(DURATIONS)))
def test_no_whole_spelling_of_a_duration_is_shorter(count: int, unit: str) -> None:
    assert len(format_duration(count * DURATIONS[unit])) <= len(f"{count}{unit}")


@given(st.integers(1, 1024), st.sampled_from(sorted(SIZES)))
def test_no_whole_spelling_of_a_size_is_shorter(count: int, unit: str) -> None:
    assert len(format_size(count * SIZES[unit])) <= len(f"{count}{unit}")


@given(st.text())
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        milliseconds = parse_duration(text)
    except ValueError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert 0 <= milliseconds <= LONGEST_DURATION


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0s", 0),
        ("250ms", 250),
        ("30s", 30_000),
        ("10m", 600_000),
        ("48h", 172_800_000),
        ("30d", 2_592_000_000),
        ("84800ms", 84_800),
        ("84.8s", 84_800),
        ("1.5s", 1_500),
        ("0.001s", 1),
        ("1.0ms", 1),
        ("36500d", LONGEST_DURATION),
    ],
)
def test_parse_duration(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize(
    "text",
    [
        *("", "0", "30", "s", "-1s", "+1s", "1.5ms", "0.0001s", "1.s", ".5s", "nan", "NaNs", "infs", "1e3s"),
        *("1 s", " 1s", "1s ", "1s\n", "1S", "1w", "1s1s", "٣s", "1_000s", "0x10s"),
        *("36500.1d", "9" * 18 + "d", "9" * 5000 + "s"),
    ],
)
def test_bad_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration|is longer than 100 years"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0s"),
        (84_800, "84800ms"),
        (600_000, "10m"),
        (90_000, "90s"),
        (172_800_000, "2d"),
        (3_600_000, "1h"),
    ],
)
def test_format_duration(milliseconds: int, text: str) -> None:
    assert format_duration(milliseconds) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [("0B", 0), ("512B", 512), ("1KiB", 1024), ("1MiB", 2**20), ("1.5GiB", 3 * 2**29), ("2TiB", 2**41)],
)
def test_parse_size(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "1", "1MB", "1mib", "-1B", "0.5B", "1 MiB", "1025TiB", "MiB", "1MiB\n"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size|is larger than"):
        parse_size(text)
