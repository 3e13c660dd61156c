"""Changes that happen by time alone: expiry, forgetting of idle circuits, removal after retention, early eviction.

All of it happens in bounded operations in the same groups as the webhooks, and costs by what it removes. In the grace
after a start nothing expires and nothing is removed by its age, and a disabled circuit is probed before its messages
expire: the process may have been down, or its clock or network may have failed.
"""

import logging
from contextlib import suppress

import trio

from holdfast.clock import Clock, sleep_until
from holdfast.config import Config
from holdfast.core.counters import Counters
from holdfast.core.errors import CommitFailed, Fenced, StoreUnreachable
from holdfast.core.lane import Lane
from holdfast.core.lane_times import LaneStep, grace_ends, quiet_lane_step
from holdfast.core.message import DeadReason, MessageId, masked_lane
from holdfast.delivery.agenda import NEVER
from holdfast.delivery.dispatcher import Dispatcher
from holdfast.delivery.lane_cache import LaneCache
from holdfast.events import Events
from holdfast.store.port import (
    NO_LIMIT,
    Evicted,
    EvictLanes,
    Expire,
    Forget,
    OldestFinished,
    Purge,
    ReviewLanes,
    SaveLane,
    Store,
)

STEP = 128
"""Messages that one operation moves or removes: it adds a few milliseconds to a group."""
EVICTION_STEP = 1_024
"""Records that one operation removes for lack of room: more than the outcomes of a group can add."""
CIRCUITS_REST = 10_000
"""Milliseconds between two searches of all circuits for idle ones."""
SWEEP_AT_MOST_EVERY = 1_000


class BusyLanes:
    """The lanes with messages in memory or attempts in flight. The writer's thread reads it while the loop waits."""

    def __init__(self, lanes: LaneCache) -> None:
        self._lanes = lanes

    def __contains__(self, key: object) -> bool:
        lane = self._lanes.find(str(key))
        return lane is not None and lane.hydrated and not lane.is_idle


