"""The dispatcher: delivery's one loop, which looks at lanes when they need attention; and operators' access to lanes.

Ingest and delivery meet only in the store, and in the commits that it reports. A message that was just committed and
may start at once is never read back. Any other message leaves memory and is read when its turn comes, so memory does
not grow with the backlog.
"""

from collections.abc import Callable, Container

import trio

from holdfast.clock import Clock
from holdfast.core.circuit import CircuitChange, CircuitState
from holdfast.core.lane import Lane
from holdfast.core.message import MessageId, Standing
from holdfast.core.start_order import StartOrder
from holdfast.delivery.agenda import NEVER, AgendaReader
from holdfast.delivery.attempts import Attempts
from holdfast.delivery.courier import Courier
from holdfast.delivery.lane_cache import LaneCache
from holdfast.delivery.lane_queues import LaneQueues, LaneReader
from holdfast.delivery.outcome_handler import OutcomeHandler
from holdfast.store.port import Commit, LaneChange, SaveLane, Store


class Dispatcher:
    """`on_quiet_lane` is called with a woken lane that has nothing to send, before it leaves memory. It returns when to
    look at the lane again, or None. If replicas share the store, `is_leaving` tells which hosts go to another replica,
    and `on_left` is called when one of them has nothing left in memory.
    """

    def __init__(
        self,
        store: Store,
        start_order: StartOrder,
        lanes: LaneCache,
        courier: Courier,
        outcomes: OutcomeHandler,
        clock: Clock,
    ) -> None:
        self._store = store
        self._start_order = start_order
        self._lanes = lanes
        self._outcomes = outcomes
        self._clock = clock
        self.reader = LaneReader(store, lanes, clock, outcomes.counters, outcomes.events, self._wake)
        self.queues = LaneQueues(store, lanes, start_order, self.reader, clock, self.attend)
        parts = (store, start_order, lanes, self.reader, self.queues, courier, outcomes, clock)
        self.attempts = Attempts(*parts, self.attend, self._wake)
        self._agenda = AgendaReader(store, lanes, self._wake)
        self._woken = trio.Event()
        self._quiet = trio.Event()
        self._quiet.set()  # nobody waits for it
        self.on_quiet_lane: Callable[[Lane], int | None] = lambda lane: None
        self.is_leaving: Callable[[str], bool] = lambda host: False
        self.on_left: Callable[[], None] = lambda: None

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver until cancelled."""
        async with trio.open_nursery() as nursery:
            self.attempts.nursery = nursery
            task_status.started()
            try:
                while True:
                    await self._look_around()
                    await self._sleep()
            finally:
                self.attempts.nursery = None  # the store reports its last groups after this

    async def _look_around(self) -> None:
        now = self._clock.now()
        for lane in await self._agenda.read_due(now):
            self.attend(lane)
        for lane in self._agenda.expired_timers(now):
            self.attend(lane)
        for lane in await self.reader.read():
            self.queues.sort_after_read(lane, is_leaving=self.is_leaving(lane.host.name))
            self.attend(lane)
        self.attempts.start(self._clock.now())
        self._report_quiet()

    async def _sleep(self) -> None:
        """Sleep until a lane needs attention, or until `_wake`."""
        if self.reader.wanted:
            self._wake()
        moment = self.attempts.loop_sleeps_until = min(self._agenda.next_at, self.attempts.paused_until())
        deadline = self._clock.deadline(moment) if moment < NEVER else float("inf")
        with trio.CancelScope(deadline=deadline):
            await self._woken.wait()
        self._woken = trio.Event()

    def _wake(self) -> None:
        self._woken.set()

    # -- commits -----------------------------------------------------------------------------------------------------

    def committed(self, commit: Commit) -> None:
        """A group is on disk. Look once at each lane that it changed."""
        now = self._clock.now()
        for message in commit.accepted:
            self._outcomes.log_accepted(message, now)
        for entry in commit.arrived:
            self.queues.add(entry)
        for change in commit.changed:
            self._change_lane(change)
        changed = list(self.queues.changed)
        self.queues.changed.clear()
        for lane in changed:
            self._agenda.end_snooze(lane.key)
            self._seat(lane, now)
        self._agenda.note_commit(commit.earliest_wake, now)
        self.attempts.start(now)
        for lane in changed:
            self._look_after(lane, now)
        self._report_quiet()

    def _change_lane(self, change: LaneChange) -> None:
        """An operator changed messages of this lane on disk, so its messages in memory are out of date."""
        lane = self._lanes.find(change.lane)
        if lane is not None and change.removed:
            self.queues.remove(lane, change.removed)
        lane = self.revive(change.lane, change.host)
        if change.replayed:
            lane.host.slow_start()

    # -- lanes -------------------------------------------------------------------------------------------------------

    def attend(self, lane: Lane) -> None:
        """Look at a lane: start what may start, read what is missing, or let it leave memory."""
        now = self._clock.now()
        self._seat(lane, now)
        self.attempts.start(now)
        self._look_after(lane, now)

    def _seat(self, lane: Lane, now: int) -> None:
        if lane.probe is not None and lane.circuit.state is not CircuitState.DISABLED:
            self.queues.drop_probe(lane)
        self._start_order.touch(lane, now)

    def _look_after(self, lane: Lane, now: int) -> None:
        if lane.loading or self._lanes.find(lane.key) is not lane:
            return
        if self.is_leaving(lane.host.name):
            if lane.is_idle:
                self.on_left()
            return
        if lane.is_held(now) and lane.hydrated:
            self.queues.retreat(lane)
        wants_read = lane.wants_entries(now) or lane.wants_probe(now)
        if wants_read and self.reader.may_read(lane):
            self.reader.want(lane)
        elif wants_read and lane.is_idle:
            self._agenda.pass_over(lane, now)
            self._lanes.make_cold(lane)
        elif lane.is_idle:
            self._make_cold(lane, now)
        elif lane.next_due is not None and lane.next_due > now and lane.enabled:
            self._agenda.set_timer(lane, lane.next_due)

    def _make_cold(self, lane: Lane, now: int) -> None:
        """A lane that needs nothing now leaves memory."""
        held_until = lane.host.held_until
        if lane.woken:
            lane.woken = False
            until = self.on_quiet_lane(lane)
            self._agenda.snooze(lane.key, max(until or 0, held_until) if held_until > now else until, now)
        if lane.next_due is not None:
            self._agenda.expect(max(lane.next_due, held_until))
        self._lanes.make_cold(lane)
        self._agenda.note_room()

    def revive(self, key: str, host: str | None = None) -> Lane:
        """A record of this lane changed on disk: read the lane again, as if the agenda had named it."""
        lane = self._lanes.make_live(key, host)
        lane.stale = lane.woken = True
        self._agenda.end_snooze(key)
        self.attend(lane)
        return lane

    def forget(self, key: str) -> None:
        """A lane's record was removed."""
        self._agenda.end_snooze(key)
        self._lanes.forget(key)

    def apply_limits(self) -> None:
        """Limits have changed: messages that they held back may start."""
        now = self._clock.now()
        for lane in list(self._lanes.live.values()):
            self._start_order.touch(lane, now)
        self.attempts.start(now)

    # -- quiet -------------------------------------------------------------------------------------------------------

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is in flight and nothing is due."""
        if self.attempts.in_flight or self.reader.wanted or self._store.pending or self._agenda.has_overdue:
            return False
        now = self._clock.now()
        return self._agenda.next_at > now and not self._start_order.is_pacing(now)

    async def wait_quiet(self) -> None:
        while not self.is_quiet:
            if self._quiet.is_set():
                self._quiet = trio.Event()
            await self._quiet.wait()

    def _report_quiet(self) -> None:
        if not self._quiet.is_set() and self.is_quiet:
            self._quiet.set()

    # -- hosts that change their owner, if replicas share the store --------------------------------------------------

    def renew_lease(self, ends: int) -> None:
        """Attempts may begin until `ends`, by the clock's `uptime`."""
        had_ended = self.attempts.has_lease_ended
        self.attempts.lease_ends = ends
        if had_ended:
            self.apply_limits()

    def gain_hosts(self, is_gained: Callable[[str], bool]) -> None:
        """This replica owns more hosts, or keeps hosts that were leaving. What it knew of them is out of date."""
        for lane in [lane for lane in self._lanes.all_lanes() if is_gained(lane.host.name)]:
            self.reader.forget(lane)
            if lane.is_idle:
                self._lanes.drop(lane)
            else:
                lane.more_fresh = True
                self.revive(lane.key)
        self._agenda.read_now()
        self._wake()

    def release_hosts(self) -> set[str]:
        """Start nothing more for leaving hosts. Returns those with attempts in flight or outcomes not yet on disk."""
        busy = set()
        for lane in self._lanes.all_lanes():
            if self.is_leaving(lane.host.name):
                self.queues.drop_probe(lane)
                self.queues.empty(lane)
                if not lane.is_idle:
                    busy.add(lane.host.name)
        for lane in self._lanes.all_lanes():
            if self.is_leaving(lane.host.name) and lane.host.name not in busy:
                self._lanes.save_and_drop(lane)
        return busy

    def lose_all_hosts(self) -> None:
        """Other replicas own all hosts. Attempts in flight end, and their outcomes are not recorded."""
        for lane in self._lanes.all_lanes():
            self.queues.drop_probe(lane)
            self.queues.empty(lane)
        self.attempts.lose_all()
        self.queues.changed.clear()
        for lane in self._lanes.all_lanes():
            self.reader.forget(lane)
        self._agenda = AgendaReader(self._store, self._lanes, self._wake)
        self._lanes.clear()


