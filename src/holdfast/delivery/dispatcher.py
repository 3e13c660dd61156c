"""Carries out what the start order decides: starts attempts, reads lanes ahead of their turn, sleeps until something is
due.

Ingest and delivery meet only in the store, plus a hint that a lane has something new. A message that was just
committed and may start at once is never read back; one that may not is forgotten here and read when its turn comes,
so memory does not grow with the backlog.
"""

import logging
from collections import deque
from collections.abc import Callable, Container, Sequence
from math import ceil
from typing import Any

import trio

from holdfast.clock import Clock
from holdfast.core.circuit import Change, CircuitState
from holdfast.core.lane import Lane
from holdfast.core.message import Entry, ErrorKind, Message, MessageId, Standing, id_text
from holdfast.core.outcome import Outcome, of_error
from holdfast.core.start_order import Start, StartOrder
from holdfast.delivery.agenda import NEVER, AgendaKeeper
from holdfast.delivery.courier import Courier
from holdfast.delivery.lane_reader import LaneReader
from holdfast.delivery.lanes import LaneCache
from holdfast.delivery.outcomes import OutcomeEffects, OutcomeHandler
from holdfast.delivery.workers import WORKERS_KEPT, Worker
from holdfast.http.errors import AddressBusy
from holdfast.store.port import Commit, LaneChange, SaveLane, Shelve, Store

UNWRITTEN = 8_192
"""Outcomes not yet on disk above which nothing is started: a slow disk slows deliveries, it is not outrun."""


