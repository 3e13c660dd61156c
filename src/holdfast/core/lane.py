"""A lane is one circuit's queue as it stands in memory; a host carries the limits that its lanes share.

With `circuit.scope = "host"` each host has one lane; with URLs as circuits a host has several, and limits, slow
start, rate and Retry-After holds still go by host:port. Only the head of a queue is in memory, the rest is on disk:
`more_fresh` and `next_due` say that there is a rest.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from holdfast.core.budget import HostClass, class_of
from holdfast.core.circuit import Circuit, CircuitState
from holdfast.core.message import AttemptKind, Entry, MessageId, Standing

LOW_WATER = 32
"""Entries left in memory below which the next batch is read: what starts while that read is under way."""
ENTRIES_A_READ = 128
READ_AHEAD = 5_000
"""Milliseconds: of a host with a rate no more is read than it may be sent in this time."""
SHORT_HOLD = 1_000
"""Milliseconds: a host that is held for longer leaves memory, and its place to others."""


@dataclass(slots=True, eq=False)
class Host:
    """The limits of one host:port: in flight, slow start, rate, and the hold that a Retry-After asked for.

    `answers` tells whether its last attempt ended with an answer, whatever that said; None before the first one has
    ended. budget.py says what follows. `reads` are those of its circuits' lanes that are about to be read.
    """

    name: str
    per_host: int
    limit: int
    interval: float = 0.0
    streak: int = 0
    in_flight: int = 0
    retries_in_flight: int = 0
    hold_until: int = 0
    next_slot: float = 0.0
    parked_until: float = 0.0
    address_wait_until: int = 0
    postponed_until: int = 0
    answers: bool | None = None
    last_kind: AttemptKind = AttemptKind.RETRY
    lanes: int = 0
    known: bool = False
    ready: dict[AttemptKind, dict["Lane", None]] = field(
        default_factory=lambda: {AttemptKind.FIRST: {}, AttemptKind.RETRY: {}, AttemptKind.PROBE: {}}
    )
    reads: set["Lane"] = field(default_factory=set)
    _heads: list[tuple[bytes, str, "Lane"]] = field(default_factory=list)

    def configure(self, per_host: int, interval: float) -> None:
        """Other limits from now on; a host in slow start stays in it."""
        was_ramping = self.limit < self.per_host
        self.per_host = per_host
        self.limit = min(self.limit, per_host) if was_ramping else per_host
        self.interval = interval

    def slow_start(self) -> None:
        """From 1 again, whatever is read of it later: a host may be replayed to before its record was read."""
        self.limit = 1
        self.streak = 0
        self.known = True

    def succeeded(self) -> None:
        """During slow start the limit doubles after as many successes as the limit."""
        if self.limit >= self.per_host:
            return
        self.streak += 1
        if self.streak >= self.limit:
            self.limit = min(self.limit * 2, self.per_host)
            self.streak = 0

    def failed(self) -> None:
        """Only slow start falls back: at full limit it is the circuit that judges a host."""
        if self.limit < self.per_host:
            self.slow_start()

    def has_room(self, kind: AttemptKind) -> bool:
        """Retries hold at most half of `per_host`, so that fresh messages always find a place."""
        if self.in_flight >= self.limit:
            return False
        return kind is not AttemptKind.RETRY or self.retries_in_flight < max(1, self.per_host // 2)

    def quiet_until(self) -> float:
        quiet: float = self.hold_until if self.hold_until > self.next_slot else self.next_slot
        if self.address_wait_until > quiet:
            quiet = self.address_wait_until
        return self.postponed_until if self.postponed_until > quiet else quiet

    @property
    def held_until(self) -> int:
        """Until when it is left alone, since it asked for that or its address is too busy."""
        return self.postponed_until if self.postponed_until > self.hold_until else self.hold_until

    @property
    def host_class(self) -> HostClass:
        return class_of(self.answers)

    def note_order(self, lane: "Lane", *, is_ready: bool) -> None:
        """Note which message of one of its circuits is next: over all of them first attempts start in order of age."""
        if not is_ready:
            if lane.fresh and not lane.hydrated:
                self.reads.add(lane)  # it will be read, and its messages are in memory already
            return
        head = position(lane.fresh[0])
        if lane.listed_head != head:
            lane.listed_head = head
            heappush(self._heads, (head, lane.key, lane))

    def next_lane(self, kind: AttemptKind) -> "Lane":
        """The lane that the next attempt of a kind is for: of fresh messages the oldest, else the lanes take turns."""
        ready = self.ready[kind]
        lane = self._oldest_head() if kind is AttemptKind.FIRST and len(ready) > 1 else None
        if lane is None:
            lane = next(iter(ready))
            del ready[lane]
            ready[lane] = None
        return lane

    def _oldest_head(self) -> "Lane | None":
        """The lane whose next message is the oldest, if lanes of this host were listed."""
        ready = self.ready[AttemptKind.FIRST]
        while self._heads:
            head, _, lane = self._heads[0]
            if lane in ready and position(lane.fresh[0]) == head:
                return lane
            heappop(self._heads)
            if lane.listed_head == head:
                lane.listed_head = None
        return None

    @property
    def awaits_older(self) -> bool:
        """Whether a lane that is about to be read may have an older message than the next one in memory.

        With several circuits on one host no fresh message starts before an older one of another circuit.
        """
        lane = self._oldest_head()
        return lane is not None and position(lane.fresh[0]) >= min(other.unread_from for other in self.reads)

    def started(self, kind: AttemptKind, now: int) -> None:
        self.in_flight += 1
        self.retries_in_flight += kind is AttemptKind.RETRY
        self.next_slot = max(float(now), self.next_slot) + self.interval if self.interval else 0.0
        if kind is not AttemptKind.PROBE:
            self.last_kind = kind

    def ended(self, kind: AttemptKind) -> None:
        self.in_flight -= 1
        self.retries_in_flight -= kind is AttemptKind.RETRY


@dataclass(slots=True, eq=False)
class Lane:
    """The head of one circuit's queue.

    `known` are the ids in memory, in flight, or with an outcome not yet on disk, each with what the memory budget
    counts it for; `lately` those settled while a read of this lane was under way, which may still show them where they
    were. One that is not `stored` has no record on disk yet; a `dirty` one has changes that the store was not given.
    A `stale` lane has to be read again before anything is decided by the heads of its queues; a `woken` one came by the
    agenda. `shelving` counts messages on their way from memory to the queue on disk, which no later one may overtake.
    What is in the queue before `read_to` is in memory already. `listed_head` is the message its host knows as next.
    """

    key: str
    host: Host
    circuit: Circuit = field(default_factory=Circuit)
    hydrated: bool = False
    stored: bool = True
    stale: bool = True
    dirty: bool = False
    fresh: deque[Entry] = field(default_factory=deque)
    due: deque[Entry] = field(default_factory=deque)
    probe: Entry | None = None
    probing: bool = False
    more_fresh: bool = False
    next_due: int | None = None
    oldest: int | None = None
    probe_from: int | None = None
    known: dict[MessageId, tuple[HostClass, int]] = field(default_factory=dict)
    loading: bool = False
    read_to: bytes = b""
    listed_head: bytes | None = None
    shelving: int = 0
    woken: bool = False
    timer: int | None = None
    lately: set[MessageId] = field(default_factory=set)

    @property
    def enabled(self) -> bool:
        return self.circuit.state is CircuitState.ENABLED

    @property
    def is_idle(self) -> bool:
        """Nothing of it is in memory or under way: what it waits for is on disk and in the agenda."""
        return not (self.known or self.loading or self.shelving)

    def take_younger(self, born: int) -> list[Entry]:
        """Take out of memory what never was in the queue and is younger than a message that is."""
        younger = [
            entry for entry in self.fresh if entry.place.standing is Standing.ACTIVE and entry.place.born >= born
        ]
        for entry in younger:
            self.fresh.remove(entry)
        return younger

    @property
    def unread_from(self) -> bytes:
        """No message that is to be read, or may not start before its lane was read, is older than this."""
        if self.fresh:
            return b"\xff" if self.hydrated else position(self.fresh[0])
        return (self.oldest or 0).to_bytes(8, "big")

    def wants_entries(self, now: int) -> bool:
        return self.stale or self.runs_low(now)

    def runs_low(self, now: int) -> bool:
        """Whether something waits on disk that should be in memory by now."""
        if not self.enabled or self.is_held(now):
            return False
        if self.more_fresh and not self.shelving and self.fresh_wanted:
            return True
        return self.next_due is not None and self.next_due <= now and self.due_wanted > 0

    def is_held(self, now: int) -> bool:
        """Whether its host is left alone for so long that nothing of it should be in memory."""
        return self.host.held_until > now + SHORT_HOLD

    @property
    def fresh_wanted(self) -> int:
        """How many fresh entries to read now."""
        return self._wanted(len(self.fresh))

    @property
    def due_wanted(self) -> int:
        """How many due entries to read now."""
        return 0 if len(self.due) >= LOW_WATER else self._wanted(self.due_held)

    def _wanted(self, held: int) -> int:
        ahead = self.read_ahead
        return ahead if held < min(LOW_WATER, ahead) else 0

    @property
    def read_ahead(self) -> int:
        interval = self.host.interval
        return max(1, min(ENTRIES_A_READ, int(READ_AHEAD / interval))) if interval else ENTRIES_A_READ

    @property
    def due_held(self) -> int:
        """Delayed first attempts are due like retries and stand among the fresh ones here: they count too."""
        delayed = sum(entry.place.standing is Standing.RETRY for entry in self.fresh)
        return len(self.due) + delayed

    def wants_probe(self, now: int) -> bool:
        circuit = self.circuit
        if not self.hydrated or circuit.state is not CircuitState.DISABLED or self.probing or self.probe:
            return False
        if self.probe_from is None:
            return False
        return max(circuit.next_probe_at or 0, self.probe_from) <= now


def position(entry: Entry) -> bytes:
    """A message's place in the order of age: what fresh messages start and probes rotate by."""
    return entry.place.born.to_bytes(8, "big") + entry.message.id


def next_probe(probed: bytes | None, oldest: Callable[[bytes | None], Iterable[Entry | None]]) -> Entry | None:
    """The oldest that was not probed in this state, else the oldest of all. `oldest` tells the first one of each queue,
    or of those after a position.
    """
    for after in (probed, None) if probed else (None,):
        found = [entry for entry in oldest(after) if entry is not None]
        if found:
            return min(found, key=position)
    return None