class LaneControl:
    """What operators see of the lanes in memory, and how they change circuits."""

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        start_order: StartOrder,
        lanes: LaneCache,
        outcomes: OutcomeHandler,
        clock: Clock,
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._start_order = start_order
        self._lanes = lanes
        self._outcomes = outcomes
        self._clock = clock
        self.wait_quiet = dispatcher.wait_quiet

    @property
    def in_flight(self) -> Container[MessageId]:
        return self._dispatcher.attempts.in_flight

    @property
    def attempts_in_flight(self) -> int:
        return self._start_order.in_flight

    @property
    def is_quiet(self) -> bool:
        return self._dispatcher.is_quiet

    def lane_of(self, key: str) -> Lane | None:
        lane = self._lanes.find(key)
        return lane if lane is not None and lane.hydrated else None

    def active_in(self, lane: Lane) -> int:
        in_flight = (start.entry for start in self._dispatcher.attempts.in_flight.values() if start.lane is lane)
        entries = [*lane.fresh, *in_flight]
        return lane.shelving + sum(entry.place.standing is Standing.ACTIVE for entry in entries)

    def is_queued(self, id: MessageId, key: str) -> bool:
        lane = self._lanes.find(key)
        return lane is not None and id in lane.known

    async def unfreeze(self, key: str, host: str) -> CircuitChange | None:
        """Enable a circuit. Returns the change when it is on disk."""
        lane = await self._hydrated(key, host)
        change = lane.circuit.unfreeze(self._outcomes.circuit_rules, self._clock.now())
        if change is not None:
            lane.host.slow_start()
            lane.host.hold_until = 0
        await self._save_change(lane, change)
        return change

    async def freeze(self, key: str, host: str) -> CircuitChange | None:
        """Freeze a circuit, also one that does not exist yet. Returns the change when it is on disk."""
        lane = await self._hydrated(key, host)
        change = lane.circuit.freeze(self._outcomes.circuit_rules, self._clock.now())
        if change is not None:
            self._dispatcher.queues.retreat(lane)
        await self._save_change(lane, change)
        return change

    async def probe(self, key: str, host: str) -> bool:
        """Probe a disabled circuit now instead of at the next interval; False if it is not disabled."""
        asked_at = self._clock.now()
        lane = await self._hydrated(key, host)
        if lane.circuit.state is not CircuitState.DISABLED:
            self._dispatcher.attend(lane)  # it is live now, and the agenda skips live lanes
            return False
        if not lane.probing and (lane.circuit.last_attempt_at or 0) < asked_at:
            # Otherwise a probe is in flight or has just ended, and a second one would be too many.
            lane.circuit.next_probe_at = self._clock.now()
        lane.dirty = False
        await self._store.perform(SaveLane(lane))
        self._dispatcher.revive(key, host)
        return True

    async def _hydrated(self, key: str, host: str) -> Lane:
        lane = self._lanes.make_live(key, host)
        if not lane.hydrated:
            await self._dispatcher.reader.hydrate(lane)
        return lane

    async def _save_change(self, lane: Lane, change: CircuitChange | None) -> None:
        if change is not None:
            self._outcomes.log_change(lane, change)
            lane.dirty = False
            await self._store.perform(SaveLane(lane))
        self._dispatcher.revive(lane.key, lane.host.name)