class Upkeep:
    """The dispatcher calls `consider` with lanes that have nothing to send. `run` sweeps the store."""

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        lanes: LaneCache,
        clock: Clock,
        config: Config,
        counters: Counters,
        events: Events,
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._lanes = lanes
        self._clock = clock
        self._config = config
        self._counters = counters
        self._events = events
        self._called = trio.Event()
        self.begin_grace()
        self._to_review = True
        self._evict_after: bytes | None = None
        self._evict_circuits_from = 0
        dispatcher.on_quiet_lane = self.consider

    def call(self) -> None:
        """Sweep now if there is something to remove."""
        self._called.set()

    def configure(self, config: Config) -> None:
        self._config = config
        self.review()

    def review(self) -> None:
        """Compute the agenda's moments of all lanes again: rules or owners have changed."""
        self._to_review = True
        self._called.set()

    def begin_grace(self) -> None:
        """From now on nothing expires or is removed by its age for a while, and disabled circuits are probed first."""
        self._started = self._clock.now()
        self._grace_ends = grace_ends(self._started, self._config.circuit)
        self.call()  # the clock may have been set back since the next sweep was planned

    # -- single lanes ------------------------------------------------------------------------------------------------

    def consider(self, lane: Lane) -> int | None:
        """Do what a lane needs by time. Returns when to look at it again, if the agenda would name it too early."""
        config, now = self._config, self._clock.now()
        step = quiet_lane_step(
            lane, now, config.circuit, config.retry, started=self._started, grace_until=self._grace_ends
        )
        if step is LaneStep.FORGET:
            self._store.submit(Forget(lane.key, done=lambda gone: self._forgotten(lane.key) if gone else None))
        elif step is LaneStep.SAVE:
            lane.dirty = False
            self._store.submit(SaveLane(lane))
        elif step is LaneStep.EXPIRE:
            self._expire(lane, now)
        else:
            return step
        return None

    def _forgotten(self, key: str) -> None:
        self._events.log(logging.INFO, "circuit_forgotten", host=masked_lane(key))
        self._dispatcher.forget(key)

    def _expire(self, lane: Lane, now: int) -> None:
        def expired(ids: list[MessageId]) -> None:
            self._counters.dead[DeadReason.EXPIRED] += len(ids)
            if ids:
                self._events.log(logging.ERROR, "messages_expired", host=masked_lane(lane.key), count=len(ids))
                self._dispatcher.revive(lane.key, lane.host.name)

        born_before = now - self._config.retry.expire_after + 1
        skip = frozenset(lane.known)
        self._store.submit(Expire(lane.key, born_before, now, STEP, skip, done=expired))

    # -- the sweep ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Remove records past their retention as they come due, or earlier if room is scarce."""
        # A failed commit ends the process: the app does that, after all requests have their answer.
        with suppress(CommitFailed):
            while True:
                with suppress(StoreUnreachable, Fenced):
                    await self._run()
                self._to_review = True
                await sleep_until(self._clock, self._clock.now() + SWEEP_AT_MOST_EVERY)

    async def _run(self) -> None:
        while True:
            if self._to_review:
                await self._review_lanes()
            if await self._sweep():
                continue
            self._called = trio.Event()
            moment = await self._next_sweep()
            while self._clock.now() < moment and not self._called.is_set():
                with trio.CancelScope(deadline=self._clock.deadline(moment)):
                    await self._called.wait()
                    await sleep_until(self._clock, self._clock.now() + SWEEP_AT_MOST_EVERY)

    async def _review_lanes(self) -> None:
        """Lanes that nothing else touches get new moments in the agenda too."""
        self._to_review = False
        after = await self._store.perform(ReviewLanes(None, STEP))
        while after is not None:
            after = await self._store.perform(ReviewLanes(after, STEP))

    async def _sweep(self) -> bool:
        """One step. Returns whether there may be more to remove now."""
        if not self._store.is_swept_here:
            return False
        now = self._clock.now()
        room = await self._store.room()
        finished = await self._store.oldest_finished()
        if room.is_scarce and await self._evict(finished, now):
            return True
        # In a full store even an empty step helps: only a commit shows whether there is room again.
        if self._next_due(finished, now) > now and not room.full:
            return False
        removed: int = await self._store.perform(self._past_retention(now))
        return removed >= STEP

    async def _evict(self, finished: OldestFinished, now: int) -> bool:
        """Make room: remove the oldest delivered messages, then idempotency keys, then idle circuits, each only if the
        room is still scarce. Returns whether there may be more to remove now.
        """
        removed = 0
        if finished.delivered is not None:
            removed = await self._store.perform(Purge(now, 0, 0, EVICTION_STEP))
            if not await self._is_still_scarce(removed):
                return False
        if removed < EVICTION_STEP and finished.key is not None:
            removed = await self._store.perform(Purge(0, 0, NO_LIMIT, EVICTION_STEP))
            if not await self._is_still_scarce(removed):
                return False
        if removed < EVICTION_STEP and now >= self._evict_circuits_from:
            removed = await self._evict_circuits(now)
            if not await self._is_still_scarce(removed):
                return False
        return removed >= STEP

    async def _is_still_scarce(self, removed: int) -> bool:
        """Count the removed records, and tell whether room is still scarce."""
        room = await self._store.room()
        if removed:
            self._counters.evicted += removed
            self._events.log(logging.WARNING, "evicted_early", count=removed, used_bytes=room.used_bytes)
        return room.is_scarce

    async def _evict_circuits(self, now: int) -> int:
        """Remove records of idle circuits. Each step searches some circuits; after the last one the search pauses."""
        operation = EvictLanes(self._evict_after, EVICTION_STEP, BusyLanes(self._lanes))
        evicted: Evicted = await self._store.perform(operation)
        self._evict_after = evicted.after
        for lane in evicted.lanes:
            self._dispatcher.forget(lane)
        if evicted.after is None and len(evicted.lanes) < STEP:
            self._evict_circuits_from = now + CIRCUITS_REST
        return len(evicted.lanes)

    def _past_retention(self, now: int) -> Purge:
        """In the grace after a start nothing is removed by its age."""
        if now < self._grace_ends:
            return Purge(0, 0, 0, STEP)
        delivered, dead, keys = self._retention()
        return Purge(now - delivered, now - dead, now - keys, STEP)

    async def _next_sweep(self) -> int:
        if not self._store.is_swept_here:
            return NEVER
        now = self._clock.now()
        if (await self._store.room()).full:
            return now + SWEEP_AT_MOST_EVERY
        return max(now + SWEEP_AT_MOST_EVERY, self._next_due(await self._store.oldest_finished(), now))

    def _next_due(self, finished: OldestFinished, now: int) -> int:
        """When the first record is past its retention. A kind without records counts as if one came now."""
        if now < self._grace_ends:
            return self._grace_ends
        spans = self._retention()
        return min((now + 1 if oldest is None else oldest) + span for oldest, span in zip(finished, spans, strict=True))

    def _retention(self) -> tuple[int, int, int]:
        """Milliseconds that records of delivered messages, dead messages and idempotency keys are kept."""
        config = self._config
        return config.retention.delivered, config.retention.dead, config.ingest.idempotency
