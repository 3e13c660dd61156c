"""Many deadlines under one timer.

A cancel scope for every exchange costs 17 us, and 10 us if one scope's deadline is moved in every phase. Here setting
and clearing a deadline is one assignment. Most deadlines are moved or cleared long before they pass. So an entry of the
heap is checked when its time comes, and put back if the deadline is later by then.

The timer is a system task that lives as long as there are entries, so an idle process sleeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush

import trio

MAX_STALE = 64
"""Stale entries that are not worth a clean-up."""

NEVER = math.inf


class Deadline:
    """A deadline that can be set again and again. `on_passed` is called each time that it passes."""

    __slots__ = ("_deadlines", "_on_passed", "_queued", "entry", "time")

    def __init__(self, deadlines: Deadlines, on_passed: Callable[[], None]) -> None:
        self._deadlines = deadlines
        self._on_passed = on_passed
        self._queued = NEVER
        self.time = NEVER
        self.entry = 0
        """The number of its entry in the heap, or 0."""

    def set(self, time: float) -> None:
        """In trio's time. Replaces the previous one."""
        self.time = time
        if time < self._queued:
            self._discard_entry()
            self._queued = time
            self.entry = self._deadlines.add(self, time)

    def clear(self) -> None:
        self.time = NEVER

    def drop(self) -> None:
        """For a deadline that is not needed any more."""
        self.time = NEVER
        self._discard_entry()

    def check(self, now: float) -> None:
        """Its entry has left the front of the heap."""
        self.entry, self._queued = 0, NEVER
        if self.time > now:
            self.set(self.time)
        else:
            self.time = NEVER
            self._on_passed()

    def _discard_entry(self) -> None:
        if self.entry:
            self.entry, self._queued = 0, NEVER
            self._deadlines.count_stale()


class Deadlines:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Deadline]] = []
        self._added = 0
        self._stale = 0
        self._next = NEVER
        self._sleep: trio.CancelScope | None = None

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline: Deadline, time: float) -> int:
        """Returns the number of the entry."""
        self._added += 1
        heappush(self._heap, (time, self._added, deadline))
        if self._sleep is None:
            self._sleep = trio.CancelScope()
            trio.lowlevel.spawn_system_task(self._run)
        elif time < self._next:
            self._sleep.cancel()
        return self._added

    def count_stale(self) -> None:
        """One more entry is stale. Removes all stale ones if they are too many."""
        self._stale += 1
        if self._stale > MAX_STALE + len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[2].entry == entry[1]]
            heapify(self._heap)
            self._stale = 0

    async def _run(self) -> None:
        while self._heap:
            self._check_due(trio.current_time())
            self._next = self._heap[0][0] if self._heap else NEVER
            if self._heap:
                with trio.CancelScope(deadline=self._next) as self._sleep:
                    await trio.sleep_forever()
        self._sleep = None

    def _check_due(self, now: float) -> None:
        """Removes entries from the front that are due or stale."""
        while self._heap:
            time, number, deadline = self._heap[0]
            is_current = deadline.entry == number
            if is_current and time > now:
                return
            heappop(self._heap)
            if is_current:
                deadline.check(now)
            else:
                self._stale -= 1
