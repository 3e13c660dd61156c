"""Starts attempts in the order that core/start_order.py decides, and carries out what their outcomes change."""

import logging
from collections.abc import Callable
from math import ceil

import trio

from holdfast.clock import Clock
from holdfast.core.lane import Lane
from holdfast.core.message import ErrorKind, MessageId, id_text
from holdfast.core.outcome import Outcome, of_error
from holdfast.core.start_order import Start, StartOrder
from holdfast.delivery.agenda import NEVER
from holdfast.delivery.courier import Courier
from holdfast.delivery.lane_cache import LaneCache
from holdfast.delivery.lane_queues import LaneQueues, LaneReader
from holdfast.delivery.outcome_handler import OutcomeEffects, OutcomeHandler
from holdfast.http.exceptions import AddressBusy
from holdfast.store.port import Store

MOST_UNWRITTEN = 8_192
"""Outcomes not yet on disk above which nothing starts: a slow disk slows deliveries down."""
WORKERS_KEPT = 64
"""Idle workers that wait for an attempt; further workers end after theirs."""


class Worker:
    """A task that makes attempts, one after another: waking it is cheaper than starting a task for each attempt.

    `start` is the next attempt, or None.
    """

    __slots__ = ("_waiting", "start")

    def __init__(self, start: Start) -> None:
        self.start: Start | None = start
        self._waiting: trio.lowlevel.Task | None = None

    def take(self, start: Start) -> None:
        self.start = start
        if self._waiting is not None:
            trio.lowlevel.reschedule(self._waiting)
            self._waiting = None

    async def wait(self, idle: list["Worker"]) -> None:
        """Wait for the next attempt. `idle` lists this worker; a cancelled worker leaves the list."""

        def abort(_: object) -> trio.lowlevel.Abort:
            idle.remove(self)
            return trio.lowlevel.Abort.SUCCEEDED

        self._waiting = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)


