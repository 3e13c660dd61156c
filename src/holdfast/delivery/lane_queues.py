"""The heads of the lanes' queues in memory: LaneReader reads them from the store, LaneQueues adds new messages and puts
messages that can't start back to disk.

A read shows the store as it was when it began. It may still show messages whose attempt ended during the read, and does
not show messages that came during the read. `Lane.settled_while_reading` and the `note_*` methods make up for both.
"""

import logging
from collections.abc import Callable, Container
from itertools import islice

from holdfast.clock import Clock
from holdfast.core.counters import Counters
from holdfast.core.lane import Lane, position
from holdfast.core.message import Entry, Message, MessageId, Standing, id_text
from holdfast.core.start_order import StartOrder
from holdfast.delivery.lane_cache import LaneCache
from holdfast.events import Events
from holdfast.store.port import BATCH_BYTES, LaneQuery, LaneView, Shelve, Store

LANES_A_READ = 64


class LaneReader:
    """Reads circuits and the next entries of queues, several lanes at once. `wake` is called when a lane is wanted."""

    def __init__(
        self, store: Store, lanes: LaneCache, clock: Clock, counters: Counters, events: Events, wake: Callable[[], None]
    ) -> None:
        self._store = store
        self._lanes = lanes
        self._clock = clock
        self._counters = counters
        self._events = events
        self._wake = wake
        self._meanwhile: dict[Lane, list[tuple[int, bool]]] = {}
        self._broken: set[MessageId] = set()
        self.wanted: dict[str, Lane] = {}
        self.overtaking: dict[Lane, list[Entry]] = {}
        """Messages that arrived before their lane was read, if the read found older ones in the lane's queue."""

    def want(self, lane: Lane) -> None:
        """Read this lane soon."""
        lane.loading = True
        self.wanted[lane.key] = lane
        if lane.key != lane.host.name:
            lane.host.reads.add(lane)
        self._wake()

    def forget(self, lane: Lane) -> None:
        """Don't read this lane, and ignore a read of it that is under way."""
        if lane.loading:
            self._done(lane)
        self._meanwhile.pop(lane, None)
        self.overtaking.pop(lane, None)

    def _done(self, lane: Lane) -> None:
        lane.loading = False
        del self.wanted[lane.key]
        lane.host.reads.discard(lane)

    def note_queued(self, lane: Lane, message: Message) -> None:
        """A message went to this lane's queue on disk, or to the messages due later."""
        self._note(lane, message.born, queued=not message.is_delayed or message.born <= self._clock.now())

    def note_due(self, lane: Lane, due: int) -> None:
        """A message of this lane is due again at `due`."""
        self._note(lane, due, queued=False)

    def is_reading(self, lane: Lane) -> bool:
        return lane in self._meanwhile

    async def read(self) -> list[Lane]:
        """Reads some of the wanted lanes. Returns them, with those that can't be read any more for lack of room: the
        caller looks at all of them again.
        """
        unreadable = [lane for lane in self.wanted.values() if not self.may_read(lane)]
        for lane in unreadable:
            self._done(lane)
        lanes = list(islice(self.wanted.values(), LANES_A_READ))
        if not lanes:
            return unreadable
        most_bytes = min(BATCH_BYTES, self._bytes_left // len(lanes))
        queries = [self._query(lane)._replace(most_bytes=most_bytes) for lane in lanes]
        for lane in lanes:
            self._meanwhile[lane] = []
        views = await self._store.survey(queries, self._bytes_left)
        read = [lane for lane in lanes[: len(views)] if lane in self._meanwhile]
        for lane, view in zip(lanes, views, strict=False):
            if lane in self._meanwhile:
                self._done(lane)
                self._take(lane, view)
        for lane in lanes[len(views) :]:
            self._meanwhile.pop(lane, None)
        return unreadable + read

    async def hydrate(self, lane: Lane) -> None:
        """Read a lane's circuit."""
        view = (await self._store.survey([LaneQuery(lane.key, 0, 0, 0, None, frozenset())]))[0]
        if not lane.hydrated:
            self._lanes.hydrate(lane, view.record, self._clock.now())

    def may_read(self, lane: Lane) -> bool:
        """A lane's record and a probe for it are always read; its messages only while there is room."""
        return not (lane.hydrated and lane.enabled) or self._lanes.has_room(lane)

    @property
    def _bytes_left(self) -> int:
        memory = self._lanes.memory
        return max(0, memory.size - memory.used) // 2

    def _query(self, lane: Lane) -> LaneQuery:
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
        """The entries that are older than every message that went to the queue during the read."""
        if lane.shelving:
            return []
        queued = [moment for moment, is_queued in self._meanwhile[lane] if is_queued]
        return [entry for entry in entries if entry.place.born < min(queued)] if queued else entries

    def _take_heads(self, lane: Lane, view: LaneView) -> None:
        """Take the rest of the view, and apply what came during the read."""
        self._report(view.broken)
        lane.more_fresh = view.more_fresh or lane.shelving > 0
        lane.next_due = view.next_due
        lane.oldest = view.heads.oldest
        lane.probe_from = view.heads.probe_from
        lane.settled_while_reading.clear()
        for moment, queued in self._meanwhile.pop(lane):
            self._note(lane, moment, queued=queued)

    def _queue_probe(self, lane: Lane, probe: Entry | None, passed: set[MessageId]) -> None:
        """All waiting messages may be in flight or unreadable. Then there is no probe until something changes."""
        if probe is None:
            lane.probe_from = None
        elif probe.message.id not in passed:
            lane.probe = probe
            self._lanes.charge(lane, probe.message)

    def _queue(self, lane: Lane, entries: list[Entry]) -> None:
        """Delayed first attempts are among the retries on disk, and among the fresh messages in memory."""
        for entry in entries:
            self._lanes.charge(lane, entry.message)
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
        """An unreadable record stays where it is, is logged once, and delays nothing else."""
        for id, fault in broken:
            if id not in self._broken:
                self._broken.add(id)
                self._counters.broken_records += 1
                self._events.log(logging.ERROR, "record_broken", message=id_text(id), detail=fault)


class LaneQueues:
    """Adds new messages to the queues in memory, and moves messages that can't start back to disk.

    `attend` is called with a lane whose messages are back on disk. `changed` collects the lanes that the group being
    committed changed.
    """

    def __init__(
        self,
        store: Store,
        lanes: LaneCache,
        start_order: StartOrder,
        reader: LaneReader,
        clock: Clock,
        attend: Callable[[Lane], None],
    ) -> None:
        self._store = store
        self._lanes = lanes
        self._start_order = start_order
        self._reader = reader
        self._clock = clock
        self._attend = attend
        self.changed: dict[Lane, None] = {}

    def add(self, entry: Entry) -> None:
        """A message is on disk. If it is in no queue yet, it starts soon or goes to its lane's queue."""
        message, place = entry
        lane = self._lanes.make_live(message.lane, message.host)
        if place.standing is not Standing.ACTIVE:
            self._reader.note_queued(lane, message)
            self.changed[lane] = None
            return
        if message.id in lane.known:
            return
        if place.born > message.born:
            lane.host.slow_start()  # a replay
        if place.due > self._clock.now() or place.retry or not self._has_room(lane):
            self._shelve(lane, [message])
        else:
            lane.fresh.append(entry)
            self._lanes.charge(lane, message)
        self.changed[lane] = None

    def _has_room(self, lane: Lane) -> bool:
        if lane.more_fresh or lane.shelving or (lane.hydrated and not lane.enabled):
            return False
        if len(lane.fresh) >= 2 * lane.read_ahead or lane.is_held(self._clock.now()):
            return False
        return self._lanes.has_room(lane)

    def sort_after_read(self, lane: Lane, *, is_leaving: bool) -> None:
        """If older messages were found on disk, younger ones in memory go behind them. A lane that goes to another
        replica is emptied.
        """
        younger = [entry.message for entry in self._reader.overtaking.pop(lane, ())]
        for message in younger:
            self._lanes.release(lane, message)
        if is_leaving:
            self.empty(lane)
            return
        if younger:
            self._shelve(lane, younger)
        if not lane.enabled:
            self.retreat(lane)

    def retreat(self, lane: Lane) -> None:
        """No message of this lane may start for a while: those in memory wait on disk like the others."""
        shelved = [entry.message for entry in self.empty(lane) if entry.place.standing is Standing.ACTIVE]
        if shelved:
            self._shelve(lane, shelved)

    def empty(self, lane: Lane) -> list[Entry]:
        """Remove all waiting messages of a lane from memory. Returns them."""
        entries = [*lane.fresh, *lane.due]
        lane.fresh.clear()
        lane.due.clear()
        lane.read_to = b""
        for entry in entries:
            self._lanes.release(lane, entry.message)
        self._start_order.touch(lane, self._clock.now())
        return entries

    def remove(self, lane: Lane, ids: Container[MessageId]) -> None:
        """These messages were removed from the store and must not be sent."""
        for queue in (lane.fresh, lane.due):
            for entry in [entry for entry in queue if entry.message.id in ids]:
                queue.remove(entry)
                self._lanes.release(lane, entry.message)
        if lane.probe is not None and lane.probe.message.id in ids:
            self.drop_probe(lane)

    def drop_probe(self, lane: Lane) -> None:
        if lane.probe is not None:
            self._lanes.release(lane, lane.probe.message)
            lane.probe = None

    def _shelve(self, lane: Lane, messages: list[Message]) -> None:
        """Move messages from memory to their lane's queue on disk."""

        def shelved(_: object) -> None:
            lane.shelving -= len(messages)
            for message in messages:
                self._reader.note_queued(lane, message)
            self._attend(lane)

        lane.shelving += len(messages)
        self._store.submit(Shelve(messages, done=shelved))
