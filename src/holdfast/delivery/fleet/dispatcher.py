"""The loop of one replica among others. What it may send is what it has claimed, under a number that its outcomes are
recorded by and for as long as its lease lasts; circuits and limits are the store's, and what others change of them is
told. Hints may get lost: the agenda is looked at with every beat.
"""

from collections import Counter

from holdfast.clock import Clock
from holdfast.core.board import Board, Start
from holdfast.core.budget import HostClass
from holdfast.core.circuit import Change, CircuitState
from holdfast.core.fleet import HEARD_WITHIN, LEASE, Crew, Watch, at_hand, has_more, stranded
from holdfast.core.lane import Lane
from holdfast.core.message import Entry, ErrorKind, Kind, Message
from holdfast.core.outcome import Outcome, of_error
from holdfast.delivery.agenda import NEVER, AgendaKeeper, Skip
from holdfast.delivery.courier import Courier
from holdfast.delivery.dispatcher import Dispatcher
from holdfast.delivery.fleet.reader import FleetReader
from holdfast.delivery.fleet.roster import FleetRoster
from holdfast.delivery.fleet.settling import FleetSettling
from holdfast.delivery.settling import Settlement
from holdfast.http.errors import AddressBusy
from holdfast.store.port import Fail, LaneRecord, SharedStore, Switch, Verb, Verdict


class FleetAgenda(AgendaKeeper):
    """A lane in memory that knows of nothing more to do may have been given something by others."""

    def _skip(self, now: int) -> Skip:
        return Skip({key: lane for key, lane in self._roster.live.items() if has_more(lane, now)}, self._snoozed)