class Attempts:
    """Attempts start while there is a `nursery` and the lease has not ended.

    `attend` is called with a lane whose attempt was not made. `wake` is called when the loop has to wake before
    `loop_sleeps_until`.
    """

    def __init__(
        self,
        store: Store,
        start_order: StartOrder,
        lanes: LaneCache,
        reader: LaneReader,
        queues: LaneQueues,
        courier: Courier,
        outcomes: OutcomeHandler,
        clock: Clock,
        attend: Callable[[Lane], None],
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._start_order = start_order
        self._lanes = lanes
        self._reader = reader
        self._queues = queues
        self._changed = queues.changed
        self._courier = courier
        self._outcomes = outcomes
        self._clock = clock
        self._attend = attend
        self._wake = wake
        self._idle: list[Worker] = []
        self._unwritten: dict[MessageId, Start] = {}
        self.in_flight: dict[MessageId, Start] = {}
        self.nursery: trio.Nursery | None = None
        self.lease_ends = NEVER
        """By the clock's `uptime`."""
        self.loop_sleeps_until: float = 0

    @property
    def has_lease_ended(self) -> bool:
        return self._clock.uptime() >= self.lease_ends

    def start(self, now: int) -> None:
        """Start all attempts that may start now."""
        nursery = self.nursery
        if nursery is None or self.has_lease_ended:
            return
        while len(self._unwritten) < MOST_UNWRITTEN and (start := self._start_order.pick(now)) is not None:
            self.in_flight[start.entry.message.id] = start
            if self._idle:
                self._idle.pop().take(start)
            else:
                nursery.start_soon(self._work, start)
        if self.paused_until() < self.loop_sleeps_until:
            self._wake()  # a host has to pause now

    def paused_until(self) -> int:
        """When the first host that waits for its rate or a Retry-After may start again."""
        moment = self._start_order.wake_at()
        return NEVER if moment is None or self.has_lease_ended else ceil(moment)

    def lose_all(self) -> None:
        """Other replicas own all hosts. Attempts in flight end, and their outcomes are not recorded."""
        for start in self._unwritten.values():
            self._outcomes.log_lost(start)
        self._unwritten.clear()
        self.in_flight.clear()

    async def _work(self, start: Start) -> None:
        worker = Worker(start)
        while worker.start is not None:
            start, worker.start = worker.start, None
            ended = await self._attempt(start)
            is_kept = len(self._idle) < WORKERS_KEPT
            if is_kept:
                self._idle.append(worker)
            if ended is None or isinstance(ended, AddressBusy):
                self._put_back(start, ended)
            else:
                self._end(start, *ended)
            if is_kept and worker.start is None:
                await worker.wait(self._idle)

    async def _attempt(self, start: Start) -> tuple[Outcome, int] | AddressBusy | None:
        """Returns the outcome and when the attempt began. AddressBusy, or None after the end of the lease: no attempt
        was made.
        """
        began = self._clock.now()
        if self.has_lease_ended:
            return None
        try:
            outcome = await self._courier.carry(start.entry.message, began, self._clock.wall())
        except AddressBusy as busy:
            return busy
        except trio.Cancelled:
            self.nursery = None  # nothing starts any more: messages that only wait were not tried
            self._end(start, of_error(ErrorKind.INTERRUPTED, "holdfast was shutting down"), began)
            raise
        except Exception as error:
            # A bug that one message triggers must not stop the others: it is a failed attempt of that message.
            id = id_text(start.entry.message.id)
            self._outcomes.events.log(logging.ERROR, "attempt_crashed", exc_info=error, message=id)
            outcome = of_error(ErrorKind.PROTOCOL, f"holdfast failed: {error!r}", here=True)
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            self.nursery = None  # nothing starts any more, but this outcome came before: it is recorded
        return outcome, began

    def _end(self, start: Start, outcome: Outcome, began: int) -> None:
        """An attempt was made: submit its outcome, and start the next ones."""
        lane, now = start.lane, self._clock.now()
        if self.in_flight.get(start.entry.message.id) is not start:
            self._outcomes.log_lost(start)
            self._lanes.release(lane, start.entry.message)
            self._start_order.ended(start, now)
            self._start_order.address_ended(outcome.address, now)
            return
        effects = self._outcomes.effects(start, outcome, began, now)
        effects.operation.done = lambda _: self._written(start, effects)
        del self.in_flight[start.entry.message.id]
        self._unwritten[start.entry.message.id] = start
        self._store.submit(effects.operation)
        if effects.change is not None:
            lane.stale = True
            if not lane.enabled:
                self._queues.retreat(lane)
        self._start_order.ended(start, now)
        self._start_order.address_ended(outcome.address, now)
        self.start(now)
        if not lane.loading and lane.runs_low(now) and self._reader.may_read(lane):
            # Not only when the outcome is on disk: how fast a backlog drains must not depend on the disk.
            self._reader.want(lane)

    def _written(self, start: Start, effects: OutcomeEffects) -> None:
        """An outcome is on disk. The next read shows where the message is now."""
        lane, message = start.lane, start.entry.message
        self._unwritten.pop(message.id, None)
        self._lanes.release(lane, message)
        if self._reader.is_reading(lane):
            lane.settled_while_reading.add(message.id)
        if effects.due is not None:
            self._reader.note_due(lane, effects.due)
        if not lane.enabled:
            lane.stale = True  # only a read can tell which message may be a probe, and when
        self._changed[lane] = None

    def _put_back(self, start: Start, busy: AddressBusy | None) -> None:
        """No attempt was made: the lease has ended, or the address has too many unanswered attempts."""
        lane, now = start.lane, self._clock.now()
        if self.in_flight.get(start.entry.message.id) is not start:
            self._lanes.release(lane, start.entry.message)
            self._start_order.ended(start, now)
            return
        del self.in_flight[start.entry.message.id]
        self._start_order.put_back(start, now)
        if busy is not None and not self._start_order.wait_for_address(lane.host, busy.address, now):
            lane.woken = True  # the agenda must not name it before its time
        if not lane.enabled:
            self._queues.retreat(lane)
        self._attend(lane)
