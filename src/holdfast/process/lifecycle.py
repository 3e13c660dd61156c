"""Starting, ready, draining: the state of the process for probes and operators; signals; checks of the clock."""

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
"""Seconds after which a commit counts as stuck."""
LOOK_AT_CLOCK_EVERY = 60.0
KEEP_TIME_EVERY = 30.0


class Stage(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class StoreHealth(Protocol):
    """The state of a store."""

    @property
    def failed(self) -> CommitFailed | None: ...

    @property
    def unreachable(self) -> bool: ...

    @property
    def commit_age(self) -> float: ...

    @property
    def full(self) -> bool: ...


class SpoolHealth(Protocol):
    """The state of a spool: how many messages it holds, since when, and whether it is full."""

    @property
    def count(self) -> int: ...

    @property
    def since(self) -> int | None: ...

    @property
    def full(self) -> bool: ...


class Lifecycle:
    """Implements operate's Condition."""

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
        """With a spool, webhooks are accepted also while the database is unreachable."""
        return self.stage is Stage.READY and (self.spool is not None or not self._store.unreachable)

    @property
    def draining(self) -> bool:
        return self.stage is Stage.DRAINING

    @property
    def store_trouble(self) -> str | None:
        if self._store.failed is not None:
            return f"a commit failed: {self._store.failed}"
        if self._store.commit_age > STUCK_AFTER and not self._store.unreachable:
            return f"a commit has been under way for {self._store.commit_age:.0f} s"
        return None

    @property
    def store_away(self) -> bool:
        return self._store.unreachable

    @property
    def store_full(self) -> bool:
        return self._store.full or (self.spool is not None and self.spool.full)


async def watch_clock(clock: Clock, report: Callable[[int], None]) -> None:
    """Report the clock's offset once when it is off, once for each jump of the wall clock, and once when it is right
    again. Right means half the limit, so that an offset near the limit is not reported again and again.
    """
    reported = 0
    while True:
        found = offset(clock)
        if abs(found - reported) >= OFF or (reported and abs(found) < OFF / 2):
            report(found)
            reported = found if is_off(found) else 0
        await trio.sleep(LOOK_AT_CLOCK_EVERY)


async def keep_time(store: Ledger) -> None:
    """Store the time regularly while messages wait. If the wall clock is behind at the next start, time continues from
    the stored time, so messages are late by at most this interval.
    """
    while True:
        await trio.sleep(KEEP_TIME_EVERY)
        if (await store.statistics()).waiting:
            # Each group stores the time. This one stores nothing else.
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
