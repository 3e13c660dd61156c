"""Pages end at their limits and say where the next one begins."""

from collections.abc import Iterator

import pytest

from holdfast.store import batching
from holdfast.store.batching import choose, choose_lanes
from holdfast.store.port import ALL_CLASSES, Agenda

TEN = [(number, number * 10) for number in range(10)]


def even(key: int, value: int) -> int | None:
    return value if key % 2 == 0 else None


def test_a_page_ends_at_its_limit_and_says_where_to_go_on() -> None:
    assert choose(TEN, 3, even) == ([0, 20, 40], 4, 5)


def test_the_last_page_has_no_next_one() -> None:
    assert choose(TEN, 5, even) == ([0, 20, 40, 60, 80], 8, 9), "there may be one more"
    assert choose(TEN, 6, even) == ([0, 20, 40, 60, 80], None, None)


def test_a_filter_that_matches_few_ends_its_page_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "LOOKED_AT", 4)
    assert choose(TEN, 5, lambda key, value: None) == ([], 3, 4)


def test_no_more_is_read_after_so_many_bytes_and_at_least_one_is() -> None:
    big = choose(TEN, 5, even, size_of=lambda found: 100, most_bytes=150)
    assert big == ([0, 20], 2, 3)
    assert choose(TEN, 5, even, size_of=lambda found: 100, most_bytes=0)[0] == [0]


def moments(*at: int) -> Iterator[tuple[int, str, int]]:
    for number, moment in enumerate(at):
        yield moment, f"lane {number}", 1


def agenda(*at: int, limit: int = 9, since: int = 0) -> Agenda:
    return choose_lanes(moments(*at), 50, limit, {"lane 1"}, ALL_CLASSES, since, lambda lane: lane)


def test_lanes_are_chosen_up_to_now_without_those_to_skip() -> None:
    assert agenda(10, 20, 30, 60) == Agenda(["lane 0", "lane 2"], 60)
    assert agenda(10, 20, 30, limit=1) == Agenda(["lane 0"], 20)
    assert agenda(10, 20) == Agenda(["lane 0"], None)


def test_all_lanes_of_one_moment_are_looked_at_however_many_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "MOMENTS_A_READ", 2)
    assert agenda(10, 10, 10, 20, since=10) == Agenda(["lane 0", "lane 2"], 20)
    assert agenda(10, 10, 10, 20, since=5) == Agenda(["lane 0"], 10)
