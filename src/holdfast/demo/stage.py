"""What the story is told with: it waits for news while the clock hurries, says a line, and gives time to read it."""

from collections import Counter
from contextlib import aclosing
from datetime import datetime
from typing import Protocol

import trio

from holdfast.demo.clock import FastClock
from holdfast.demo.gateway import DemoGateway
from holdfast.demo.promise import PromiseBroken, promise
from holdfast.demo.sender import Sender
from holdfast.events import Event

PATIENCE = 60.0
"""Seconds of real life after which news that did not come are a promise broken."""


class Teller(Protocol):
    """Where it is told; `pace` is how many seconds a line is given to be read."""

    pace: float

    def begin(self, page: str, terms: str) -> None:
        """`page` is where to watch along, `terms` what is not as in real life."""

    def heading(self, text: str) -> None: ...

    def line(self, at: int, about: str, text: str) -> None:
        """`at` is in milliseconds since the demo began, `about` a state or who acts."""

    def command(self, text: str) -> None:
        """What an operator would type here."""

    def event(self, event: Event) -> None:
        """Something that the gateway told, as `holdfast tail` shows it."""


class Stage:
    def __init__(self, gateway: DemoGateway, clock: FastClock, sender: Sender, teller: Teller) -> None:
        self.gateway = gateway
        self.clock = clock
        self.sender = sender
        self.teller = teller
        self.began = clock.now()
        self._really_began = trio.current_time()
        self.latest: dict[str, Event] = {}
        self.attempts: Counter[str] = Counter()
        self._deliveries = 0
        self._log: list[Event] = []
        self._told = 0
        self._heard = 0
        self._came = trio.Event()

    async def follow(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep what the gateway tells; until cancelled."""
        async with aclosing(self.gateway.events.listen()) as events:
            task_status.started()
            async for event in events:
                self._log.append(event)
                self._came.set()

    async def hear(self, name: str, *, by: int | None = None, **fields: object) -> Event:
        """The next event of this name with these fields; with `by`, an empty one if it has not come until then."""
        wanted = {"event": name, **fields}
        patience_ends = trio.current_time() + PATIENCE
        with self.clock.hurry():
            while trio.current_time() < patience_ends:
                event = self._next(wanted)
                if event or (by is not None and self.clock.now() >= by):
                    return event
                with trio.CancelScope(deadline=patience_ends if by is None else self.clock.deadline(by)):
                    self._came = trio.Event()
                    await self._came.wait()
        raise PromiseBroken(f"expected {wanted} within {PATIENCE:.0f} s; it did not come")

    async def hear_out(self, deliveries: int) -> None:
        """Wait until that many deliveries were told of: news come a moment after what they are about."""
        with trio.move_on_after(PATIENCE):
            self._catch_up()
            while self._deliveries < deliveries:
                self._came = trio.Event()
                await self._came.wait()
                self._catch_up()
        promise(self._deliveries == deliveries, f"news of {deliveries} deliveries", self._deliveries)

    async def wait_until(self, moment: int) -> None:
        await self.hear("never told", by=moment)

    async def say(self, about: str, text: str, at: int | None = None) -> None:
        """Tell of something that happens now, or that happened at `at`."""
        self.teller.line((self.clock.now() if at is None else at) - self.began, about, text)
        await self._rest()

    @property
    def simulated(self) -> float:
        """Seconds since the demo began, by its own clock; `took` by the real one."""
        return (self.clock.now() - self.began) / 1000

    @property
    def took(self) -> float:
        return round(trio.current_time() - self._really_began, 3)

    async def show(self, command: str) -> None:
        self.teller.command(command)
        await self._rest()

    async def _rest(self) -> None:
        """Time to read."""
        self.clock.calm()
        await trio.sleep(self.teller.pace)

    def _next(self, wanted: Event) -> Event:
        self._catch_up()
        while self._heard < len(self._log):
            event = self._log[self._heard]
            self._heard += 1
            if wanted.items() <= event.items():
                return event
        return {}

    def _catch_up(self) -> None:
        while self._told < len(self._log):
            event = self._log[self._told]
            self._told += 1
            promise(event["event"] != "events_lost", "every event to be heard", event)
            if event["event"] in ("attempt_failed", "delivered"):
                self.attempts[event["kind"]] += 1
            self._deliveries += event["event"] == "delivered"
            self.latest[event["event"]] = event
            self.teller.event(event)


def moment_of(event: Event, name: str = "time") -> int:
    """One of an event's moments, in milliseconds since 1970."""
    return round(datetime.fromisoformat(event[name]).timestamp() * 1000)
