"""What the process tells of itself."""

import trio

from holdfast.clock import BootClock
from holdfast.lifecycle import watch_clock


class JumpingClock(BootClock):
    """A wall clock that is set by hand."""

    away = 0

    def drift(self) -> int:
        return self.away


async def test_a_jump_of_the_wall_clock_is_told_once_and_drifting_is_not(autojump_clock: object) -> None:
    clock, told = JumpingClock(), []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_clock, clock, told.append)
        await trio.sleep(90)
        clock.away = 500
        await trio.sleep(60)
        assert told == []
        clock.away = -172_800_000
        await trio.sleep(300)
        assert told == [-172_800.0]
        nursery.cancel_scope.cancel()
