"""The life of the process: starting, ready, draining, and what probes and operators are told of it."""

import os
import signal
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Protocol

import trio

from holdfast.clock import OFF, Clock, is_off, offset
from holdfast.core.counters import Counters
from holdfast.core.errors import CommitFailed
from holdfast.core.ownership import Role
from holdfast.store.embedded.ledger import Ledger
from holdfast.store.port import Shelve

STUCK_AFTER = 30.0
"""Seconds that one commit may take before the process counts as not making progress."""


LOOK_AT_CLOCK_EVERY = 60.0
KEEP_TIME_EVERY = 30.0


class Stage(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class StoreHealth(Protocol):
    """What a store says of itself."""

    @property
    def failed(self) -> CommitFailed | None: ...

    @property
    def away(self) -> bool: ...

    @property
    def commit_age(self) -> float: ...

    @property
    def full(self) -> bool: ...


class SpoolHealth(Protocol):
    """What a spool says of itself: how many messages it holds, since when, and whether it takes no more."""

    @property
    def count(self) -> int: ...

    @property
    def since(self) -> int | None: ...

    @property
    def full(self) -> bool: ...


class Lifecycle:
    """Fulfils operate's Condition."""

    def __init__(
        self,
        store: StoreHealth,
        counters: Counters,
        started_at: int,
        role: Role | None = None,
        spool: SpoolHealth | None = None,
    ) -> None:
        self._store = store
        self.spool = spool
        self.counters = counters
        self.started_at = started_at
        self.role = role
        self.stage = Stage.STARTING
        self.counting: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self.on_draining: Callable[[bool], None] = lambda draining: None

    def drain(self) -> None:
        self.stage = Stage.DRAINING
        self.on_draining(True)

    def resume(self) -> None:
        self.stage = Stage.READY
        self.on_draining(False)

    @property
    def ready(self) -> bool:
        """With a spool, webhooks are accepted and kept also while the store is away."""
        return self.stage is Stage.READY and (self.spool is not None or not self._store.away)

    @property
    def draining(self) -> bool:
        return self.stage is Stage.DRAINING

    @property
    def store_trouble(self) -> str | None:
        if self._store.failed is not None:
            return f"a commit failed: {self._store.failed}"
        if self._store.commit_age > STUCK_AFTER and not self._store.away:
            return f"a commit has been under way for {self._store.commit_age:.0f} s"
        return None

    @property
    def store_away(self) -> bool:
        return self._store.away

    @property
    def store_full(self) -> bool:
        return self._store.full or (self.spool is not None and self.spool.full)


async def watch_clock(clock: Clock, tell: Callable[[int], None]) -> None:
    """Tells the clock's offset when it is off, at the start or later, once for every jump of the wall clock; and when
    it is right again: by half, so that one near the limit is not told of again and again.
    """
    told = 0
    while True:
        found = offset(clock)
        if abs(found - told) >= OFF or (told and abs(found) < OFF / 2):
            tell(found)
            told = found if is_off(found) else 0
        await trio.sleep(LOOK_AT_CLOCK_EVERY)


async def keep_time(store: Ledger) -> None:
    """Stores the time while something waits: if the wall clock is behind at the next start, time goes on from there,
    and what is due by then is late by no more than this.
    """
    while True:
        await trio.sleep(KEEP_TIME_EVERY)
        if (await store.statistics()).waiting:
            # Every group that is written carries the time; this one nothing else.
            store.submit(Shelve([]))


async def first_signal(*, task_status: trio.TaskStatus[trio.Event] = trio.TASK_STATUS_IGNORED) -> None:
    """Sets an event at the first SIGTERM or SIGINT; the second ends the process at once."""
    asked = trio.Event()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started(asked)
        async for number in signals:
            if asked.is_set():
                # Nothing acknowledged is lost by this: it is on disk, and the next start goes on from there.
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
                # Still here: the kernel spares the first process of a container its own signals.
                os._exit(128 + number)
            asked.set()
