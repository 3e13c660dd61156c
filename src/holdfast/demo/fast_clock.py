"""A clock that jumps over waiting times.

It runs at real speed, so attempts and commits take their real time. During `hurry`, while nothing is in progress, it
jumps ahead by longer and longer steps, but never past a moment that somebody waits for. So retries and probes start
when they are due, to the millisecond.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from holdfast.clock import Clock

CHECK_INTERVAL = 0.002
"""Seconds: every sleeper looks at the time this often."""
FIRST_JUMP = 400.0
LONGEST_JUMP = 600_000.0
"""Milliseconds: from a hundred times real speed to a hundred and fifty thousand times."""
GROWTH = 1.03


class FastClock:
    def __init__(self, real: Clock) -> None:
        self._real = real
        self._skipped = 0
        self._awaited: set[int] = set()
        self._jump_length = FIRST_JUMP
        self._is_hurried = False

    def now(self) -> int:
        return self._real.now() + self._skipped

    def wall(self) -> int:
        return self.now()

    def uptime(self) -> int:
        return self.now()

    def deadline(self, moment: int) -> float:
        ahead = moment - self.now()
        if ahead > 0:
            self._awaited.add(moment)
        return trio.current_time() + min(ahead / 1000, CHECK_INTERVAL)

    @contextmanager
    def hurry(self) -> Iterator[None]:
        self._is_hurried = True
        try:
            yield
        finally:
            self._is_hurried = False

    def reset_speed(self) -> None:
        """Starts with short jumps again."""
        self._jump_length = FIRST_JUMP

    async def run(self, may_jump: Callable[[], bool]) -> None:
        """Jumps during `hurry` whenever `may_jump` returns true; until cancelled."""
        while True:
            # Twice, so that every task that waited for the moment of the last jump has seen it, even if it was late.
            await trio.sleep(CHECK_INTERVAL)
            await trio.sleep(CHECK_INTERVAL)
            if self._is_hurried and may_jump():
                self._jump_ahead()

    def _jump_ahead(self) -> None:
        now = self.now()
        self._awaited = {moment for moment in self._awaited if moment > now}
        nearest = min(self._awaited, default=now)
        self._skipped += min(int(self._jump_length), nearest - now)
        self._jump_length = min(self._jump_length * GROWTH, LONGEST_JUMP)
