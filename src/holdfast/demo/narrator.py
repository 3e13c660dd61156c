"""Waits for events of the gateway while the clock hurries, prints lines, and gives time to read them."""

from collections import Counter
from contextlib import aclosing
from datetime import datetime
from typing import Protocol

import trio

from holdfast.demo.fast_clock import FastClock
from holdfast.events import Event, Events

EVENT_TIMEOUT = 60.0
"""Seconds of real time after which a missing event counts as a broken promise."""


class PromiseBroken(Exception):
    """The gateway did not do what holdfast promises. Says what was expected and what happened."""


def promise(kept: bool, expected: str, seen: object) -> None:
    if not kept:
        raise PromiseBroken(f"expected {expected}; saw {seen}")


class DemoOutput(Protocol):
    """Prints the demo. `pace` is the time to read a line, in seconds."""

    pace: float

    def begin(self, page: str, terms: str) -> None:
        """`page` is the URL of the status page; `terms` says what differs from a real gateway."""

    def heading(self, text: str) -> None: ...

    def line(self, at: int, label: str, text: str) -> None:
        """`at` is in milliseconds since the start; `label` is a state or who acts."""

    def command(self, text: str) -> None:
        """A command that an operator would type here."""

    def event(self, event: Event) -> None:
        """An event of the gateway, as `holdfast tail` shows it."""


class Narrator:
    def __init__(self, events: Events, clock: FastClock, output: DemoOutput) -> None:
        self.clock = clock
        self.output = output
        self.latest: dict[str, Event] = {}
        self.attempts: Counter[str] = Counter()
        self._events = events
        self._began = clock.now()
        self._real_began = trio.current_time()
        self._deliveries = 0
        self._received: list[Event] = []
        self._recorded = 0
        self._searched = 0
        self._arrived = trio.Event()

    async def collect_events(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keeps the gateway's events; until cancelled."""
        async with aclosing(self._events.listen()) as events:
            task_status.started()
            async for event in events:
                self._received.append(event)
                self._arrived.set()

    async def wait_for(self, name: str, *, by: int | None = None, **fields: object) -> Event:
        """Returns the next event with this name and these fields; an empty one if none came until `by`."""
        wanted = {"event": name, **fields}
        deadline = trio.current_time() + EVENT_TIMEOUT
        with self.clock.hurry():
            while trio.current_time() < deadline:
                event = self._next(wanted)
                if event or (by is not None and self.clock.now() >= by):
                    return event
                with trio.CancelScope(deadline=deadline if by is None else self.clock.deadline(by)):
                    self._arrived = trio.Event()
                    await self._arrived.wait()
        raise PromiseBroken(f"expected {wanted} within {EVENT_TIMEOUT:.0f} s; it did not come")

    async def wait_for_deliveries(self, deliveries: int) -> None:
        """Waits until this many deliveries were reported: an event comes a moment after the delivery."""
        with trio.move_on_after(EVENT_TIMEOUT):
            self._record()
            while self._deliveries < deliveries:
                self._arrived = trio.Event()
                await self._arrived.wait()
                self._record()
        promise(self._deliveries == deliveries, f"events of {deliveries} deliveries", self._deliveries)

    async def wait_until(self, moment: int) -> None:
        await self.wait_for("no such event", by=moment)

    async def say(self, label: str, text: str, at: int | None = None) -> None:
        """Prints a line about now, or about the moment `at`."""
        self.output.line((self.clock.now() if at is None else at) - self._began, label, text)
        await self._pause()

    @property
    def simulated(self) -> float:
        """Seconds since the start by the demo's clock; `took` by the real one."""
        return (self.clock.now() - self._began) / 1000

    @property
    def took(self) -> float:
        return round(trio.current_time() - self._real_began, 3)

    async def show_command(self, command: str) -> None:
        self.output.command(command)
        await self._pause()

    async def _pause(self) -> None:
        """Gives time to read."""
        self.clock.reset_speed()
        await trio.sleep(self.output.pace)

    def _next(self, wanted: Event) -> Event:
        self._record()
        while self._searched < len(self._received):
            event = self._received[self._searched]
            self._searched += 1
            if wanted.items() <= event.items():
                return event
        return {}

    def _record(self) -> None:
        while self._recorded < len(self._received):
            event = self._received[self._recorded]
            self._recorded += 1
            promise(event["event"] != "events_lost", "no lost events", event)
            if event["event"] in ("attempt_failed", "delivered"):
                self.attempts[event["kind"]] += 1
            self._deliveries += event["event"] == "delivered"
            self.latest[event["event"]] = event
            self.output.event(event)


def moment_of(event: Event, name: str = "time") -> int:
    """A time of an event, in milliseconds since 1970."""
    return round(datetime.fromisoformat(event[name]).timestamp() * 1000)
