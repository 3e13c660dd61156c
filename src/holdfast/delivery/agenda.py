"""When to look at which lane: timers of the lanes in memory, and the store's agenda for all the others.

The agenda is read when its first moment has come, never on a schedule: a waiting host costs nothing meanwhile. Lanes
that there is no room for in memory are passed over, and looked for again when there is. A read goes on from where the
last one ended, so that many overdue lanes are not walked for each one that comes due.
"""

from heapq import heappop, heappush

from holdfast.core.budget import HostClass
from holdfast.core.lane import Lane
from holdfast.delivery.lanes import LaneCache
from holdfast.store.port import Agenda, Store

LANES_A_READ = 128
SNOOZE = 1_000
"""A lane that was woken is not woken again before this has passed, unless something of it was written meanwhile."""
PASSED_OVER_A_SECOND = 4_096
"""Lanes passed over for want of room that are walked again within a second; more of them are later."""
NEVER = 1 << 62


class AgendaKeeper:
    def __init__(self, store: Store, lanes: LaneCache) -> None:
        self._store = store
        self._lanes = lanes
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
        """When to look again; 0 while that is done."""
        return 0 if self._reading else min(self._read_at, self._timers[0][0] if self._timers else NEVER)

    @property
    def has_overdue(self) -> bool:
        """Whether lanes need attention that there was no room for."""
        return self._passed_over > 0

    def set_timer(self, lane: Lane, moment: int) -> None:
        """Wake a lane that is in memory."""
        if lane.timer is None or moment < lane.timer:
            lane.timer = moment
            self._set += 1
            heappush(self._timers, (moment, self._set, lane))

    def hear(self, wake: int, now: int) -> bool:
        """A group was written and touched a lane that needs attention then; True if that is earlier than was known.

        A lane that needs it now is in memory already, or has left it meanwhile and gets another look.
        """
        return self._look_at(wake) if wake > now else self._look_again_at(now + SNOOZE)

    def rest(self, key: str, until: int | None, now: int) -> bool:
        """A lane that was woken leaves memory; look whether the agenda still names it, not before `until` if given."""
        if until is not None:
            self._snoozed[key] = until
        return self._look_again_at(max(self._snoozed.get(key, 0), now + SNOOZE))

    def awake(self, key: str) -> None:
        """Something of a lane was written: its moment in the agenda is a new one."""
        self._snoozed.pop(key, None)

    def look_now(self) -> None:
        """Whatever was known, the agenda may have changed."""
        self._look_again_at(0)

    def pass_over(self, lane: Lane, now: int) -> None:
        """A lane leaves memory that needs attention now, since there is no room for its messages."""
        lane.woken = False
        self._snoozed.pop(lane.key, None)
        self._lacking.add(lane.host.host_class)
        self._passed_over += 1
        self._look_again_at(now + SNOOZE)

    def left(self) -> bool:
        """Something left memory: lanes that were passed over may come. True if there are some, and much room."""
        if not self._passed_over or not any(map(self._lanes.memory.is_half_free, self._lacking)):
            return False
        return self._look_again_at(0)

    def expect(self, moment: int) -> bool:
        """A lane that leaves memory needs attention then. True if that is earlier than was known."""
        return self._look_at(moment)

    def fired(self, now: int) -> list[Lane]:
        """The lanes whose timer has come; live again if they were not."""
        lanes = []
        while self._timers and self._timers[0][0] <= now:
            moment, _, lane = heappop(self._timers)
            if lane.timer == moment:
                lane.timer = None
                lanes.append(self._lanes.enlist(lane.key, lane.host.name))
        return lanes

    async def due(self, now: int) -> list[Lane]:
        """The lanes that are not in memory and need attention now; live from here on."""
        if self._read_at > now:
            return []
        self._snoozed = {key: until for key, until in self._snoozed.items() if until > now}
        if self._again_at <= now:
            self._read_to, self._again_at, self._passed_over = 0, NEVER, 0
        skip = self._skip(now)
        memory = self._lanes.memory
        self._lacking = {each for each in HostClass if not memory.admits(each, idle=True)}
        classes = frozenset(HostClass) - self._lacking
        self._read_at = NEVER
        self._reading = True
        agenda = await self._store.agenda(now, LANES_A_READ, skip, classes, self._read_to)
        self._reading = False
        self._note_read(agenda, skip, now)
        lanes = [self._lanes.enlist(key, None) for key in agenda.lanes]
        for lane in lanes:
            lane.stale = lane.woken = True
            self._snoozed[lane.key] = now + SNOOZE
        return lanes

    def _note_read(self, agenda: Agenda, skip: "Skip", now: int) -> None:
        """The next read goes on from where this one ended. What was passed over is looked at again from the start, the
        later the more that was.
        """
        self._read_to = now + 1 if agenda.next is None or agenda.next > now else agenda.next
        self._passed_over += agenda.passed_over
        self._look_at(min(agenda.next or NEVER, self._again_at))
        if skip.met_live or self._passed_over:
            self._look_again_at(now + SNOOZE * (1 + self._passed_over // PASSED_OVER_A_SECOND))
        if self._snoozed:
            self._look_again_at(min(self._snoozed.values()))

    def _skip(self, now: int) -> "Skip":
        return Skip(self._lanes.live, self._snoozed)

    def _look_again_at(self, moment: int) -> bool:
        """Read the agenda from its start then."""
        self._again_at = min(self._again_at, moment)
        return self._look_at(moment)

    def _look_at(self, moment: int) -> bool:
        earlier = moment < self._read_at
        if earlier:
            self._read_at = moment
        return earlier


class Skip:
    """Lanes that the agenda need not name: in memory, or woken a moment ago.

    One in memory may leave it without having done what the agenda wanted of it, so it is looked for again.
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
