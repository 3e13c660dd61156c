"""Many deadlines under one timer.

A cancel scope of its own for every exchange costs 17 us, one whose deadline is moved in every phase 10; here a
deadline is one entry in a heap, and what is over by then is told so. Most are cleared long before they pass: such an
entry stays where it is until it comes up, or until half of the heap is of its kind.

The timer is a task of trio's own that lives as long as there are deadlines: whoever has nothing to time out sleeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush

import trio

SPARE = 64
"""Entries of no use that are not worth a clean-up."""


class Deadline:
    """Somebody's deadline, which can be set again and again; `passed` is called once for each that passes."""

    __slots__ = ("_deadlines", "entry", "passed")

    def __init__(self, deadlines: Deadlines, passed: Callable[[], None]) -> None:
        self._deadlines = deadlines
        self.passed = passed
        self.entry = 0
        """The number of its entry in the heap; 0 while it is not set."""

    def set(self, moment: float) -> None:
        """In trio's time; it takes the place of the one before."""
        self.clear()
        self.entry = self._deadlines.add(self, moment)

    def clear(self) -> None:
        if self.entry:
            self.entry = 0
            self._deadlines.waste()


class Deadlines:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Deadline]] = []
        self._added = 0
        self._wasted = 0
        self._next = math.inf
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
            self._fire(trio.current_time())
            self._next = self._heap[0][0] if self._heap else math.inf
            if self._heap:
                with trio.CancelScope(deadline=self._next) as self._nap:
                    await trio.sleep_forever()
        self._nap = None

    def _fire(self, now: float) -> None:
        """Everything at the front that is over, or of no use."""
        while self._heap:
            moment, number, deadline = self._heap[0]
            is_set = deadline.entry == number
            if is_set and moment > now:
                return
            heappop(self._heap)
            if is_set:
                deadline.entry = 0
                deadline.passed()
            else:
                self._wasted -= 1
