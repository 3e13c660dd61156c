"""The only one who asks what time it is.

Within a run, time is the wall clock at start plus the boot-time clock since, which counts suspend: jumps of the wall
clock are not followed. At start a wall clock behind the last stored time continues from the stored one; one ahead is
believed.
"""

import time
from typing import Protocol

import trio

LONGEST_SLEEP = 60_000
"""trio's clock stands still while a machine is suspended: nobody sleeps longer without looking at the time."""


class Clock(Protocol):
    """Milliseconds since 1970, and when to look at them again."""

    def now(self) -> int: ...

    def deadline(self, moment: int) -> float:
        """The moment in trio's time, or something earlier: whoever waits for it looks at the time again."""


class BootClock:
    """The real one."""

    def __init__(self, last_stored: int = 0) -> None:
        wall = time.time_ns() // 1_000_000
        self._offset = max(wall, last_stored) - _boot_time()
        self.behind = max(0, last_stored - wall)

    def now(self) -> int:
        return self._offset + _boot_time()

    def drift(self) -> int:
        """How far the wall clock has moved away from this one since the start."""
        return time.time_ns() // 1_000_000 - self.now()

    def deadline(self, moment: int) -> float:
        return trio.current_time() + min(moment - self.now(), LONGEST_SLEEP) / 1000


class TrioClock:
    """trio's own time as wall time: with a MockClock, hours pass in no time."""

    def __init__(self, start: int) -> None:
        self._offset = start - round(trio.current_time() * 1000)

    def now(self) -> int:
        return self._offset + round(trio.current_time() * 1000)

    def deadline(self, moment: int) -> float:
        return (moment - self._offset) / 1000


async def sleep_until(clock: Clock, moment: int) -> None:
    # Not a poll: the clock may shorten a sleep, and then the rest of it is slept.
    while clock.now() < moment:  # noqa: ASYNC110
        await trio.sleep_until(clock.deadline(moment))


def _boot_time() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
