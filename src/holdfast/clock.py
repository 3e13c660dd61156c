"""The only one who asks what time it is.

Within a run, time is the wall clock at start plus the boot-time clock since, which counts suspend: jumps of the wall
clock are not followed. At start a wall clock behind the last stored time continues from the stored one; one ahead is
believed. Replicas that share a database go by that one's clock instead.

So this time may be off the wall clock, and outsiders know only that one: what they judge by their clock (the timestamp
of a signature), and what they say by it (the date of a Retry-After), goes by `wall`. Nothing else does.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import trio

LONGEST_SLEEP = 60_000
"""trio's clock stands still while a machine is suspended: nobody sleeps longer without looking at the time."""


ANSWERS_KEPT = 10
"""Of a database that was asked for its time, so that one that took long does not count."""


OFF = 2_000
"""Milliseconds from which on this time and the wall clock differ so that people are told. A time service that slews
moves both; what it steps routinely, and a leap second, is a second at most.
"""


class Clock(Protocol):
    """Milliseconds since 1970, and when to look at them again."""

    def now(self) -> int: ...

    def wall(self) -> int:
        """What this machine's wall clock says, right or wrong."""

    def deadline(self, moment: int) -> float:
        """The moment in trio's time, or something earlier: whoever waits for it looks at the time again."""


def _wall_time() -> int:
    return time.time_ns() // 1_000_000


def _boot_time() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class BootClock:
    """The real one. `wall` and `boot` read the machine's clocks, in milliseconds."""

    def __init__(
        self, last_stored: int = 0, wall: Callable[[], int] = _wall_time, boot: Callable[[], int] = _boot_time
    ) -> None:
        self._wall, self._boot = wall, boot
        # One more than the stored time: runs are told apart by the moment they began.
        self.booted_at = max(wall(), last_stored + 1) - boot()

    def now(self) -> int:
        return self.booted_at + self._boot()

    def wall(self) -> int:
        return self._wall()

    def deadline(self, moment: int) -> float:
        return trio.current_time() + min(moment - self.now(), LONGEST_SLEEP) / 1000


class SharedClock(BootClock):
    """The time of a database that replicas share: this machine's boot-time clock, set by what the database says.

    It never goes back: where it is found to be ahead it stands still.
    """

    def __init__(self, wall: Callable[[], int] = _wall_time, boot: Callable[[], int] = _boot_time) -> None:
        super().__init__(0, wall, boot)
        self._heard: deque[int] = deque(maxlen=ANSWERS_KEPT)
        self._latest = 0

    def follow(self, moment: int) -> None:
        """The database said what time it was. An answer comes late, never early: of some the latest is the best."""
        self._heard.append(moment - self._boot())
        self.booted_at = max(self._heard)

    def now(self) -> int:
        self._latest = max(self._latest, super().now())
        return self._latest


class FollowingClock:
    """The same time in another process of this machine: `booted_at` is a BootClock's. Nothing there asks the wall."""

    def __init__(self, booted_at: int) -> None:
        self._booted_at = booted_at

    def now(self) -> int:
        return self._booted_at + _boot_time()


class TrioClock:
    """trio's own time as wall time: with a MockClock, hours pass in no time."""

    def __init__(self, start: int) -> None:
        self._offset = start - round(trio.current_time() * 1000)

    def now(self) -> int:
        return self._offset + round(trio.current_time() * 1000)

    def wall(self) -> int:
        return self.now()

    def deadline(self, moment: int) -> float:
        return (moment - self._offset) / 1000


def offset(clock: Clock) -> int:
    """Milliseconds that this time is ahead of the wall clock; negative if it is behind."""
    return clock.now() - clock.wall()


def is_off(offset: int) -> bool:
    return abs(offset) >= OFF


async def sleep_until(clock: Clock, moment: int) -> None:
    # Not a poll: the clock may shorten a sleep, and then the rest of it is slept.
    while clock.now() < moment:  # noqa: ASYNC110
        await trio.sleep_until(clock.deadline(moment))
