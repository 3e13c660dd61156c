"""A clock that jumps over the waits.

It runs like the real one, so attempts and commits take as long as they do. While `hurry` is on and nothing is under
way it is moved ahead, faster and faster, but never past a moment that somebody waits for: retries and probes come when
they are due, to the millisecond, and not when a machine that is a thousand times too slow gets round to them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from holdfast.clock import Clock

LOOK = 0.002
"""The longest, in seconds, that anybody sleeps without looking at the time."""
FIRST_JUMP = 400.0
LONGEST_JUMP = 600_000.0
"""Milliseconds: from a hundred times as fast as life to a hundred and fifty thousand times."""
GROWTH = 1.03


class FastClock:
    def __init__(self, real: Clock) -> None:
        self._real = real
        self._skipped = 0
        self._awaited: set[int] = set()
        self._jump = FIRST_JUMP
        self._hurried = False

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
        return trio.current_time() + min(ahead / 1000, LOOK)

    @contextmanager
    def hurry(self) -> Iterator[None]:
        self._hurried = True
        try:
            yield
        finally:
            self._hurried = False

    def calm(self) -> None:
        """Begin slowly when it is hurried again."""
        self._jump = FIRST_JUMP

    async def run(self, may_jump: Callable[[], bool]) -> None:
        """Jump whenever that is wanted and `may_jump` says that nothing is under way; until cancelled."""
        while True:
            # Twice: whoever waited for the moment that the last jump led to has looked by then, even if all were late.
            await trio.sleep(LOOK)
            await trio.sleep(LOOK)
            if self._hurried and may_jump():
                self._leap()

    def _leap(self) -> None:
        now = self.now()
        self._awaited = {moment for moment in self._awaited if moment > now}
        nearest = min(self._awaited, default=now)
        self._skipped += min(int(self._jump), nearest - now)
        self._jump = min(self._jump * GROWTH, LONGEST_JUMP)
