"""The only one who asks what time it is.

Within a run, time is the wall clock at start plus the boot-time clock since, which counts suspend: jumps of the wall
clock are not followed. At start a wall clock behind the last stored time continues from the stored one; one ahead is
believed. Replicas that share a database have its time, by the same rules: see SharedClock.

So this time may be off the wall clock, and outsiders know only that one: what they judge by their clock (the timestamp
of a signature), and what they say by it (the date of a Retry-After), goes by `wall`. Nothing else does.
"""

import time
from collections.abc import Callable
from typing import Protocol

import trio

LONGEST_SLEEP = 60_000
"""trio's clock stands still while a machine is suspended: nobody sleeps longer without looking at the time."""


JUMP = 1_000
"""Milliseconds by which the shared time has to be off what was expected to count as a jump."""
SETTLED_AFTER = 5_000
"""Milliseconds in which a replica that joins takes whatever the shared time is."""
TAKEN_AFTER = 60_000
"""Milliseconds after which a replica takes a shared time that stays off its own: the others all go by it."""


OFF = 2_000
"""Milliseconds from which on this time and the wall clock differ so that people are told. A time service that slews
moves both; what it steps routinely, and a leap second, is a second at most.
"""


class Clock(Protocol):
    """Milliseconds since 1970, and when to look at them again."""

    def now(self) -> int: ...

    def wall(self) -> int:
        """What this machine's wall clock says, right or wrong."""

    def uptime(self) -> int:
        """Milliseconds on a clock that nobody sets, and that counts suspend: for durations."""

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

    def uptime(self) -> int:
        return self._boot()

    def deadline(self, moment: int) -> float:
        return trio.current_time() + min(moment - self.now(), LONGEST_SLEEP) / 1000


class SharedClock(BootClock):
    """The time that replicas share, told by their database: this machine's boot-time clock, set by its answers.

    Until the first answer it is this machine's own time. Answers about as expected adjust it, and it does not go back
    by that: where it is ahead it stands still. A jump is not followed: the replica that keeps the shared time puts that
    right. A replica that has just joined takes the shared time as it is, and so does one that stays apart from it.
    """

    def __init__(self, wall: Callable[[], int] = _wall_time, boot: Callable[[], int] = _boot_time) -> None:
        super().__init__(0, wall, boot)
        self._latest = 0
        self._settles_at = 0
        self._apart_since: int | None = None

    def follow(self, moment: int, asked_at: int | None = None) -> int:
        """The shared time was `moment` at some point between the question, by `uptime`, and now; without a question
        this replica joins. Returns by how many milliseconds that has jumped ahead of this time; 0 if it has not, or if
        it is taken as it is.
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
        """Also back."""
        self.booted_at, self._latest = booted_at, 0

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

    def uptime(self) -> int:
        return self.now()

    def deadline(self, moment: int) -> float:
        return (moment - self._offset) / 1000


def offset(clock: Clock) -> int:
    """Milliseconds that this time is ahead of the wall clock; negative if it is behind."""
    return clock.now() - clock.wall()


def is_off(offset: int) -> bool:
    return abs(offset) >= OFF


async def sleep_until(clock: Clock, moment: int) -> None:
    """No longer than the moment is away now, even if the time is set back meanwhile."""
    ends = clock.uptime() + moment - clock.now()
    # Not a poll: the clock may shorten a sleep, and then the rest of it is slept.
    while clock.now() < moment and clock.uptime() < ends:  # noqa: ASYNC110
        await trio.sleep_until(clock.deadline(moment))
