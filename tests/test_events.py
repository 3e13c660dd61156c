"""What happens is told to the log, with storms summed up, and to live listeners, who never hold anyone up."""

import json
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from io import StringIO
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.clock import TrioClock
from holdfast.events import (
    KEPT_FOR_A_LISTENER,
    LATEST_FAILURES,
    LINES_A_SECOND,
    LINES_BEFORE_SUMMING,
    ROUTINE_LINES_A_SECOND,
    STORMS_KEPT,
    SUMMING_OVER,
    Event,
    News,
)
from holdfast.process.log import setup

START = 1_750_000_000_000
MINUTE = SUMMING_OVER / 1000


@pytest.fixture
async def news() -> News:
    return News(TrioClock(START))


@pytest.fixture
def log() -> Iterator[StringIO]:
    root, ours = logging.getLogger(), logging.getLogger("holdfast")
    before = root.handlers[:], root.level, ours.level
    stream = StringIO()
    setup("json", "info", stream)
    yield stream
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def lines(log: StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def fail(news: News, times: int, host: str = "a:443", **about: object) -> None:
    for number in range(times):
        news.tell(logging.WARNING, "attempt_failed", host=host, number=number, **about)


async def hear(listening: AsyncGenerator[Event, None], count: int) -> list[Event]:
    with trio.fail_after(30):
        return [await anext(listening) for _ in range(count)]


async def listening_to(news: News, nursery: trio.Nursery) -> AsyncGenerator[Event, None]:
    """A listener that is registered: a generator begins with its first `anext`, so it is given one event."""
    events = news.listen()
    nursery.start_soon(anext, events)
    await wait_all_tasks_blocked()
    news.show("hello")
    await wait_all_tasks_blocked()
    return events


async def test_few_lines_are_all_told(news: News, log: StringIO) -> None:
    fail(news, LINES_BEFORE_SUMMING)
    assert [line["event"] for line in lines(log)] == ["attempt_failed"] * LINES_BEFORE_SUMMING
    assert lines(log)[0]["level"] == "warning"


async def test_a_storm_is_summed_up_when_its_minute_is_over(
    news: News, log: StringIO, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(news.run)
        fail(news, LINES_BEFORE_SUMMING + 500, error="timeout")
        assert len(lines(log)) == LINES_BEFORE_SUMMING
        await trio.sleep(MINUTE + 1)
        *_, last = told = lines(log)
        assert len(told) == LINES_BEFORE_SUMMING + 1
        assert last["event"] == "repeated"
        assert (last["of"], last["times"], last["host"], last["error"]) == ("attempt_failed", 500, "a:443", "timeout")
        assert last["level"] == "warning"
        nursery.cancel_scope.cancel()


async def test_the_next_minute_begins_anew(news: News, log: StringIO, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(news.run)
        fail(news, LINES_BEFORE_SUMMING + 1)
        await trio.sleep(MINUTE + 1)
        fail(news, LINES_BEFORE_SUMMING)
        assert len(lines(log)) == 2 * LINES_BEFORE_SUMMING + 1
        nursery.cancel_scope.cancel()


async def test_each_host_status_error_and_event_has_its_own_count(news: News, log: StringIO) -> None:
    storms: list[dict[str, object]] = [{"error": "timeout"}, {"error": "dns"}, {"status": 500}, {"status": 503}]
    for about in storms:
        fail(news, LINES_BEFORE_SUMMING, **about)
    fail(news, LINES_BEFORE_SUMMING, host="b:443", status=500)
    for _ in range(LINES_BEFORE_SUMMING):
        news.tell(logging.ERROR, "message_dead", host="a:443")
    assert len(lines(log)) == LINES_BEFORE_SUMMING * 6


async def test_without_a_storm_nothing_runs(news: News, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(news.run)
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == float("inf")
        nursery.cancel_scope.cancel()


async def test_live_listeners_get_every_one_of_a_storm(news: News, log: StringIO) -> None:
    async with trio.open_nursery() as nursery:
        first, second = await listening_to(news, nursery), await listening_to(news, nursery)
        await hear(first, 1)
        fail(news, LINES_BEFORE_SUMMING * 3)
        for events in (first, second):
            async with aclosing(events):
                heard = await hear(events, LINES_BEFORE_SUMMING * 3)
            assert [event["number"] for event in heard] == list(range(LINES_BEFORE_SUMMING * 3))
            assert heard[0].keys() == {"time", "event", "host", "number"}
    assert len(lines(log)) == LINES_BEFORE_SUMMING


async def test_a_slow_listener_loses_events_and_is_told_how_many(news: News) -> None:
    async with trio.open_nursery() as nursery:
        events = await listening_to(news, nursery)
        for number in range(KEPT_FOR_A_LISTENER + 7):
            news.show("accepted", number=number)
        async with aclosing(events):
            heard = await hear(events, KEPT_FOR_A_LISTENER)
            assert [event["number"] for event in heard] == list(range(KEPT_FOR_A_LISTENER))
            assert await hear(events, 1) == [{"event": "events_lost", "count": 7}]
            news.show("accepted", number=-1)
            assert (await hear(events, 1))[0]["number"] == -1, "and then goes on"


async def test_who_left_is_not_told_any_more(news: News) -> None:
    async with trio.open_nursery() as nursery:
        events = await listening_to(news, nursery)
        assert news.has_listeners
        await events.aclose()
        assert not news.has_listeners


async def test_what_is_shown_is_not_logged_and_what_is_told_is_shown(news: News, log: StringIO) -> None:
    async with trio.open_nursery() as nursery:
        events = await listening_to(news, nursery)
        news.show("delivered", host="a:443")
        news.tell(logging.INFO, "circuit_forgotten", host="a:443")
        async with aclosing(events):
            assert [event["event"] for event in await hear(events, 2)] == ["delivered", "circuit_forgotten"]
    assert [line["event"] for line in lines(log)] == ["circuit_forgotten"]


async def test_the_latest_failures_are_kept_and_only_they(news: News, log: StringIO) -> None:
    fail(news, LATEST_FAILURES + 5)
    news.tell(logging.INFO, "circuit_forgotten", host="a:443")
    assert [event["number"] for event in news.failures] == list(range(5, LATEST_FAILURES + 5))


# -- thousands of hosts ------------------------------------------------------------------------------------------------


class CountedMoment(int):
    """A time that counts how often a difference to it is taken."""

    taken = 0

    def __sub__(self, other: int) -> int:
        CountedMoment.taken += 1
        return int(self) - other


class CountedClock(TrioClock):
    def now(self) -> int:
        return CountedMoment(super().now())


async def test_an_event_costs_the_same_however_many_hosts_fail(log: StringIO) -> None:
    """Each storm that is looked at takes one difference of times."""
    hosts = 2_000
    news = News(CountedClock(START))
    CountedMoment.taken = 0
    for number in range(hosts):
        fail(news, 1, f"host-{number}:443")
    assert CountedMoment.taken < 10 * hosts


async def test_storms_end_with_a_count_though_many_began_before_them(
    news: News, log: StringIO, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(news.run)
        for number in range(50):
            fail(news, 1, f"host-{number}:443")
        await trio.sleep(1)
        fail(news, LINES_BEFORE_SUMMING + 3, "late:443")
        await trio.sleep(MINUTE + 1)
        repeated = [line for line in lines(log) if line["event"] == "repeated"]
        assert [(line["host"], line["times"]) for line in repeated] == [("late:443", 3)]
        nursery.cancel_scope.cancel()


async def test_the_oldest_storm_ends_early_when_there_are_too_many(
    news: News, log: StringIO, autojump_clock: MockClock
) -> None:
    fail(news, LINES_BEFORE_SUMMING + 3, "first:443")
    for number in range(STORMS_KEPT - 1):
        fail(news, 1, f"host-{number}:443")
    await trio.sleep(1)
    fail(news, 1, "first:443")
    assert lines(log)[-1]["host"] != "first:443", "it is still kept"
    fail(news, 1, "one-too-many:443")
    *_, repeated, another = lines(log)
    assert (repeated["event"], repeated["host"], repeated["times"]) == ("repeated", "first:443", 4)
    assert another["host"] == "one-too-many:443"


async def test_a_second_has_a_limit_of_lines_and_one_that_counts_the_rest(
    news: News, log: StringIO, autojump_clock: MockClock
) -> None:
    seconds, hosts = 3, 5_000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(news.run)
        for second in range(seconds):
            for number in range(hosts):
                fail(news, 1, f"host-{second}-{number}:443")
            await trio.sleep(1)
        await trio.sleep(1)
        counts = [line for line in lines(log) if line["event"] == "lines_left_out"]
        failures = [line for line in lines(log) if line["event"] == "attempt_failed"]
        assert len(failures) == seconds * ROUTINE_LINES_A_SECOND
        assert len(counts) <= seconds + 1
        assert sum(line["lines"] for line in counts) == seconds * hosts - len(failures)
        assert counts[0]["events"] == {"attempt_failed": counts[0]["lines"]}
        assert counts[0]["level"] == "warning"
        nursery.cancel_scope.cancel()


async def test_a_minute_of_storms_ends_within_the_limit_too(
    news: News, log: StringIO, autojump_clock: MockClock
) -> None:
    hosts = 1_000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(news.run)
        for number in range(hosts):
            fail(news, LINES_BEFORE_SUMMING + 1, f"host-{number}:443")
        await trio.sleep(MINUTE + 2)
        told = [line["event"] for line in lines(log)]
        assert told.count("repeated") == ROUTINE_LINES_A_SECOND
        assert lines(log)[-1]["events"] == {"repeated": hosts - ROUTINE_LINES_A_SECOND}
        nursery.cancel_scope.cancel()


async def test_failing_hosts_leave_room_for_circuits_and_the_store_is_never_left_out(news: News, log: StringIO) -> None:
    for number in range(1_000):
        fail(news, 1, f"host-{number}:443")
        news.tell(logging.ERROR, "message_dead", host=f"host-{number}:443")
    for number in range(1_000):
        news.tell(logging.WARNING, "circuit_changed", host=f"host-{number}:443")
    news.tell(logging.WARNING, "store_away", detail="no connection")
    told = [line["event"] for line in lines(log)]
    assert told.count("circuit_changed") == LINES_A_SECOND - ROUTINE_LINES_A_SECOND
    assert told[-1] == "store_away"
    assert len(told) == LINES_A_SECOND + 1


async def test_live_listeners_get_what_the_log_has_no_room_for(news: News, log: StringIO) -> None:
    async with trio.open_nursery() as nursery:
        events = await listening_to(news, nursery)
        for number in range(2 * LINES_A_SECOND):
            fail(news, 1, f"host-{number}:443")
        async with aclosing(events):
            heard = await hear(events, 2 * LINES_A_SECOND)
        assert [event["host"] for event in heard] == [f"host-{number}:443" for number in range(2 * LINES_A_SECOND)]


async def test_lines_below_the_level_take_no_room(news: News, log: StringIO) -> None:
    logging.getLogger("holdfast").setLevel(logging.ERROR)
    for number in range(LINES_A_SECOND):
        news.tell(logging.WARNING, "circuit_changed", host=f"host-{number}:443")
    news.tell(logging.ERROR, "messages_expired", host="a:443")
    assert [line["event"] for line in lines(log)] == ["messages_expired"]
