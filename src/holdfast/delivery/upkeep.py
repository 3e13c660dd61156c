"""What happens to messages and lanes by time alone: expiry, forgetting, and the sweep of what is past its retention.

Everything goes in bounded steps that ride in the same groups as the webhooks, and costs by what it removes. After every
start nothing expires or is purged for a while, and a disabled circuit is probed before anything in it expires: whatever
the clock or the network did meanwhile, receivers get their chance first.
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
from holdfast.delivery.lanes import LaneCache
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
"""Messages that one operation moves or removes: a group with it takes a few milliseconds longer, not more."""
EVICTION_STEP = 1_024
"""Records that one operation removes for want of room: more than the outcomes of a group can add."""
CIRCUITS_REST = 10_000
"""Milliseconds between two searches for idle circuits through all circuits."""
SWEEP_AT_MOST_EVERY = 1_000


class BusyLanes:
    """Lanes that have something in memory or under way. The writer asks while the loop stands still."""

    def __init__(self, lanes: LaneCache) -> None:
        self._lanes = lanes

    def __contains__(self, key: object) -> bool:
        lane = self._lanes.find(str(key))
        return lane is not None and lane.hydrated and not lane.is_idle


class Upkeep:
    """Asked by the dispatcher about lanes that have nothing to send; `run` is the sweep."""

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
        """Look now whether there is something to sweep."""
        self._called.set()

    def configure(self, config: Config) -> None:
        self._config = config
        self.review()

    def review(self) -> None:
        """Lanes may have moments that were computed by other numbers."""
        self._to_review = True
        self._called.set()

    def begin_grace(self) -> None:
        """Nothing expires or is purged for a while from now on, and disabled circuits are probed first."""
        self._started = self._clock.now()
        self._grace_ends = grace_ends(self._started, self._config.circuit)
        self.call()  # What is waited for may be by a time that was set back.

    # -- single lanes ------------------------------------------------------------------------------------------------

    def consider(self, lane: Lane) -> int | None:
        """Does what a lane that the agenda named needs by time. Returns when to look again, if the agenda would say
        now.
        """
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
        """Remove what is past its retention, sleeping until the next record is; early when room gets scarce."""
        # A commit that failed ends the process: app does that, after everyone got an answer.
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
        """Lanes that nothing touches wake and expire by the numbers of today's config too."""
        self._to_review = False
        after = await self._store.perform(ReviewLanes(None, STEP))
        while after is not None:
            after = await self._store.perform(ReviewLanes(after, STEP))

    async def _sweep(self) -> bool:
        """One step. Returns whether there may be more to remove at once."""
        if not self._store.is_swept_here:
            return False
        now = self._clock.now()
        room = await self._store.room()
        finished = await self._store.oldest_finished()
        if room.is_scarce and await self._evict(finished, now):
            return True
        # In a full store even an empty step is worth it: whether there is room again shows with a commit.
        if self._next_due(finished, now) > now and not room.full:
            return False
        removed: int = await self._store.perform(self._past_retention(now))
        return removed >= STEP

    async def _evict(self, finished: OldestFinished, now: int) -> bool:
        """What can go early makes room: of each kind the oldest, and nothing of the next kind before that is needed.

        Returns whether to go on at once.
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
        """Count what was removed, and look whether it is enough."""
        room = await self._store.room()
        if removed:
            self._counters.evicted += removed
            self._events.log(logging.WARNING, "evicted_early", count=removed, used_bytes=room.used_bytes)
        return room.is_scarce

    async def _evict_circuits(self, now: int) -> int:
        """Records of idle circuits: each step looks at some of all circuits, and after the last the search rests."""
        operation = EvictLanes(self._evict_after, EVICTION_STEP, BusyLanes(self._lanes))
        evicted: Evicted = await self._store.perform(operation)
        self._evict_after = evicted.after
        for lane in evicted.lanes:
            self._dispatcher.forget(lane)
        if evicted.after is None and len(evicted.lanes) < STEP:
            self._evict_circuits_from = now + CIRCUITS_REST
        return len(evicted.lanes)

    def _past_retention(self, now: int) -> Purge:
        """Nothing leaves by time in the grace after a start; for want of room it may at any time."""
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
        """When the first record is past its retention; what is not there yet is so no sooner than if it came now."""
        if now < self._grace_ends:
            return self._grace_ends
        spans = self._retention()
        return min((now + 1 if oldest is None else oldest) + span for oldest, span in zip(finished, spans, strict=True))

    def _retention(self) -> tuple[int, int, int]:
        """Milliseconds that records of delivered messages, dead messages and idempotency keys are kept."""
        config = self._config
        return config.retention.delivered, config.retention.dead, config.ingest.idempotency
