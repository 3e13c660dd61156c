"""The demo's clock jumps ahead, and never past a moment that somebody waits for."""

import pytest
import trio

from holdfast.clock import sleep_until
from holdfast.demo.fast_clock import FastClock

HOUR = 3_600_000


class StoppedClock:
    """A clock that stands still."""

    def now(self) -> int:
        return 0

    def deadline(self, moment: int) -> float:
        raise NotImplementedError


@pytest.fixture
async def clock(nursery: trio.Nursery) -> FastClock:
    fast = FastClock(StoppedClock())
    nursery.start_soon(fast.run, lambda: True)
    return fast


async def test_it_stops_at_every_moment_that_somebody_waits_for(
    clock: FastClock, autojump_clock: trio.testing.MockClock
) -> None:
    seen = []

    async def wait(moment: int) -> None:
        await sleep_until(clock, moment)
        seen.append((moment, clock.now()))

    with clock.hurry():
        async with trio.open_nursery() as nursery:
            for moment in (HOUR, 48 * HOUR + 7, HOUR + 60_000):
                nursery.start_soon(wait, moment)
    assert seen == [(HOUR, HOUR), (HOUR + 60_000, HOUR + 60_000), (48 * HOUR + 7, 48 * HOUR + 7)]


async def test_it_jumps_only_during_hurry(clock: FastClock, autojump_clock: trio.testing.MockClock) -> None:
    clock.deadline(HOUR)
    await trio.sleep(10)
    assert clock.now() == 0
    with clock.hurry():
        await trio.sleep(10)
    assert clock.now() == HOUR


async def test_it_does_not_jump_while_work_is_in_progress(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    under_way = [True]
    clock = FastClock(StoppedClock())
    nursery.start_soon(clock.run, lambda: not under_way[0])
    clock.deadline(HOUR)
    with clock.hurry():
        await trio.sleep(10)
        assert clock.now() == 0
        under_way[0] = False
        await trio.sleep(10)
    assert clock.now() == HOUR
