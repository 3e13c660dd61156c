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

from holdfast.events import (
    KEPT_FOR_A_LISTENER,
    LATEST_FAILURES,
    LINES_A_SECOND,
    LINES_BEFORE_SUMMING,
    ROUTINE_LINES_A_SECOND,
    STORMS_KEPT,
    SUMMING_OVER,
    Event,
    Events,
)
from holdfast.process.log import setup
from tests.support.trio_clock import TrioClock

START = 1_750_000_000_000
MINUTE = SUMMING_OVER / 1000


@pytest.fixture
async def events() -> Events:
    return Events(TrioClock(START))


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


def fail(events: Events, times: int, host: str = "a:443", **about: object) -> None:
    for number in range(times):
        events.log(logging.WARNING, "attempt_failed", host=host, number=number, **about)


async def hear(listening: AsyncGenerator[Event, None], count: int) -> list[Event]:
    with trio.fail_after(30):
        return [await anext(listening) for _ in range(count)]


async def listening_to(events: Events, nursery: trio.Nursery) -> AsyncGenerator[Event, None]:
    """A listener that is registered: a generator begins with its first `anext`, so it is given one event."""
    stream = events.listen()
    nursery.start_soon(anext, stream)
    await wait_all_tasks_blocked()
    events.publish("hello")
    await wait_all_tasks_blocked()
    return stream


async def test_few_lines_are_all_told(events: Events, log: StringIO) -> None:
    fail(events, LINES_BEFORE_SUMMING)
    assert [line["event"] for line in lines(log)] == ["attempt_failed"] * LINES_BEFORE_SUMMING
    assert lines(log)[0]["level"] == "warning"


