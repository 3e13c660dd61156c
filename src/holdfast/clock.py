"""The only one who asks what time it is.

Within a run, time is the wall clock at start plus the boot-time clock since, which counts suspend: jumps of the wall
clock are not followed. At start a wall clock behind the last stored time continues from the stored one; one ahead is
believed. Replicas that share a database go by that one's clock instead.
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


class Clock(Protocol):
    """Milliseconds since 1970, and when to look at them again."""

    def now(self) -> int: ...

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
        at_start = wall()
        # One more than the stored time: runs are told apart by the moment they began.
        self.offset = max(at_start, last_stored + 1) - boot()
        self.behind = max(0, last_stored - at_start)

    def now(self) -> int:
        return self.offset + self._boot()

    def drift(self) -> int:
        """How far the wall clock has moved away from this one since the start."""
        return self._wall() - self.now()

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
        self.offset = max(self._heard)

    def now(self) -> int:
        self._latest = max(self._latest, super().now())
        return self._latest


class FollowingClock:
    """The same time in another process of this machine: `offset` is a BootClock's."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def now(self) -> int:
        return self._offset + _boot_time()


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
