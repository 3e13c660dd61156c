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
from holdfast.log import setup
from holdfast.news import KEPT_FOR_A_LISTENER, LATEST_FAILURES, LINES_BEFORE_SUMMING, SUMMING_OVER, Event, News

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
