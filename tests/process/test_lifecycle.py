"""What the process tells of itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from holdfast.process.lifecycle import watch_clock
from tests.support.trio_clock import TrioClock

DAY = 86_400_000
LOOKS = 300
"""Seconds in which the clock is looked at a few times."""


class OffClock(TrioClock):
    """Holdfast's own time is `ahead` of the wall clock; negative if it is behind."""

    ahead = 0

    def wall(self) -> int:
        return self.now() - self.ahead


@asynccontextmanager
async def watched(ahead: int = 0) -> AsyncIterator[tuple[OffClock, list[int]]]:
    clock, told = OffClock(0), []
    clock.ahead = ahead
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_clock, clock, told.append)
        await trio.sleep(LOOKS)
        yield clock, told
        nursery.cancel_scope.cancel()


async def test_a_clock_that_is_off_at_the_start_is_told_of_at_once_and_once(autojump_clock: object) -> None:
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        clock = OffClock(0)
        clock.ahead = 3 * DAY

        def tell(offset: int) -> None:
            assert (offset, trio.current_time()) == (3 * DAY, began)
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch_clock, clock, tell)
    async with watched(3 * DAY) as (_, told):
        assert told == [3 * DAY]


async def test_each_jump_is_told_of_once_and_so_is_a_clock_that_is_right_again(autojump_clock: object) -> None:
    async with watched() as (clock, told):
        for clock.ahead in (-2 * DAY, -2 * DAY + 5_000, DAY, 1):
            await trio.sleep(LOOKS)
        assert told == [-2 * DAY, -2 * DAY + 5_000, DAY, 1]


async def test_what_time_services_and_leap_seconds_do_is_not_told_of(autojump_clock: object) -> None:
    async with watched() as (clock, told):
        for clock.ahead in (1, -400, 1_000, 0, -1_000, 1_999):
            await trio.sleep(LOOKS)
        assert told == []


async def test_a_clock_near_the_limit_is_not_told_of_again_and_again(autojump_clock: object) -> None:
    async with watched() as (clock, told):
        for clock.ahead in (2_001, 1_999, 2_001, 1_500, 2_100, 999, 1_500, 0):
            await trio.sleep(LOOKS)
        assert told == [2_001, 999]
