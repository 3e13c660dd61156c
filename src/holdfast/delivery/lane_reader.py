"""Reads lanes from the store: their circuits, and the next entries of their queues, in batches of several lanes.

A read shows the store as it was when it began. What was settled meanwhile may still be shown where it was, and what was
accepted meanwhile is not shown: `Lane.settled_while_reading` and the hints make up for both.
"""

import logging
from itertools import islice

from holdfast.clock import Clock
from holdfast.core.counters import Counters
from holdfast.core.lane import Lane, position
from holdfast.core.message import Entry, Message, MessageId, id_text
from holdfast.delivery.lanes import LaneCache
from holdfast.events import Events
from holdfast.store.port import BATCH_BYTES, LaneQuery, LaneView, Store

LANES_A_READ = 64


class LaneReader:
    def __init__(self, store: Store, lanes: LaneCache, clock: Clock, counters: Counters, events: Events) -> None:
        self._store = store
        self._lanes = lanes
        self._clock = clock
        self._counters = counters
        self._events = events
        self._meanwhile: dict[Lane, list[tuple[int, bool]]] = {}
        self._broken: set[MessageId] = set()
        self.wanted: dict[str, Lane] = {}
        self.overtaking: dict[Lane, list[Entry]] = {}
        """Messages that arrived before their lane was read, where older ones turned out to wait in its queue."""

    def want(self, lane: Lane) -> None:
        lane.loading = True
        self.wanted[lane.key] = lane
        if lane.key != lane.host.name:
            lane.host.reads.add(lane)

    def forget(self, lane: Lane) -> None:
        """A lane is not wanted any more, also if it is just being read."""
        if lane.loading:
            self._done(lane)
        self._meanwhile.pop(lane, None)
        self.overtaking.pop(lane, None)

    def _done(self, lane: Lane) -> None:
        lane.loading = False
        del self.wanted[lane.key]
        lane.host.reads.discard(lane)

    def note_queued(self, lane: Lane, message: Message) -> None:
        """A message went to this lane's queue on disk, or among those due later."""
        self._note(lane, message.born, queued=not message.is_delayed or message.born <= self._clock.now())

    def note_due(self, lane: Lane, due: int) -> None:
        """A message of this lane is to be tried again then."""
        self._note(lane, due, queued=False)

    def is_reading(self, lane: Lane) -> bool:
        return lane in self._meanwhile

    async def read(self) -> list[Lane]:
        """Read the lanes that were asked for, some at a time. Returns those, and others that there is no room for any
        more: what they need now is the caller's to see.
        """
        unreadable = [lane for lane in self.wanted.values() if not self.may_read(lane)]
        for lane in unreadable:
            self._done(lane)
        lanes = list(islice(self.wanted.values(), LANES_A_READ))
        if not lanes:
            return unreadable
        most_bytes = min(BATCH_BYTES, self._bytes_left // len(lanes))
        asks = [self._ask(lane)._replace(most_bytes=most_bytes) for lane in lanes]
        for lane in lanes:
            self._meanwhile[lane] = []
        views = await self._store.survey(asks, self._bytes_left)
        read = [lane for lane in lanes[: len(views)] if lane in self._meanwhile]
        for lane, view in zip(lanes, views, strict=False):
            if lane in self._meanwhile:
                self._done(lane)
                self._take(lane, view)
        for lane in lanes[len(views) :]:
            self._meanwhile.pop(lane, None)
        return unreadable + read

    async def hydrate(self, lane: Lane) -> None:
        """Make sure that a lane's circuit is known."""
        view = (await self._store.survey([LaneQuery(lane.key, 0, 0, 0, None, frozenset())]))[0]
        if not lane.hydrated:
            self._lanes.hydrate(lane, view.record, self._clock.now())

    def may_read(self, lane: Lane) -> bool:
        """What is known of a lane, and a probe for it, is always read; its messages only while there is room."""
        return not (lane.hydrated and lane.enabled) or self._lanes.has_room(lane)

    @property
    def _bytes_left(self) -> int:
        memory = self._lanes.memory
        return max(0, memory.size - memory.used) // 2

    def _ask(self, lane: Lane) -> LaneQuery:
        fresh, due = lane.fresh_wanted, lane.due_wanted
        may_send = lane.enabled or not lane.hydrated
        if not may_send or lane.is_held(self._clock.now()) or not self._lanes.has_room(lane):
            fresh = due = 0
        if lane.shelving:
            fresh = 0
        if lane.stale:
            lane.read_to = b""
        skip = frozenset(lane.known.keys() | self._broken)
        return LaneQuery(lane.key, self._clock.now(), fresh, due, lane.circuit.probed, skip, lane.read_to)

    def _take(self, lane: Lane, view: LaneView) -> None:
        if not lane.hydrated:
            self._lanes.hydrate(lane, view.record, self._clock.now())
            if view.heads.waiting is not None:
                self.overtaking[lane] = lane.take_younger(view.heads.waiting)
        passed = lane.settled_while_reading | lane.known.keys()
        lane.stale = False
        in_order = self._in_order(lane, view.fresh)
        self._take_heads(lane, view)
        if lane.enabled:
            self._queue(lane, [entry for entry in (*in_order, *view.due) if entry.message.id not in passed])
            if in_order:
                lane.read_to = position(in_order[-1])
        if len(in_order) < len(view.fresh):
            lane.more_fresh = True
        elif lane.wants_probe(self._clock.now()):
            self._queue_probe(lane, view.probe, passed)

    def _in_order(self, lane: Lane, entries: list[Entry]) -> list[Entry]:
        """The entries that no message overtakes which was on its way to the queue when they were read."""
        if lane.shelving:
            return []
        queued = [moment for moment, is_queued in self._meanwhile[lane] if is_queued]
        return [entry for entry in entries if entry.place.born < min(queued)] if queued else entries

    def _take_heads(self, lane: Lane, view: LaneView) -> None:
        """What there is besides the entries, as it was when the read began, and what came meanwhile."""
        self._report(view.broken)
        lane.more_fresh = view.more_fresh or lane.shelving > 0
        lane.next_due = view.next_due
        lane.oldest = view.heads.oldest
        lane.probe_from = view.heads.probe_from
        lane.settled_while_reading.clear()
        for moment, queued in self._meanwhile.pop(lane):
            self._note(lane, moment, queued=queued)

    def _queue_probe(self, lane: Lane, probe: Entry | None, passed: set[MessageId]) -> None:
        """What waits may be all in flight or broken: then there is nothing to probe with until something changes."""
        if probe is None:
            lane.probe_from = None
        elif probe.message.id not in passed:
            lane.probe = probe
            self._lanes.hold(lane, probe.message)

    def _queue(self, lane: Lane, entries: list[Entry]) -> None:
        """Delayed first attempts stand among the retries on disk, and among the fresh ones here."""
        for entry in entries:
            self._lanes.hold(lane, entry.message)
            (lane.due if entry.place.retry else lane.fresh).append(entry)

    def _note(self, lane: Lane, moment: int, *, queued: bool) -> None:
        if lane in self._meanwhile:
            self._meanwhile[lane].append((moment, queued))
        lane.oldest = moment if lane.oldest is None else min(lane.oldest, moment)
        if queued:
            lane.more_fresh = True
            lane.probe_from = 0
            if moment <= int.from_bytes(lane.read_to[:8], "big"):
                lane.read_to = b""
            return
        lane.next_due = moment if lane.next_due is None else min(lane.next_due, moment)
        lane.probe_from = moment if lane.probe_from is None else min(lane.probe_from, moment)

    def _report(self, broken: list[tuple[MessageId, str]]) -> None:
        """A record that can't be read stays where it is, is told once, and holds up nothing else."""
        for id, fault in broken:
            if id not in self._broken:
                self._broken.add(id)
                self._counters.broken_records += 1
                self._events.log(logging.ERROR, "record_broken", message=id_text(id), detail=fault)
