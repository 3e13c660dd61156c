"""Decides when to look at which lane: timers for the lanes in memory, the store's agenda for all others.

The agenda is read when its first moment has come, never on a schedule, so a waiting host costs nothing. Lanes without
room in memory are passed over, and come back when there is room. A read continues where the last one ended, so that
many overdue lanes are not walked again for each lane that comes due.
"""

from collections.abc import Callable
from heapq import heappop, heappush

from holdfast.core.budget import HostClass
from holdfast.core.lane import Lane
from holdfast.delivery.lane_cache import LaneCache
from holdfast.store.port import Agenda, Store

LANES_A_READ = 128
SNOOZE = 1_000
"""Milliseconds in which a lane is not woken again, unless one of its records was written."""
PASSED_OVER_A_SECOND = 4_096
"""Lanes passed over for lack of room that are walked again within a second. More lanes take longer."""
NEVER = 1 << 62


class AgendaReader:
    """`wake` is called when the next look is earlier than known before."""

    def __init__(self, store: Store, lanes: LaneCache, wake: Callable[[], None]) -> None:
        self._store = store
        self._lanes = lanes
        self._wake = wake
        self._timers: list[tuple[int, int, Lane]] = []
        self._set = 0
        self._snoozed: dict[str, int] = {}
        self._passed_over = 0
        self._lacking: set[HostClass] = set()
        self._read_at = 0
        self._read_to = 0
        self._again_at = 0
        self._reading = False

    @property
    def next_at(self) -> int:
        """When to look again; 0 during a read."""
        return 0 if self._reading else min(self._read_at, self._timers[0][0] if self._timers else NEVER)

    @property
    def has_overdue(self) -> bool:
        """Whether lanes that need attention were passed over for lack of room."""
        return self._passed_over > 0

    def set_timer(self, lane: Lane, moment: int) -> None:
        """Wake a lane that is in memory."""
        if lane.timer is None or moment < lane.timer:
            lane.timer = moment
            self._set += 1
            heappush(self._timers, (moment, self._set, lane))
            self._wake()

    def note_commit(self, earliest_wake: int, now: int) -> None:
        """A group was written; the first of its lanes needs attention at `earliest_wake`.

        A lane that needs attention now is in memory, or has just left it; then the agenda is read again soon.
        """
        if earliest_wake > now:
            self._look_at(earliest_wake)
        else:
            self._read_again_at(now + SNOOZE)

    def snooze(self, key: str, until: int | None, now: int) -> None:
        """A woken lane leaves memory. Read the agenda again in a while, for this lane not before `until`."""
        if until is not None:
            self._snoozed[key] = until
        self._read_again_at(max(self._snoozed.get(key, 0), now + SNOOZE))

    def end_snooze(self, key: str) -> None:
        """A record of this lane was written, so its moment in the agenda is new."""
        self._snoozed.pop(key, None)

    def read_now(self) -> None:
        """The agenda may have changed: read it from the start."""
        self._read_again_at(0)

    def pass_over(self, lane: Lane, now: int) -> None:
        """A lane that needs attention now leaves memory, because there is no room for its messages."""
        lane.woken = False
        self._snoozed.pop(lane.key, None)
        self._lacking.add(lane.host.host_class)
        self._passed_over += 1
        self._read_again_at(now + SNOOZE)

    def note_room(self) -> None:
        """A lane left memory. If others were passed over and there is much room for them now, read the agenda."""
        if self._passed_over and any(map(self._lanes.memory.is_half_free, self._lacking)):
            self._read_again_at(0)

    def expect(self, moment: int) -> None:
        """A lane that leaves memory needs attention at `moment`."""
        self._look_at(moment)

    def expired_timers(self, now: int) -> list[Lane]:
        """Returns the lanes whose timer has expired and makes them live."""
        lanes = []
        while self._timers and self._timers[0][0] <= now:
            moment, _, lane = heappop(self._timers)
            if lane.timer == moment:
                lane.timer = None
                lanes.append(self._lanes.make_live(lane.key, lane.host.name))
        return lanes

    async def read_due(self, now: int) -> list[Lane]:
        """Reads the lanes that are not in memory and need attention now, and makes them live."""
        if self._read_at > now:
            return []
        self._snoozed = {key: until for key, until in self._snoozed.items() if until > now}
        if self._again_at <= now:
            self._read_to, self._again_at, self._passed_over = 0, NEVER, 0
        skip = Skip(self._lanes.live, self._snoozed)
        memory = self._lanes.memory
        self._lacking = {each for each in HostClass if not memory.admits(each, idle=True)}
        classes = frozenset(HostClass) - self._lacking
        self._read_at = NEVER
        self._reading = True
        agenda = await self._store.agenda(now, LANES_A_READ, skip, classes, self._read_to)
        self._note_read(agenda, skip, now)
        self._reading = False
        lanes = [self._lanes.make_live(key, None) for key in agenda.lanes]
        for lane in lanes:
            lane.stale = lane.woken = True
            self._snoozed[lane.key] = now + SNOOZE
        return lanes

    def _note_read(self, agenda: Agenda, skip: "Skip", now: int) -> None:
        """The next read continues where this one ended. Lanes that were passed over are read again from the start: the
        more there are, the later.
        """
        self._read_to = now + 1 if agenda.next is None or agenda.next > now else agenda.next
        self._passed_over += agenda.passed_over
        self._look_at(min(agenda.next or NEVER, self._again_at))
        if skip.met_live or self._passed_over:
            self._read_again_at(now + SNOOZE * (1 + self._passed_over // PASSED_OVER_A_SECOND))
        if self._snoozed:
            self._read_again_at(min(self._snoozed.values()))

    def _read_again_at(self, moment: int) -> None:
        """Read the agenda from its start at `moment`."""
        self._again_at = min(self._again_at, moment)
        self._look_at(moment)

    def _look_at(self, moment: int) -> None:
        if moment < self._read_at:
            self._read_at = moment
            if not self._reading:
                self._wake()


class Skip:
    """The lanes that the agenda skips: in memory, or woken just now.

    A live lane may leave memory before it has done what the agenda woke it for. If one was skipped, the agenda is read
    again.
    """

    def __init__(self, live: dict[str, Lane], snoozed: dict[str, int]) -> None:
        self._live = live
        self._snoozed = snoozed
        self.met_live = False

    def __contains__(self, key: object) -> bool:
        if key in self._live:
            self.met_live = True
            return True
        return key in self._snoozed
