"""A lane is the queue of one circuit; a host has the limits that its lanes share.

With `circuit.scope = "host"` each host has one lane. With a circuit for each URL a host has several, and its limits,
slow start, rate and Retry-After hold still apply to host:port. Only the head of a queue is in memory; `more_fresh` and
`next_due` say whether the rest on disk is empty.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from holdfast.core.budget import HostClass, class_of
from holdfast.core.circuit import Circuit, CircuitState
from holdfast.core.message import AttemptKind, Entry, MessageId, Standing

LOW_WATER = 32
"""With fewer entries left in memory the next batch is read. They are sent while the read is in progress."""
ENTRIES_A_READ = 128
READ_AHEAD = 5_000
"""Milliseconds: for a host with a rate, only the messages that it may receive in this time are read."""
SHORT_HOLD = 1_000
"""Milliseconds: messages of a host that is held for longer leave memory."""


@dataclass(slots=True, eq=False)
class Host:
    """The limits of one host:port: in flight, slow start, rate, and the hold that a Retry-After asked for.

    `answers` tells whether its last attempt got an answer, whatever its status; None before the first one has ended.
    `reads` are its lanes that are about to be read.
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
        """A host in slow start stays in it."""
        was_ramping = self.limit < self.per_host
        self.per_host = per_host
        self.limit = min(self.limit, per_host) if was_ramping else per_host
        self.interval = interval

    def slow_start(self) -> None:
        """Sets `known`, so that a record read later does not undo it: a replay may come before the read."""
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
        """Only slow start begins again: at the full limit the circuit judges the host."""
        if self.limit < self.per_host:
            self.slow_start()

    def has_room(self, kind: AttemptKind) -> bool:
        """Retries use at most half of `per_host`, so that fresh messages always find a place."""
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
        """Until when it gets no requests, because of its Retry-After or its busy address."""
        return self.postponed_until if self.postponed_until > self.hold_until else self.hold_until

    @property
    def host_class(self) -> HostClass:
        return class_of(self.answers)

    def note_order(self, lane: "Lane", *, is_ready: bool) -> None:
        """Note the next message of one of its lanes: first attempts of all lanes together start in order of age."""
        if not is_ready:
            if lane.fresh and not lane.hydrated:
                self.reads.add(lane)  # it is read soon, and some of its messages are in memory already
            return
        head = position(lane.fresh[0])
        if lane.listed_head != head:
            lane.listed_head = head
            heappush(self._heads, (head, lane.key, lane))

    def next_lane(self, kind: AttemptKind) -> "Lane":
        """The lane of the next attempt of a kind: that of the oldest fresh message, else the lanes take turns."""
        ready = self.ready[kind]
        lane = self._oldest_head() if kind is AttemptKind.FIRST and len(ready) > 1 else None
        if lane is None:
            lane = next(iter(ready))
            del ready[lane]
            ready[lane] = None
        return lane

    def _oldest_head(self) -> "Lane | None":
        """The lane whose next message is the oldest, if any was noted."""
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

        No fresh message of a host starts before an older one of another circuit.
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

    - `known`: the ids in memory, in flight, or with an outcome not yet on disk, with their shares of the memory budget.
    - `settled_while_reading`: ids that a read in progress may still find at their old place.
    - `stored`: it has a record on disk. `dirty`: it has changes that the store was not given.
    - `stale`: it must be read again before the heads of its queues are used.
    - `woken`: the agenda named it.
    - `shelving`: messages on their way from memory to the queue on disk. No later one may overtake them.
    - `read_to`: entries of the queue before this position are in memory already.
    - `listed_head`: the message that its host has noted as next.
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
    settled_while_reading: set[MessageId] = field(default_factory=set)

    @property
    def enabled(self) -> bool:
        return self.circuit.state is CircuitState.ENABLED

    @property
    def is_idle(self) -> bool:
        """Nothing of it is in memory or in flight. The agenda on disk knows when it needs attention."""
        return not (self.known or self.loading or self.shelving)

    def take_younger(self, born: int) -> list[Entry]:
        """Remove from memory, and return, the messages that were never in the queue and are not older than `born`."""
        younger = [
            entry for entry in self.fresh if entry.place.standing is Standing.ACTIVE and entry.place.born >= born
        ]
        for entry in younger:
            self.fresh.remove(entry)
        return younger

    @property
    def unread_from(self) -> bytes:
        """No message that waits for the next read is older than this position."""
        if self.fresh:
            return b"\xff" if self.hydrated else position(self.fresh[0])
        return (self.oldest or 0).to_bytes(8, "big")

    def wants_entries(self, now: int) -> bool:
        return self.stale or self.runs_low(now)

    def runs_low(self, now: int) -> bool:
        """Whether messages on disk should be in memory by now."""
        if not self.enabled or self.is_held(now):
            return False
        if self.more_fresh and not self.shelving and self.fresh_wanted:
            return True
        return self.next_due is not None and self.next_due <= now and self.due_wanted > 0

    def is_held(self, now: int) -> bool:
        """Whether its host gets no requests for so long that its messages should not be in memory."""
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
        """Due entries in memory. Delayed first attempts are due like retries, and are among the fresh ones here."""
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
    """A message's place in the order of age, by which fresh messages start and probes rotate."""
    return entry.place.born.to_bytes(8, "big") + entry.message.id


def next_probe(probed: bytes | None, oldest: Callable[[bytes | None], Iterable[Entry | None]]) -> Entry | None:
    """The oldest message that was not a probe since the circuit was disabled, else the oldest of all. `oldest` returns
    the first entry of each queue, or the first after a position.
    """
    for after in (probed, None) if probed else (None,):
        found = [entry for entry in oldest(after) if entry is not None]
        if found:
            return min(found, key=position)
    return None