async def test_a_storm_is_summed_up_when_its_minute_is_over(
    events: Events, log: StringIO, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(events.run)
        fail(events, LINES_BEFORE_SUMMING + 500, error="timeout")
        assert len(lines(log)) == LINES_BEFORE_SUMMING
        await trio.sleep(MINUTE + 1)
        *_, last = told = lines(log)
        assert len(told) == LINES_BEFORE_SUMMING + 1
        assert last["event"] == "repeated"
        assert (last["of"], last["times"], last["host"], last["error"]) == ("attempt_failed", 500, "a:443", "timeout")
        assert last["level"] == "warning"
        nursery.cancel_scope.cancel()


async def test_the_next_minute_begins_anew(events: Events, log: StringIO, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(events.run)
        fail(events, LINES_BEFORE_SUMMING + 1)
        await trio.sleep(MINUTE + 1)
        fail(events, LINES_BEFORE_SUMMING)
        assert len(lines(log)) == 2 * LINES_BEFORE_SUMMING + 1
        nursery.cancel_scope.cancel()


async def test_each_host_status_error_and_event_has_its_own_count(events: Events, log: StringIO) -> None:
    storms: list[dict[str, object]] = [{"error": "timeout"}, {"error": "dns"}, {"status": 500}, {"status": 503}]
    for about in storms:
        fail(events, LINES_BEFORE_SUMMING, **about)
    fail(events, LINES_BEFORE_SUMMING, host="b:443", status=500)
    for _ in range(LINES_BEFORE_SUMMING):
        events.log(logging.ERROR, "message_dead", host="a:443")
    assert len(lines(log)) == LINES_BEFORE_SUMMING * 6


async def test_without_a_storm_nothing_runs(events: Events, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(events.run)
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == float("inf")
        nursery.cancel_scope.cancel()


async def test_live_listeners_get_every_one_of_a_storm(events: Events, log: StringIO) -> None:
    async with trio.open_nursery() as nursery:
        first, second = await listening_to(events, nursery), await listening_to(events, nursery)
        await hear(first, 1)
        fail(events, LINES_BEFORE_SUMMING * 3)
        for stream in (first, second):
            async with aclosing(stream):
                heard = await hear(stream, LINES_BEFORE_SUMMING * 3)
            assert [event["number"] for event in heard] == list(range(LINES_BEFORE_SUMMING * 3))
            assert heard[0].keys() == {"time", "event", "host", "number"}
    assert len(lines(log)) == LINES_BEFORE_SUMMING


async def test_a_slow_listener_loses_events_and_is_told_how_many(events: Events) -> None:
    async with trio.open_nursery() as nursery:
        stream = await listening_to(events, nursery)
        for number in range(KEPT_FOR_A_LISTENER + 7):
            events.publish("accepted", number=number)
        async with aclosing(stream):
            heard = await hear(stream, KEPT_FOR_A_LISTENER)
            assert [event["number"] for event in heard] == list(range(KEPT_FOR_A_LISTENER))
            assert await hear(stream, 1) == [{"event": "events_lost", "count": 7}]
            events.publish("accepted", number=-1)
            assert (await hear(stream, 1))[0]["number"] == -1, "and then goes on"


async def test_who_left_is_not_told_any_more(events: Events) -> None:
    async with trio.open_nursery() as nursery:
        stream = await listening_to(events, nursery)
        assert events.has_listeners
        await stream.aclose()
        assert not events.has_listeners


async def test_what_is_shown_is_not_logged_and_what_is_told_is_shown(events: Events, log: StringIO) -> None:
    async with trio.open_nursery() as nursery:
        stream = await listening_to(events, nursery)
        events.publish("delivered", host="a:443")
        events.log(logging.INFO, "circuit_forgotten", host="a:443")
        async with aclosing(stream):
            assert [event["event"] for event in await hear(stream, 2)] == ["delivered", "circuit_forgotten"]
    assert [line["event"] for line in lines(log)] == ["circuit_forgotten"]


async def test_the_latest_failures_are_kept_and_only_they(events: Events, log: StringIO) -> None:
    fail(events, LATEST_FAILURES + 5)
    events.log(logging.INFO, "circuit_forgotten", host="a:443")
    assert [event["number"] for event in events.failures] == list(range(5, LATEST_FAILURES + 5))


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
    events = Events(CountedClock(START))
    CountedMoment.taken = 0
    for number in range(hosts):
        fail(events, 1, f"host-{number}:443")
    assert CountedMoment.taken < 10 * hosts


async def test_storms_end_with_a_count_though_many_began_before_them(
    events: Events, log: StringIO, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(events.run)
        for number in range(50):
            fail(events, 1, f"host-{number}:443")
        await trio.sleep(1)
        fail(events, LINES_BEFORE_SUMMING + 3, "late:443")
        await trio.sleep(MINUTE + 1)
        repeated = [line for line in lines(log) if line["event"] == "repeated"]
        assert [(line["host"], line["times"]) for line in repeated] == [("late:443", 3)]
        nursery.cancel_scope.cancel()


async def test_the_oldest_storm_ends_early_when_there_are_too_many(
    events: Events, log: StringIO, autojump_clock: MockClock
) -> None:
    fail(events, LINES_BEFORE_SUMMING + 3, "first:443")
    for number in range(STORMS_KEPT - 1):
        fail(events, 1, f"host-{number}:443")
    await trio.sleep(1)
    fail(events, 1, "first:443")
    assert lines(log)[-1]["host"] != "first:443", "it is still kept"
    fail(events, 1, "one-too-many:443")
    *_, repeated, another = lines(log)
    assert (repeated["event"], repeated["host"], repeated["times"]) == ("repeated", "first:443", 4)
    assert another["host"] == "one-too-many:443"


async def test_a_second_has_a_limit_of_lines_and_one_that_counts_the_rest(
    events: Events, log: StringIO, autojump_clock: MockClock
) -> None:
    seconds, hosts = 3, 5_000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(events.run)
        for second in range(seconds):
            for number in range(hosts):
                fail(events, 1, f"host-{second}-{number}:443")
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
    events: Events, log: StringIO, autojump_clock: MockClock
) -> None:
    hosts = 1_000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(events.run)
        for number in range(hosts):
            fail(events, LINES_BEFORE_SUMMING + 1, f"host-{number}:443")
        await trio.sleep(MINUTE + 2)
        told = [line["event"] for line in lines(log)]
        assert told.count("repeated") == ROUTINE_LINES_A_SECOND
        assert lines(log)[-1]["events"] == {"repeated": hosts - ROUTINE_LINES_A_SECOND}
        nursery.cancel_scope.cancel()


async def test_failing_hosts_leave_room_for_circuits_and_the_store_is_never_left_out(
    events: Events, log: StringIO
) -> None:
    for number in range(1_000):
        fail(events, 1, f"host-{number}:443")
        events.log(logging.ERROR, "message_dead", host=f"host-{number}:443")
    for number in range(1_000):
        events.log(logging.WARNING, "circuit_changed", host=f"host-{number}:443")
    events.log(logging.WARNING, "store_away", detail="no connection")
    told = [line["event"] for line in lines(log)]
    assert told.count("circuit_changed") == LINES_A_SECOND - ROUTINE_LINES_A_SECOND
    assert told[-1] == "store_away"
    assert len(told) == LINES_A_SECOND + 1


async def test_live_listeners_get_what_the_log_has_no_room_for(events: Events, log: StringIO) -> None:
    async with trio.open_nursery() as nursery:
        stream = await listening_to(events, nursery)
        for number in range(2 * LINES_A_SECOND):
            fail(events, 1, f"host-{number}:443")
        async with aclosing(stream):
            heard = await hear(stream, 2 * LINES_A_SECOND)
        assert [event["host"] for event in heard] == [f"host-{number}:443" for number in range(2 * LINES_A_SECOND)]


async def test_lines_below_the_level_take_no_room(events: Events, log: StringIO) -> None:
    logging.getLogger("holdfast").setLevel(logging.ERROR)
    for number in range(LINES_A_SECOND):
        events.log(logging.WARNING, "circuit_changed", host=f"host-{number}:443")
    events.log(logging.ERROR, "messages_expired", host="a:443")
    assert [line["event"] for line in lines(log)] == ["messages_expired"]