class FleetDispatcher(Dispatcher):
    """`on_back` and `on_crew` are told after the dispatcher has seen to it."""

    _reads = FleetReader
    _keeps = FleetAgenda
    _store: SharedStore
    _roster: FleetRoster
    _settling: FleetSettling
    _reader: FleetReader

    def __init__(
        self,
        store: SharedStore,
        board: Board,
        roster: FleetRoster,
        courier: Courier,
        settling: FleetSettling,
        clock: Clock,
    ) -> None:
        super().__init__(store, board, roster, courier, settling, clock)
        self._may_begin = True
        self._beat_at = clock.now()
        self._heard_at = self._beat_at + HEARD_WITHIN
        self._promised: Counter[str] = Counter()
        self._steps_back = False
        self.on_back = self.on_crew = _nothing
        self._reader.give_back = self._give_back
        store.on_offer = self.offered
        store.on_lane = self.changed
        store.on_call = self.called
        store.on_beat = self.beat
        store.on_crew = self.joined
        store.on_lost = self.lost
        store.on_back = self.back

    # -- what the store tells ----------------------------------------------------------------------------------------

    def offered(self, message: Message) -> bool:
        """Whether a message that is about to be accepted can start here soon; if not, any replica may have it."""
        if self._nursery is None or not self._store.may_begin(self._clock.now()):
            return False
        key, lane = message.lane, self._roster.find(message.lane)
        has_room = self._has_room(lane) if lane else self._fits(key, self._roster.share_of(message.host), 0)
        self._promised[key] += has_room
        return has_room

    def accepted(self, message: Message, active: bool) -> None:
        self._fence = self._store.number
        self._promised[message.lane] -= active
        super().accepted(message, active)

    def committed(self, earliest_wake: int) -> None:
        self._promised.clear()  # a group is offered as a whole, and told of before the next one is
        super().committed(earliest_wake)

    def changed(self, record: LaneRecord) -> None:
        """Another replica changed a circuit. If it is not in memory the agenda names it, once there is something to do;
        if it is, this may be known already: a change is told of more than once.
        """
        lane = self._roster.find(record.key)
        if lane is not None and lane.hydrated and lane.circuit.spell != record.circuit.spell:
            self._give_back_probe(lane)
            self._roster.doubt(lane)
            self.revive(record.key, record.host)

    def called(self, key: str) -> None:
        """A lane has something to do: a message that may start, or a probe."""
        lane = self._roster.find(key)
        if lane is None or lane.host.limit or not lane.enabled:
            self.revive(key)

    def beat(self) -> None:
        """The lease was renewed. If that took so long that it had run out, the others have shared out all there is."""
        now, before = self._clock.now(), self._beat_at
        self._beat_at = now
        if now - before >= LEASE:
            self._come_anew()
        elif self._heard_at <= now and not self._steps_back:
            self._heard_at = NEVER
            self._share_out(self._roster.watch.settled())
        self._roster.forget_cold()
        self._look_at_agenda()

    def joined(self, crew: Crew) -> None:
        """Replicas came or went."""
        self._heard_at = self._clock.now() + HEARD_WITHIN
        self._share_out(self._roster.watch.heard(crew))
        self._look_at_agenda()
        self.on_crew()

    def _come_anew(self) -> None:
        self._heard_at = self._clock.now() + HEARD_WITHIN
        self._share_out(self._roster.watch.anew())

    def _share_out(self, watch: Watch) -> None:
        """Each replica has another part of every limit. What is in flight above it ends by itself."""
        self._roster.share_out(watch)
        self._review_shares(list(self._roster.live.values()))

    def step_back(self, steps_back: bool) -> None:
        """While the process drains it has no part of anything, unless nobody else has: what is under way ends, and what
        has not begun is for others at once. So none of it is cut off at the end of the drain, and comes again.
        """
        self._steps_back = steps_back
        self._come_anew()

    def lost(self) -> None:
        """This replica was taken for dead. What it has in memory is others' now; what is under way ends, in vain."""
        for lane in self._roster.live.values():
            self._empty(lane, [lane.fresh, lane.due])
            self._drop_probe(lane)
        self._come_anew()
        self._roster.forget_views()
        for lane in list(self._roster.live.values()):
            self.attend(lane)

    def back(self) -> None:
        """The store was away: whatever was not heard of meanwhile is looked for."""
        for lane in list(self._roster.live.values()):
            lane.stale = True
            self.attend(lane)
        self._look_at_agenda()
        self.on_back()

    def _look_at_agenda(self) -> None:
        self._agenda.look_now()
        self._called.set()
        if not self._may_begin:
            self.look_again()

    # -- what operators ask ------------------------------------------------------------------------------------------

    async def unfreeze(self, key: str, host: str) -> Change | None:
        return (await self._switch(key, host, Verb.UNFREEZE)).change

    async def freeze(self, key: str, host: str) -> Change | None:
        return (await self._switch(key, host, Verb.FREEZE)).change

    async def probe(self, key: str, host: str) -> bool:
        record = (await self._switch(key, host, Verb.PROBE)).record
        return record is not None and record.circuit.state is CircuitState.DISABLED

    async def _switch(self, key: str, host: str, verb: Verb) -> Verdict:
        verdict: Verdict = await self._store.perform(Switch(key, host, verb, self._clock.now()))
        lane = self._roster.enlist(key, host)
        if verdict.record is not None:
            self._take_over(lane, verdict.record)
        if verdict.change is not None:
            self._settling.tell_change(lane, verdict.change)
        self.revive(key, host)
        return verdict

    def slow_start(self, key: str, host: str) -> None:
        """The store has reset the limit together with the replay."""
        self.revive(key, host)

    def lane_of(self, key: str) -> Lane | None:
        """The store knows better."""
        return None

    @property
    def is_first(self) -> bool:
        """Whether what one replica does for all is this one's to do."""
        return self._roster.watch.crew.rank == 0

    # -- circuits and limits, as the store tells of them ---------------------------------------------------------------

    def _settled(self, start: Start, settlement: Settlement, result: Verdict) -> None:
        if result.record is not None:
            self._take_over(start.lane, result.record)
        self._settling.judged(start, settlement, result)
        super()._settled(start, settlement._replace(due=None) if result.fenced else settlement, result)
        stays = isinstance(settlement.operation, Fail) and settlement.operation.step is None
        if stays or result.fenced:
            start.lane.stale = True  # a read that passes it over may just be claiming it again

    def _take_over(self, lane: Lane, record: LaneRecord) -> None:
        """What is in memory by an earlier word of the store's has to fit the present one; mostly it does."""
        spell, limit = lane.circuit.spell, lane.host.limit
        self._roster.adopt(lane, record)
        if lane.circuit.spell != spell:
            lane.stale = True
            self._give_back_probe(lane)
        elif lane.hydrated and lane.host.limit == limit:
            return
        host = lane.host
        self._review_shares([lane, *host.ready[Kind.FIRST], *host.ready[Kind.RETRY]])

    def _review_shares(self, lanes: list[Lane]) -> None:
        """Put lanes on the board by their limits of now."""
        now = self._clock.now()
        for lane in lanes:
            if lane.hydrated:
                self._sort_out(lane)
            self._board.touch(lane, now)

    # -- claims ------------------------------------------------------------------------------------------------------

    def _sort_out(self, lane: Lane) -> None:
        """What has no chance to start here is others' to send."""
        queues = stranded(lane)
        if queues:
            self._give_back(lane, self._empty(lane, queues))

    def _seat(self, lane: Lane, now: int) -> None:
        if lane.hydrated and lane.circuit.state is not CircuitState.DISABLED:
            self._give_back_probe(lane)
        super()._seat(lane, now)

    def _retreat(self, lane: Lane) -> None:
        self._give_back(lane, self._empty(lane, [lane.fresh, lane.due]))

    def _give_back_probe(self, lane: Lane) -> None:
        probe = self._drop_probe(lane)
        if probe is not None:
            self._give_back(lane, [probe])

    def _drop_probe(self, lane: Lane) -> Entry | None:
        probe, lane.probe = lane.probe, None
        if probe is not None:
            self._roster.release(lane, probe.message)
        return probe

    def _give_back(self, lane: Lane, entries: list[Entry]) -> None:
        if entries:
            self._shelve(lane, [entry.message for entry in entries])

    def _shelve(self, lane: Lane, messages: list[Message]) -> None:
        """They are this replica's until that is written: until then no read may bring them back to memory."""
        for message in messages:
            self._roster.hold(lane, message)
        super()._shelve(lane, messages)

    def _shelved(self, lane: Lane, messages: list[Message]) -> None:
        for message in messages:
            self._roster.release(lane, message)
        lane.stale = True  # where they stand, and who has them by now, only a read can say

    def _has_room(self, lane: Lane) -> bool:
        if lane.more_fresh or lane.shelving or (lane.hydrated and not lane.enabled):
            return False
        return self._fits(lane.key, lane.host.limit, len(lane.fresh))

    def _fits(self, key: str, limit: int, held: int) -> bool:
        has_memory = self._roster.memory.admits(HostClass.ANSWERING, idle=False)
        return held + self._promised[key] < at_hand(limit) and has_memory

    # -- the lease ---------------------------------------------------------------------------------------------------

    def _pump(self, now: int) -> None:
        self._may_begin = self._store.may_begin(now)
        if self._may_begin:
            super()._pump(now)

    def _pause_ends(self) -> int:
        return super()._pause_ends() if self._may_begin else NEVER

    async def _attempt(self, start: Start) -> tuple[Outcome, int] | AddressBusy:
        now = self._clock.now()
        if not self._store.may_begin(now):
            return of_error(ErrorKind.INTERRUPTED, "the lease ran out before it began"), now
        return await super()._attempt(start)


def _nothing() -> None: ...