class Dispatcher:
    """Delivery's one loop. `on_quiet_lane` is asked what else a lane with nothing to send needs before it leaves
    memory.
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
        self._courier = courier
        self._outcomes = outcomes
        self._clock = clock
        self._reader = LaneReader(store, lanes, clock, outcomes.counters, outcomes.events)
        self._agenda = AgendaKeeper(store, lanes)
        self._called = trio.Event()
        self._changed: dict[Lane, None] = {}
        self._free: list[Worker] = []
        self._unwritten: dict[MessageId, Start] = {}
        self._rests_until: float = 0
        self._quiet = trio.Event()
        self._quiet.set()  # nobody waits for it
        self._begins_until = NEVER
        self._nursery: trio.Nursery | None = None
        self.in_flight: dict[MessageId, Start] = {}
        self.on_quiet_lane: Callable[[Lane], int | None] = lambda lane: None
        self.is_leaving: Callable[[str], bool] = lambda host: False
        self.on_left: Callable[[], None] = lambda: None

    # -- what the store reports ----------------------------------------------------------------------------------------

    def _arrived(self, entry: Entry) -> None:
        """A message is on disk. If it is in no queue yet it starts soon, or goes to its lane's queue."""
        message, place = entry
        lane = self._lanes.enlist(message.lane, message.host)
        if place.standing is not Standing.ACTIVE:
            self._reader.note_queued(lane, message)
            self._changed[lane] = None
            return
        if message.id in lane.known:
            return
        if place.born > message.born:
            lane.host.slow_start()  # a replay
        if place.due > self._clock.now() or place.retry or not self._has_room(lane):
            self._shelve(lane, [message])
        else:
            lane.fresh.append(entry)
            self._lanes.hold(lane, message)
        self._changed[lane] = None

    def committed(self, commit: Commit) -> None:
        """A group is on disk. Each lane that it changed is looked at once."""
        now = self._clock.now()
        for message in commit.accepted:
            self._outcomes.log_accepted(message, now)
        for entry in commit.arrived:
            self._arrived(entry)
        for change in commit.changed:
            self._change_lane(change)
        changed, self._changed = self._changed, {}
        for lane in changed:
            self._agenda.awake(lane.key)
            self._seat(lane, now)
        if self._agenda.hear(commit.earliest_wake, now):
            self._called.set()
        self._pump(now)
        for lane in changed:
            self._look_after(lane, now)
        self._tell_quiet()

    def _change_lane(self, change: LaneChange) -> None:
        """An operator changed messages of this lane on disk: what is in memory of them is out of date."""
        lane = self._lanes.find(change.lane)
        if lane is not None and change.removed:
            self._withdraw(lane, change.removed)
        lane = self.revive(change.lane, change.host)
        if change.replayed:
            lane.host.slow_start()

    def attend(self, lane: Lane) -> None:
        """Look at a lane again: start what may start, read what is missing, let go of it when it is quiet."""
        now = self._clock.now()
        self._seat(lane, now)
        self._pump(now)
        self._look_after(lane, now)

    def _seat(self, lane: Lane, now: int) -> None:
        if lane.circuit.state is not CircuitState.DISABLED:
            self._drop_probe(lane)
        self._start_order.touch(lane, now)

    def _look_after(self, lane: Lane, now: int) -> None:
        if lane.loading or self._lanes.find(lane.key) is not lane:
            return
        if self.is_leaving(lane.host.name):
            if lane.is_idle:
                self.on_left()
            return
        if lane.is_held(now) and lane.hydrated:
            self._retreat(lane)
        wants_read = lane.wants_entries(now) or lane.wants_probe(now)
        if wants_read and self._reader.may_read(lane):
            self._reader.want(lane)
            self._called.set()
        elif wants_read and lane.is_idle:
            self._agenda.pass_over(lane, now)
            self._lanes.retire(lane)
            self._called.set()
        elif lane.is_idle:
            self._let_go(lane)
        elif lane.next_due is not None and lane.next_due > now and lane.enabled:
            self._set_timer(lane, lane.next_due)

    def revive(self, key: str, host: str | None = None) -> Lane:
        """Something of a lane changed on disk: read it again, as if the agenda had named it."""
        lane = self._lanes.enlist(key, host)
        lane.stale = lane.woken = True
        self._agenda.awake(key)
        self.attend(lane)
        return lane

    def forget(self, key: str) -> None:
        self._agenda.awake(key)
        self._lanes.forget(key)

    async def unfreeze(self, key: str, host: str) -> Change | None:
        """An operator enables a circuit; returns what changed, once that is on disk."""
        lane = await self._hydrated(key, host)
        change = lane.circuit.unfreeze(self._outcomes.circuit_rules, self._clock.now())
        if change is not None:
            lane.host.slow_start()
            lane.host.hold_until = 0
        await self._save_change(lane, change)
        return change

    async def freeze(self, key: str, host: str) -> Change | None:
        """An operator stops everything to a circuit, also to one that was never seen."""
        lane = await self._hydrated(key, host)
        change = lane.circuit.freeze(self._outcomes.circuit_rules, self._clock.now())
        if change is not None:
            self._retreat(lane)
        await self._save_change(lane, change)
        return change

    async def probe(self, key: str, host: str) -> bool:
        """Probe a disabled circuit now instead of at the next interval; False if it is not disabled."""
        asked_at = self._clock.now()
        lane = await self._hydrated(key, host)
        if lane.circuit.state is not CircuitState.DISABLED:
            self.attend(lane)  # it is live now, and the agenda leaves live lanes alone
            return False
        if not lane.probing and (lane.circuit.last_attempt_at or 0) < asked_at:
            # Else one is under way, or came meanwhile: another right behind it would be one too many.
            lane.circuit.next_probe_at = self._clock.now()
        lane.dirty = False
        await self._store.perform(SaveLane(lane))
        self.revive(key, host)
        return True

    def _withdraw(self, lane: Lane, ids: Container[MessageId]) -> None:
        """Removed messages are not sent any more."""
        for queue in (lane.fresh, lane.due):
            for entry in [entry for entry in queue if entry.message.id in ids]:
                queue.remove(entry)
                self._lanes.release(lane, entry.message)
        if lane.probe is not None and lane.probe.message.id in ids:
            self._drop_probe(lane)

    def is_queued(self, id: MessageId, key: str) -> bool:
        """Whether a message is in memory and next in its lane: it can't be made due any sooner."""
        lane = self._lanes.find(key)
        return lane is not None and id in lane.known

    async def _hydrated(self, key: str, host: str) -> Lane:
        lane = self._lanes.enlist(key, host)
        if not lane.hydrated:
            await self._reader.hydrate(lane)
        return lane

    async def _save_change(self, lane: Lane, change: Change | None) -> None:
        if change is not None:
            self._outcomes.log_change(lane, change)
            lane.dirty = False
            await self._store.perform(SaveLane(lane))
        self.revive(lane.key, lane.host.name)

    def look_again(self) -> None:
        """Limits have changed: what they held back may start."""
        now = self._clock.now()
        for lane in list(self._lanes.live.values()):
            self._start_order.touch(lane, now)
        self._pump(now)

    def lane_of(self, key: str) -> Lane | None:
        lane = self._lanes.find(key)
        return lane if lane is not None and lane.hydrated else None

    def active_in(self, lane: Lane) -> int:
        under_way = (start.entry for start in self.in_flight.values() if start.lane is lane)
        entries = [*lane.fresh, *under_way]
        return lane.shelving + sum(entry.place.standing is Standing.ACTIVE for entry in entries)

    # -- hosts that come and go --------------------------------------------------------------------------------------

    def allow(self, until: int) -> None:
        """Attempts may begin until then, by the clock's `uptime`."""
        had_ended = self._may_not_begin
        self._begins_until = until
        if had_ended:
            self.look_again()

    @property
    def _may_not_begin(self) -> bool:
        return self._clock.uptime() >= self._begins_until

    def gain(self, has_come: Callable[[str], bool]) -> None:
        """Hosts came, or stay after all: what was read of them before, and of the agenda, is old."""
        for lane in [lane for lane in self._lanes.all_lanes() if has_come(lane.host.name)]:
            self._reader.forget(lane)
            if lane.is_idle:
                self._lanes.drop(lane)
            else:
                lane.more_fresh = True
                self.revive(lane.key)
        self._agenda.look_now()
        self._called.set()

    def let_go(self) -> set[str]:
        """Begin nothing more for hosts that leave. Returns those of which something is in memory or unwritten."""
        busy = set()
        for lane in self._lanes.all_lanes():
            if self.is_leaving(lane.host.name):
                self._drop_probe(lane)
                self._empty(lane, [lane.fresh, lane.due])
                if not lane.is_idle:
                    busy.add(lane.host.name)
        for lane in self._lanes.all_lanes():
            if self.is_leaving(lane.host.name) and lane.host.name not in busy:
                self._lanes.let_go(lane)
        return busy

    def lose_all(self) -> None:
        """Others deliver to all hosts now. What is under way ends, and nothing is recorded of it."""
        for lane in self._lanes.all_lanes():
            self._drop_probe(lane)
            self._empty(lane, [lane.fresh, lane.due])
        for start in self._unwritten.values():
            self._outcomes.log_lost(start)
        self._unwritten.clear()
        self.in_flight.clear()
        self._changed.clear()
        for lane in self._lanes.all_lanes():
            self._reader.forget(lane)
        self._agenda = AgendaKeeper(self._store, self._lanes)
        self._lanes.lose_all()

    def _drop_probe(self, lane: Lane) -> None:
        if lane.probe is not None:
            self._lanes.release(lane, lane.probe.message)
            lane.probe = None

    @property
    def attempts_in_flight(self) -> int:
        return self._start_order.in_flight

    @property
    def is_quiet(self) -> bool:
        """Nothing is under way, and nothing is due."""
        if self.in_flight or self._reader.wanted or self._store.pending or self._agenda.has_overdue:
            return False
        now = self._clock.now()
        return self._agenda.next_at > now and not self._start_order.is_pacing(now)

    async def wait_quiet(self) -> None:
        while not self.is_quiet:
            if self._quiet.is_set():
                self._quiet = trio.Event()
            await self._quiet.wait()

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                while True:
                    await self._look_around()
                    await self._rest()
            finally:
                self._nursery = None  # the store tells of its last groups after this has ended

    async def _look_around(self) -> None:
        now = self._clock.now()
        for lane in await self._agenda.due(now):
            self.attend(lane)
        for lane in self._agenda.fired(now):
            self.attend(lane)
        for lane in await self._reader.read():
            self._sort_out(lane)
            self.attend(lane)
        self._pump(self._clock.now())
        self._tell_quiet()

    async def _rest(self) -> None:
        """Sleep until something is due, or somebody calls."""
        if self._reader.wanted:
            self._called.set()
        moment = self._rests_until = min(self._agenda.next_at, self._pause_ends())
        deadline = self._clock.deadline(moment) if moment < NEVER else float("inf")
        with trio.CancelScope(deadline=deadline):
            await self._called.wait()
        self._called = trio.Event()

    def _pump(self, now: int) -> None:
        nursery = self._nursery
        if nursery is None or self._may_not_begin:
            return
        while len(self._unwritten) < UNWRITTEN and (start := self._start_order.pick(now)) is not None:
            self.in_flight[start.entry.message.id] = start
            if self._free:
                self._free.pop().take(start)
            else:
                nursery.start_soon(self._work, start)
        if self._pause_ends() < self._rests_until:
            self._called.set()  # a host has to pause that did not when the loop lay down

    def _pause_ends(self) -> int:
        moment = self._start_order.wake_at()
        return NEVER if moment is None or self._may_not_begin else ceil(moment)

    async def _work(self, start: Start) -> None:
        """One attempt after another: a task for each would cost more than waiting for the next one."""
        worker = Worker(start)
        while worker.start is not None:
            start, worker.start = worker.start, None
            ended = await self._attempt(start)
            is_kept = len(self._free) < WORKERS_KEPT
            if is_kept:
                self._free.append(worker)
            if ended is None or isinstance(ended, AddressBusy):
                self._put_back(start, ended)
            else:
                self._settle(start, *ended)
            if is_kept and worker.start is None:
                await worker.wait(self._free)

    async def _attempt(self, start: Start) -> tuple[Outcome, int] | AddressBusy | None:
        """What came of it and when it began. AddressBusy, or None at the end of the lease: it could not be made now."""
        began = self._clock.now()
        if self._may_not_begin:
            return None
        try:
            outcome = await self._courier.carry(start.entry.message, began, self._clock.wall())
        except AddressBusy as busy:
            return busy
        except trio.Cancelled:
            self._nursery = None  # nothing starts any more: what only waits was not tried
            self._settle(start, of_error(ErrorKind.INTERRUPTED, "holdfast was shutting down"), began)
            raise
        except Exception as error:
            # A bug of ours met by one message must not stop all the others: it is that message's failed attempt.
            id = id_text(start.entry.message.id)
            self._outcomes.events.log(logging.ERROR, "attempt_crashed", exc_info=error, message=id)
            outcome = of_error(ErrorKind.PROTOCOL, f"holdfast failed: {error!r}", here=True)
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            self._nursery = None  # the same, but the outcome was decided before: it is recorded as it is
        return outcome, began

    def _settle(self, start: Start, outcome: Outcome, began: int) -> None:
        lane, now = start.lane, self._clock.now()
        if self.in_flight.get(start.entry.message.id) is not start:
            self._outcomes.log_lost(start)
            self._lanes.release(lane, start.entry.message)
            self._start_order.ended(start, now)
            self._start_order.address_ended(outcome.address, now)
            return
        effects = self._outcomes.effects(start, outcome, began, now)
        effects.operation.done = lambda result: self._settled(start, effects, result)
        del self.in_flight[start.entry.message.id]
        self._unwritten[start.entry.message.id] = start
        self._store.submit(effects.operation)
        if effects.change is not None:
            lane.stale = True
            if not lane.enabled:
                self._retreat(lane)
        self._start_order.ended(start, now)
        self._start_order.address_ended(outcome.address, now)
        self._pump(now)
        if not lane.loading and lane.runs_low(now) and self._reader.may_read(lane):
            # Not only when the outcome is on disk: how fast a backlog drains must not depend on the disk.
            self._reader.want(lane)
            self._called.set()

    def _put_back(self, start: Start, busy: AddressBusy | None) -> None:
        """No attempt was made: the lease was over, or its address has as many unanswered ones as it may."""
        lane, now = start.lane, self._clock.now()
        if self.in_flight.get(start.entry.message.id) is not start:
            self._lanes.release(lane, start.entry.message)
            self._start_order.ended(start, now)
            return
        del self.in_flight[start.entry.message.id]
        self._start_order.put_back(start, now)
        if busy is not None and not self._start_order.wait_for_address(lane.host, busy.address, now):
            lane.woken = True  # when it leaves memory it is not to be named before its time
        if not lane.enabled:
            self._retreat(lane)
        self.attend(lane)

    def _settled(self, start: Start, effects: OutcomeEffects, result: Any) -> None:
        """An outcome is on disk: where the message stands now is for the next read to say."""
        lane, message = start.lane, start.entry.message
        self._unwritten.pop(message.id, None)
        self._lanes.release(lane, message)
        if self._reader.is_reading(lane):
            lane.settled_while_reading.add(message.id)
        if effects.due is not None:
            self._reader.note_due(lane, effects.due)
        if not lane.enabled:
            lane.stale = True  # what may be a probe, and when, only a read can say
        self._changed[lane] = None

    def _sort_out(self, lane: Lane) -> None:
        """After a read. Where older messages turned out to wait on disk, younger ones in memory go behind them."""
        younger = [entry.message for entry in self._reader.overtaking.pop(lane, ())]
        for message in younger:
            self._lanes.release(lane, message)
        if self.is_leaving(lane.host.name):
            self._empty(lane, [lane.fresh, lane.due])
            return
        if younger:
            self._shelve(lane, younger)
        if not lane.enabled:
            self._retreat(lane)

    def _retreat(self, lane: Lane) -> None:
        """Nothing of it may start for a while: what is in memory waits on disk like the rest."""
        entries = self._empty(lane, [lane.fresh, lane.due])
        shelved = [entry.message for entry in entries if entry.place.standing is Standing.ACTIVE]
        if shelved:
            self._shelve(lane, shelved)

    def _empty(self, lane: Lane, queues: Sequence[deque[Entry]]) -> list[Entry]:
        """Take what waits in queues of a lane out of memory, and from the start order: it does not start any more."""
        entries = [entry for queue in queues for entry in queue]
        for queue in queues:
            queue.clear()
        lane.read_to = b""
        for entry in entries:
            self._lanes.release(lane, entry.message)
        self._start_order.touch(lane, self._clock.now())
        return entries

    def _shelve(self, lane: Lane, messages: list[Message]) -> None:
        """Messages in memory that can't start now go to their lane's queue."""

        def shelved(_: object) -> None:
            lane.shelving -= len(messages)
            self._shelved(lane, messages)
            self.attend(lane)

        lane.shelving += len(messages)
        self._store.submit(Shelve(messages, done=shelved))

    def _shelved(self, lane: Lane, messages: list[Message]) -> None:
        for message in messages:
            self._reader.note_queued(lane, message)

    # -- memory ------------------------------------------------------------------------------------------------------

    def _has_room(self, lane: Lane) -> bool:
        if lane.more_fresh or lane.shelving or (lane.hydrated and not lane.enabled):
            return False
        if len(lane.fresh) >= 2 * lane.read_ahead or lane.is_held(self._clock.now()):
            return False
        return self._lanes.has_room(lane)

    def _let_go(self, lane: Lane) -> None:
        now, held_until = self._clock.now(), lane.host.held_until
        if lane.woken:
            lane.woken = False
            until = self.on_quiet_lane(lane)
            if self._agenda.rest(lane.key, max(until or 0, held_until) if held_until > now else until, now):
                self._called.set()
        if lane.next_due is not None and self._agenda.expect(max(lane.next_due, held_until)):
            self._called.set()
        self._lanes.retire(lane)
        if self._agenda.left():
            self._called.set()

    def _set_timer(self, lane: Lane, moment: int) -> None:
        self._agenda.set_timer(lane, moment)
        self._called.set()

    def _tell_quiet(self) -> None:
        if not self._quiet.is_set() and self.is_quiet:
            self._quiet.set()
