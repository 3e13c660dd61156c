"""What happens, told as it happens: to the log, and to whoever listens live.

A listener that reads too slowly loses events and is told how many; nobody ever waits for it. In the log a storm of the
same event about the same host is summed up: after the first lines of a minute the rest of it are one line with a count.
Live listeners get every one.
"""

import logging
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import trio

from holdfast.clock import Clock, sleep_until
from holdfast.core.times import rfc3339
from holdfast.log import event as log_event

KEPT_FOR_A_LISTENER = 1_000
LINES_BEFORE_SUMMING = 20
SUMMING_OVER = 60_000
LATEST_FAILURES = 20

Event = dict[str, Any]

_logger = logging.getLogger("holdfast")


class Listener:
    """One live reader of events."""

    def __init__(self) -> None:
        self._waiting: deque[Event] = deque()
        self._lost = 0
        self._some = trio.Event()

    def hear(self, event: Event) -> None:
        if len(self._waiting) >= KEPT_FOR_A_LISTENER:
            self._lost += 1
        else:
            self._waiting.append(event)
        self._some.set()

    async def next(self) -> Event:
        """The next event, or how many were lost before it."""
        while not self._waiting and not self._lost:
            self._some = trio.Event()
            await self._some.wait()
        if self._waiting:
            return self._waiting.popleft()
        lost, self._lost = self._lost, 0
        return {"event": "events_lost", "count": lost}


@dataclass(slots=True)
class _Storm:
    """Lines of one kind about one host in the minute that began at `began`."""

    began: int
    level: int
    lines: int = 0
    unsaid: int = 0
    last: Event = field(default_factory=dict)


class News:
    """`tell` is for the log and for listeners, `show` only for listeners. `failures` are the latest failed attempts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._listeners: set[Listener] = set()
        self._storms: dict[tuple[object, ...], _Storm] = {}
        self._stormy = trio.Event()
        self.failures: deque[Event] = deque(maxlen=LATEST_FAILURES)

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners)

    def show(self, name: str, **fields: object) -> None:
        if self._listeners:
            self._publish(self._event(name, fields))

    def tell(self, level: int, name: str, /, *, exc_info: BaseException | None = None, **fields: object) -> None:
        event = self._event(name, fields)
        if name == "attempt_failed":
            self.failures.append(event)
        if self._listeners:
            self._publish(event)
        if self._may_log(level, name, event):
            log_event(_logger, level, name, exc_info=exc_info, **fields)

    async def listen(self) -> AsyncGenerator[Event, None]:
        """Events from now on, until the caller has enough."""
        listener = Listener()
        self._listeners.add(listener)
        try:
            while True:
                yield await listener.next()
        finally:
            self._listeners.discard(listener)

    async def run(self) -> None:
        """Say what was summed up when its minute is over; does nothing while there is no storm."""
        while True:
            if not self._storms:
                self._stormy = trio.Event()
                await self._stormy.wait()
            await sleep_until(self._clock, min(storm.began for storm in self._storms.values()) + SUMMING_OVER)
            self.sum_up(self._clock.now())

    def sum_up(self, now: int) -> None:
        """End the storms whose minute is over by `now`."""
        for key, storm in list(self._storms.items()):
            if now - storm.began < SUMMING_OVER:
                continue
            del self._storms[key]
            if storm.unsaid:
                about = {name: value for name, value in storm.last.items() if name in _STORM_FIELDS}
                log_event(_logger, storm.level, "repeated", of=storm.last["event"], times=storm.unsaid, **about)

    def _may_log(self, level: int, name: str, event: Event) -> bool:
        key = (name, *(event.get(part) for part in _STORM_FIELDS))
        now = self._clock.now()
        storm = self._storms.get(key)
        if storm is None or now - storm.began >= SUMMING_OVER:
            self.sum_up(now)
            storm = self._storms[key] = _Storm(now, level)
            self._stormy.set()
        storm.lines += 1
        if storm.lines <= LINES_BEFORE_SUMMING:
            return True
        storm.unsaid += 1
        storm.last = event
        return False

    def _event(self, name: str, fields: dict[str, object]) -> Event:
        return {"time": rfc3339(self._clock.now()), "event": name, **fields}

    def _publish(self, event: Event) -> None:
        for listener in self._listeners:
            listener.hear(event)


_STORM_FIELDS = ("host", "status", "error")
