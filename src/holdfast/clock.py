"""The clocks. No other module asks what time it is.

Within a run, time is the wall clock at start plus the boot-time clock since then. The boot-time clock counts suspend,
and jumps of the wall clock are not followed. If the wall clock is behind the last stored time at start, time continues
from the stored time. If it is ahead, it is taken as it is. Replicas share the time of their database: see SharedClock.

So this time may differ from the wall clock. Outsiders know only the wall clock: the timestamp of a signature and the
date in a Retry-After use `wall`. Nothing else does.
"""

import time
from collections.abc import Callable
from typing import Protocol

import trio

LONGEST_SLEEP = 60_000
"""Milliseconds. trio's clock stops while the machine is suspended, so no task sleeps longer without a look at the time.
"""
JUMP = 1_000
"""Milliseconds of difference from the expected shared time that count as a jump."""
SETTLED_AFTER = 5_000
"""Milliseconds in which a replica that has joined accepts any shared time."""
TAKEN_AFTER = 60_000
"""Milliseconds after which a replica accepts a shared time that stays different: all others use it."""
OFF = 2_000
"""Milliseconds of difference from the wall clock that are reported. A time service that slews moves both clocks; its
routine steps, and a leap second, are at most one second.
"""


class Clock(Protocol):
    """Milliseconds since 1970."""

    def now(self) -> int: ...

    def wall(self) -> int:
        """This machine's wall clock, right or wrong."""

    def uptime(self) -> int:
        """Milliseconds on a clock that nobody sets and that counts suspend. For durations."""

    def deadline(self, moment: int) -> float:
        """The moment in trio's time, or earlier: a waiter looks at the time again."""


def _wall_time() -> int:
    return time.time_ns() // 1_000_000


def _boot_time() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class BootClock:
    """The clock of a real process. `wall` and `boot` read the machine's clocks, in milliseconds."""

    def __init__(
        self, last_stored: int = 0, wall: Callable[[], int] = _wall_time, boot: Callable[[], int] = _boot_time
    ) -> None:
        self._wall, self._boot = wall, boot
        # One more than the stored time: the moment of its start tells a run apart.
        self.booted_at = max(wall(), last_stored + 1) - boot()

    def now(self) -> int:
        return self.booted_at + self._boot()

    def wall(self) -> int:
        return self._wall()

    def uptime(self) -> int:
        return self._boot()

    def deadline(self, moment: int) -> float:
        return trio.current_time() + min(moment - self.now(), LONGEST_SLEEP) / 1000


class SharedClock(BootClock):
    """The time of a database that replicas share: this machine's boot-time clock, set by the database's answers.

    Before the first answer it is this machine's own time. An answer close to the expected time adjusts the clock; it
    stands still rather than going back. A jump is ignored: the replica that keeps the shared time corrects it. A
    replica that has just joined, or that stays different for long, accepts the shared time as it is.
    """

    def __init__(self, wall: Callable[[], int] = _wall_time, boot: Callable[[], int] = _boot_time) -> None:
        super().__init__(0, wall, boot)
        self._latest = 0
        self._settles_at = 0
        self._apart_since: int | None = None

    def follow(self, moment: int, asked_at: int | None = None) -> int:
        """The shared time was `moment` at some point between `asked_at`, in `uptime`, and now. Without `asked_at` this
        replica joins. Returns by how many milliseconds the shared time jumped ahead, 0 if it did not or was accepted.
        """
        heard_at = self._boot()
        earliest = moment - heard_at
        if asked_at is None:
            self._settles_at = heard_at + SETTLED_AFTER
            asked_at = heard_at
        ahead = min(max(self.booted_at, earliest), moment - asked_at) - self.booted_at
        if abs(ahead) < JUMP:
            self.booted_at += ahead
        elif heard_at < self._settles_at or heard_at - (self._apart_since or heard_at) >= TAKEN_AFTER:
            self._set(earliest)
        else:
            self._apart_since = self._apart_since or heard_at
            return ahead
        self._apart_since = None
        return 0

    def _set(self, booted_at: int) -> None:
        """Set the clock, also backwards."""
        self.booted_at, self._latest = booted_at, 0

    def now(self) -> int:
        self._latest = max(self._latest, super().now())
        return self._latest


class FollowingClock:
    """A BootClock's time in another process of this machine, from its `booted_at`."""

    def __init__(self, booted_at: int) -> None:
        self._booted_at = booted_at

    def now(self) -> int:
        return self._booted_at + _boot_time()


def offset(clock: Clock) -> int:
    """Milliseconds that this clock is ahead of the wall clock. Negative if it is behind."""
    return clock.now() - clock.wall()


def is_off(offset: int) -> bool:
    return abs(offset) >= OFF


async def sleep_until(clock: Clock, moment: int) -> None:
    """Sleep until the moment, but no longer than it is away now, even if the time is set back."""
    ends = clock.uptime() + moment - clock.now()
    # Not a poll: the clock may shorten a sleep, and the loop sleeps the rest.
    while clock.now() < moment and clock.uptime() < ends:  # noqa: ASYNC110
        await trio.sleep_until(clock.deadline(moment))
