from datetime import UTC, datetime

import pytest

from holdfast.cli.command_error import clean
from holdfast.cli.output import (
    WIDTH,
    TextTable,
    absolute,
    count,
    facts,
    format_duration,
    human_size,
    painted,
    relative,
    shortened,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("2026-01-01T12:00:00.000Z", "now"),
        ("2026-01-01T12:00:00.900Z", "now"),
        ("2026-01-01T11:59:59.100Z", "now"),
        ("2026-01-01T12:00:01.000Z", "in 1s"),
        ("2026-01-01T11:59:01.000Z", "59s ago"),
        ("2026-01-01T11:59:00.000Z", "1m ago"),
        ("2026-01-01T12:04:14.000Z", "in 4m"),
        ("2026-01-01T09:00:00.000Z", "3h ago"),
        ("2026-01-03T12:13:05.600Z", "in 48h"),
        ("2026-01-03T13:00:00.000Z", "in 2d"),
        ("2025-12-02T12:00:00.000Z", "30d ago"),
        (None, "-"),
    ],
)
def test_relative(moment: str | None, expected: str) -> None:
    assert relative(moment, NOON) == expected


def test_absolute() -> None:
    assert absolute("2026-01-01T08:59:59.877Z", NOON) == "2026-01-01 08:59:59 UTC (3h ago)"
    assert absolute(None, NOON) == "-"


def test_format_duration() -> None:
    assert [format_duration(seconds) for seconds in (0.0, 0.0124, 0.9, 1.0, 30.04)] == [
        "0ms",
        "12ms",
        "900ms",
        "1.0s",
        "30.0s",
    ]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1234, "1.2 KiB"),
        (4 << 30, "4 GiB"),
        (5 << 50, "5120 TiB"),
    ],
)
def test_human_size(size: int, expected: str) -> None:
    assert human_size(size) == expected


def test_count() -> None:
    assert [count(number, "message") for number in (0, 1, 1_204)] == ["0 messages", "1 message", "1,204 messages"]


def test_shortened() -> None:
    assert shortened("12345", 5) == "12345"
    assert shortened("123456", 5) == "1234…"


def test_terminal_codes_are_escaped() -> None:
    assert clean("a\x1b[31mb\nc\u202ed\u0000 grün") == r"a\x1b[31mb\nc\u202ed\x00 grün"


def test_table_aligns_columns_and_numbers_to_the_right() -> None:
    lines = TextTable(("STATE", "COUNT", "HOST"), right=("COUNT",)).lines(
        [("frozen", "7", "a:1"), ("x", "1,204", "b:2")]
    )
    assert lines == [
        "STATE   COUNT  HOST",
        "frozen      7  a:1",
        "x       1,204  b:2",
    ]


def test_table_in_pages_has_one_heading_and_columns_only_grow() -> None:
    table = TextTable(("NAME", "HOST"))
    assert table.lines([("long name", "a")]) == ["NAME       HOST", "long name  a"]
    assert table.lines([("b", "c")]) == ["b          c"]
    assert table.lines([]) == []


def test_table_wraps_its_last_column_and_keeps_words_whole() -> None:
    address = "x" * 120
    lines = TextTable(("#", "DETAIL")).lines([("1", "word " * 40), ("2", address)])
    assert lines[1] == "1  " + " ".join(["word"] * 19)
    assert lines[2] == "   " + " ".join(["word"] * 19)
    assert lines[-1] == f"2  {address}"
    assert all(len(line) <= WIDTH for line in lines[:-1])


def test_table_colours_states_without_losing_alignment() -> None:
    lines = TextTable(("STATE", "HOST"), colour=True).lines([("frozen", "frozen"), ("enabled", "b")])
    assert lines == ["STATE    HOST", "\x1b[31mfrozen \x1b[0m  frozen", "\x1b[32menabled\x1b[0m  b"]


def test_table_shows_codes_in_cells_as_text() -> None:
    assert TextTable(("A", "B")).lines([("\x1b[2J", "\r")])[1] == r"\x1b[2J  \r"


def test_facts() -> None:
    assert facts([("a", "1"), ("label", "word " * 30)]) == [
        "a      1",
        "label  " + " ".join(["word"] * 18),
        "       " + " ".join(["word"] * 12),
    ]


def test_painted() -> None:
    assert painted("frozen", True) == "\x1b[31mfrozen\x1b[0m"
    assert painted("frozen", False) == "frozen"
    assert painted("unheard of", True) == "unheard of"
