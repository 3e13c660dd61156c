"""Events: all of them go to live listeners, and a bounded number of lines to the log.

A listener that reads too slowly loses events and gets their number. Nothing waits for it.

Three rules bound the log. Their cost does not grow with the number of hosts.
- Repeated events about one host are summed up: after the first lines of a minute, one line has the count.
- All lines that name a host share a limit per second. Events that occur once per webhook may use three quarters of it,
  so thousands of failing hosts leave room for a circuit that changes. One line per second counts the dropped lines.
- Lines that name no host (store, spool, operators) are never dropped: the first rule bounds them.
"""

import logging
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import trio

from holdfast.clock import Clock, sleep_until
from holdfast.core.message import rfc3339
from holdfast.process.log import event as log_event

KEPT_FOR_A_LISTENER = 1_000
LINES_BEFORE_SUMMING = 20
SUMMING_OVER = 60_000
STORMS_KEPT = 10_000
"""With more, the oldest storm ends early; its next event starts a new one."""
LINES_A_SECOND = 200
ROUTINE_LINES_A_SECOND = 150
ROUTINE = frozenset({"attempt_failed", "message_dead", "repeated"})
"""Events that occur once per webhook or, summed up, once per host and minute."""
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
        """The next event, or the number of lost ones."""
        while not self._waiting and not self._lost:
            self._some = trio.Event()
            await self._some.wait()
        if self._waiting:
            return self._waiting.popleft()
        lost, self._lost = self._lost, 0
        return {"event": "events_lost", "count": lost}


_STORM_FIELDS = ("host", "status", "error")

Key = tuple[object, ...]
"""The event's name and its storm fields."""


@dataclass(slots=True)
class _Storm:
    """Repeated events of one kind about one host in the minute from `began`."""

    began: int
    level: int
    lines: int = 0


class Events:
    """`log` sends an event to the log and to listeners, `publish` to listeners only.

    `failures` holds the latest failed attempts.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._listeners: set[Listener] = set()
        self._storms: OrderedDict[Key, _Storm] = OrderedDict()
        """Ordered by start, which is also the order of their ends."""
        self._stormy = trio.Event()
        self._second = 0
        self._lines = 0
        """Lines with a host logged in this second."""
        self._left_out: Counter[str] = Counter()
        self._crowded = trio.Event()
        self.failures: deque[Event] = deque(maxlen=LATEST_FAILURES)

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners)

    def publish(self, name: str, **fields: object) -> None:
        if self._listeners:
            self._send(self._event(name, fields))

    def log(self, level: int, name: str, /, *, exc_info: BaseException | None = None, **fields: object) -> None:
        event = self._event(name, fields)
        if name == "attempt_failed":
            self.failures.append(event)
        if self._listeners:
            self._send(event)
        if _logger.isEnabledFor(level) and self._may_log(level, name, event):
            log_event(_logger, level, name, exc_info=exc_info, **fields)

    async def listen(self) -> AsyncGenerator[Event, None]:
        """Events from now on, until the caller stops."""
        listener = Listener()
        self._listeners.add(listener)
        try:
            while True:
                yield await listener.next()
        finally:
            self._listeners.discard(listener)

    async def run(self) -> None:
        """Log sums of repeated events and counts of dropped lines. Sleeps while there are none."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_storms)
            nursery.start_soon(self._count_left_out)

    async def _end_storms(self) -> None:
        while True:
            if not self._storms:
                self._stormy = trio.Event()
                await self._stormy.wait()
            oldest = next(iter(self._storms.values()))
            await sleep_until(self._clock, oldest.began + SUMMING_OVER)
            self.sum_up(self._clock.now())

    async def _count_left_out(self) -> None:
        while True:
            await self._crowded.wait()
            await sleep_until(self._clock, (self._clock.now() // 1000 + 1) * 1000)
            left_out, self._left_out, self._crowded = self._left_out, Counter(), trio.Event()
            log_event(_logger, logging.WARNING, "lines_left_out", lines=left_out.total(), events=dict(left_out))

    def sum_up(self, now: int) -> None:
        """End the storms whose minute is over, and the oldest one if there are too many."""
        while self._storms:
            key, storm = next(iter(self._storms.items()))
            if now - storm.began < SUMMING_OVER and len(self._storms) < STORMS_KEPT:
                return
            del self._storms[key]
            unsaid = storm.lines - LINES_BEFORE_SUMMING
            if unsaid > 0:
                name, *values = key
                about: Event = dict(zip(_STORM_FIELDS, values, strict=True))
                about = {part: value for part, value in about.items() if value is not None}
                if self._has_room("repeated", now, names_host="host" in about):
                    log_event(_logger, storm.level, "repeated", of=name, times=unsaid, **about)

    def _may_log(self, level: int, name: str, event: Event) -> bool:
        key = (name, *(event.get(part) for part in _STORM_FIELDS))
        now = self._clock.now()
        storm = self._storms.get(key)
        if storm is None or now - storm.began >= SUMMING_OVER:
            self.sum_up(now)
            storm = self._storms[key] = _Storm(now, level)
            self._stormy.set()
        storm.lines += 1
        return storm.lines <= LINES_BEFORE_SUMMING and self._has_room(name, now, names_host="host" in event)

    def _has_room(self, name: str, now: int, *, names_host: bool) -> bool:
        """Whether one more line fits into this second. If not, it is counted."""
        if not names_host:
            return True
        if now // 1000 != self._second:
            self._second, self._lines = now // 1000, 0
        if self._lines >= (ROUTINE_LINES_A_SECOND if name in ROUTINE else LINES_A_SECOND):
            self._left_out[name] += 1
            self._crowded.set()
            return False
        self._lines += 1
        return True

    def _event(self, name: str, fields: dict[str, object]) -> Event:
        return {"time": rfc3339(self._clock.now()), "event": name, **fields}

    def _send(self, event: Event) -> None:
        for listener in self._listeners:
            listener.hear(event)
