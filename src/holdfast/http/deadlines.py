"""Many deadlines under one timer.

A cancel scope of its own for every exchange costs 17 us, one whose deadline is moved in every phase 10. Here setting
and clearing a deadline is one assignment: most are moved or cleared long before they pass, so what stands in the heap
is looked at when its time comes, and put back if there is a later one by then.

The timer is a task of trio's own that lives as long as there are entries: whoever has nothing to time out sleeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush

import trio

SPARE = 64
"""Entries of no use that are not worth a clean-up."""

NEVER = math.inf


class Deadline:
    """Somebody's deadline, which can be set again and again; `passed` is called once for each that passes."""

    __slots__ = ("_deadlines", "_queued", "entry", "moment", "passed")

    def __init__(self, deadlines: Deadlines, passed: Callable[[], None]) -> None:
        self._deadlines = deadlines
        self._queued = NEVER
        self.passed = passed
        self.moment = NEVER
        self.entry = 0
        """The number of its entry in the heap; 0 while it has none."""

    def set(self, moment: float) -> None:
        """In trio's time; it takes the place of the one before."""
        self.moment = moment
        if moment < self._queued:
            self._queue(moment)

    def clear(self) -> None:
        self.moment = NEVER

    def drop(self) -> None:
        """It is not needed any more."""
        self.moment = NEVER
        self._leave()

    def come_up(self, now: float) -> None:
        """Its entry has come to the front of the heap and is gone from it."""
        self.entry, self._queued = 0, NEVER
        if self.moment > now:
            self.set(self.moment)
        else:
            self.moment = NEVER
            self.passed()

    def _queue(self, moment: float) -> None:
        self._leave()
        self._queued = moment
        self.entry = self._deadlines.add(self, moment)

    def _leave(self) -> None:
        if self.entry:
            self.entry, self._queued = 0, NEVER
            self._deadlines.waste()


class Deadlines:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Deadline]] = []
        self._added = 0
        self._wasted = 0
        self._next = NEVER
        self._nap: trio.CancelScope | None = None

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline: Deadline, moment: float) -> int:
        """The number of its entry."""
        self._added += 1
        heappush(self._heap, (moment, self._added, deadline))
        if self._nap is None:
            self._nap = trio.CancelScope()
            trio.lowlevel.spawn_system_task(self._watch)
        elif moment < self._next:
            self._nap.cancel()
        return self._added

    def waste(self) -> None:
        """One of the entries is of no use any more."""
        self._wasted += 1
        if self._wasted > SPARE + len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[2].entry == entry[1]]
            heapify(self._heap)
            self._wasted = 0

    async def _watch(self) -> None:
        while self._heap:
            self._look(trio.current_time())
            self._next = self._heap[0][0] if self._heap else NEVER
            if self._heap:
                with trio.CancelScope(deadline=self._next) as self._nap:
                    await trio.sleep_forever()
        self._nap = None

    def _look(self, now: float) -> None:
        """At everything in front whose moment has come, or that is of no use."""
        while self._heap:
            moment, number, deadline = self._heap[0]
            is_used = deadline.entry == number
            if is_used and moment > now:
                return
            heappop(self._heap)
            if is_used:
                deadline.come_up(now)
            else:
                self._wasted -= 1
