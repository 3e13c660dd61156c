"""The contract of a store: what the rest of holdfast asks of durable state. No engine is named here.

Every change is an operation. The operations of one group are committed together or not at all. An attempt's outcome,
the message's new place and its lane's circuit are one operation, so they can't come apart.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, Self

from holdfast.core.budget import HostClass
from holdfast.core.circuit import Circuit, CircuitState
from holdfast.core.errors import CommitFailed, StoreUnreachable
from holdfast.core.lane import Lane
from holdfast.core.lane_times import Heads
from holdfast.core.message import Attempt, DeadReason, Entry, Message, MessageId, MessageState, Place
from holdfast.core.schedule import Dead, RetryAt
from holdfast.core.store_rules import StoreRules

Done = Callable[[Any], None]

ALL_CLASSES = frozenset(HostClass)
NO_LIMIT = NEVER = 1 << 62
BATCH_BYTES = 1 << 20
"""Limit for the bodies that are read ahead for one lane."""

SCARCE = 0.7
"""The part of the store, used or reserved, above which the oldest delivered records are removed early."""


class IdempotencyKey(NamedTuple):
    """`digest` covers method, target, route and key; `body` detects another body under the same key."""

    digest: bytes
    body: bytes


class Accepted(NamedTuple):
    """The message is on disk. `active`: nothing waited before it in its lane, so delivery gets it directly."""

    active: bool


class Duplicate(NamedTuple):
    """The key was used within its lifetime. Nothing was stored; `id` is that of the first message."""

    id: MessageId


class Conflict(NamedTuple):
    """The key was used within its lifetime, for another body."""


class DoneOrFailed(ABC):
    """A `done` that is also called after a failed commit: its result is then a StoreError."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, result: Any) -> None: ...


@dataclass(slots=True)
class Operation:
    """One change. `done` is called on the loop with the result once it is on disk, in the order of submission.

    After a failed commit only a `DoneOrFailed` is called: all others have nothing to go on from.
    """

    done: Done | None = field(default=None, kw_only=True)


@dataclass(slots=True)
class Accept(Operation):
    """A new message. Result: Accepted, Duplicate, Conflict, or a StoreFull to be raised.

    With a `place` it comes from another holdfast: it keeps its id and its place. `encoded` is the record and the pieces
    of the body, if another process has encoded them.
    """

    message: Message
    key: IdempotencyKey | None = None
    place: Place | None = None
    encoded: tuple[bytes, list[bytes]] | None = None


@dataclass(slots=True)
class Deliver(Operation):
    """A 2xx answer: the message is removed, a small record stays. `lane` is saved too if the circuit changed."""

    entry: Entry
    attempt: Attempt
    lane: Lane | None


@dataclass(slots=True)
class Fail(Operation):
    """A failed attempt. `step` None leaves the place as it is: a probe, or an attempt interrupted by shutdown."""

    entry: Entry
    attempt: Attempt
    step: RetryAt | Dead | None
    lane: Lane


@dataclass(slots=True)
class SaveLane(Operation):
    """A lane's circuit changed without an attempt, or its counters are to be saved."""

    lane: Lane


@dataclass(slots=True)
class Shelve(Operation):
    """Active messages that can't start now go to their lane's queue. Result: how many."""

    messages: Sequence[Message]


@dataclass(slots=True)
class Expire(Operation):
    """The oldest messages of a lane, born before a moment, become dead. Result: their ids, at most `limit`."""

    lane: str
    born_before: int
    now: int
    limit: int
    skip: Container[MessageId] = ()


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Dead letters of a lane or of all, that died from `since` on and before `until`, for a reason or any.

    `after` is where the step before ended.
    """

    lane: str | None = None
    since: int = 0
    until: int = 1 << 62
    reason: DeadReason | None = None
    after: bytes | None = None


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Messages that were not delivered: one, those of a lane, or all; accepted before a moment; in one state or any."""

    lane: str | None = None
    before: int = 1 << 62
    state: MessageState | None = None
    after: MessageId | None = None
    id: MessageId | None = None


@dataclass(frozen=True, slots=True)
class BulkResult:
    """What one bounded step did: to which messages, of which lanes (with their hosts), and where to go on; None at the
    end.
    """

    ids: list[MessageId]
    lanes: dict[str, str]
    after: bytes | None

    @property
    def count(self) -> int:
        return len(self.ids)


@dataclass(slots=True)
class ReplayDead(Operation):
    """Dead messages start again. Result: BulkResult."""

    select: DeadFilter
    now: int
    limit: int


@dataclass(slots=True)
class DropDead(Operation):
    """Dead messages are removed with all that is stored of them. Result: BulkResult."""

    select: DeadFilter
    limit: int


@dataclass(slots=True)
class DropMessages(Operation):
    """Messages that were not delivered are removed with all that is stored of them. Result: BulkResult."""

    select: MessageFilter
    limit: int
    skip: Container[MessageId] = ()


@dataclass(slots=True)
class HandOver(Operation):
    """Messages that another store has on disk are removed here. Result: how many; those that were tried, replayed or
    dropped since they were read stay.
    """

    entries: Sequence[Entry]


class Retried(StrEnum):
    """The result of an operator's retry of one message."""

    DUE = "due"
    REPLAYED = "replayed"
    DELIVERED = "delivered"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class RetryNow(Operation):
    """A waiting message is due now; a dead one starts a new life. `lane` and `host` are its own. Result: Retried."""

    id: MessageId
    now: int
    lane: str
    host: str


@dataclass(slots=True)
class Forget(Operation):
    """An enabled lane with nothing waiting is removed. Result: whether it was."""

    lane: str


class Evicted(NamedTuple):
    """Lanes whose records were removed, and where to go on; None at the end."""

    lanes: list[str]
    after: bytes | None


@dataclass(slots=True)
class EvictLanes(Operation):
    """Records of enabled lanes with nothing waiting or dead are removed to make room, longest idle first. Result:
    Evicted.

    `skip` are lanes in use. Only a store whose size includes such records is asked.
    """

    after: bytes | None
    limit: int
    skip: Container[str]


@dataclass(slots=True)
class Purge(Operation):
    """Removes what is past its retention. Result: how many records, at most about `limit`."""

    delivered_before: int
    dead_before: int
    keys_before: int
    limit: int


@dataclass(slots=True)
class ReviewLanes(Operation):
    """Computes the moments of all lanes by the current config. Result: where to go on, or None.

    With `after` None nothing is done if the last complete review had the same config.
    """

    after: bytes | None
    limit: int


class LaneRecord(NamedTuple):
    """A lane as stored. `run` is the start of the run that wrote `limit`: another run begins in slow start. `answers`
    says whether the host's last attempt got an answer; None if unknown.
    """

    key: str
    host: str
    circuit: Circuit
    limit: int
    run: int
    hold_until: int
    answers: bool | None = None

    @classmethod
    def new(cls, key: str, host: str, rules: StoreRules, now: int) -> Self:
        """The record of a lane that is new, or that can't be read: its circuit begins as enabled now."""
        return cls(key, host, Circuit.new(now), rules.per_host, rules.run, 0)


class LaneQuery(NamedTuple):
    """What to read of a lane: at most so many fresh and due entries; of a disabled one the probe after `probed`.

    Entries of the queue before `read_to` were read already. Of each kind of entries at least one is read, and no more
    after `most_bytes` of bodies.
    """

    lane: str
    now: int
    fresh: int
    due: int
    probed: bytes | None
    skip: frozenset[MessageId]
    read_to: bytes = b""
    most_bytes: int = BATCH_BYTES


class LaneView(NamedTuple):
    """One lane on disk at one moment. `broken` are entries whose record can't be read, with what is wrong."""

    record: LaneRecord | None
    fresh: list[Entry]
    due: list[Entry]
    probe: Entry | None
    more_fresh: bool
    next_due: int | None
    heads: Heads
    broken: list[tuple[MessageId, str]]

    @property
    def size(self) -> int:
        """Bytes of bodies in it."""
        return sum(len(entry.message.body) for entry in (*self.fresh, *self.due))


class Agenda(NamedTuple):
    """Lanes that need attention by now, longest waiting first, and when the next one does after that.

    `passed_over` counts lanes that do, but whose hosts are of a class that was not asked for.
    """

    lanes: list[str]
    next: int | None
    passed_over: int = 0


class OldestFinished(NamedTuple):
    """When the oldest delivered message and dead letter was written: the next sweep depends on it.

    Idempotency keys are removed together with those of their time: `key` is when the last of the oldest was written at
    most.
    """

    delivered: int | None
    dead: int | None
    key: int | None


class MessageView(NamedTuple):
    """What operators see of one message: without its body, and once it is delivered without its headers."""

    message: Message
    size: int
    state: MessageState
    place: Place | None
    dead_reason: DeadReason | None
    finished_at: int | None
    attempts: list[Attempt]


class CircuitView(NamedTuple):
    """A lane with how many of its messages wait and are dead, and the age of the oldest that waits."""

    record: LaneRecord
    waiting: int
    dead: int
    oldest: int | None


class StoreStatistics(NamedTuple):
    path: str
    used_bytes: int
    reserved_bytes: int
    max_bytes: int
    waiting: int
    dead: int
    first: int
    retry: int
    circuits: dict[CircuitState, int]
    oldest_waiting_at: int | None
    next_due_at: int | None
    earliest_expiry_at: int | None
    full: bool


class StoreRoom(NamedTuple):
    """How full a store is. `is_scarce`: what can be removed early is."""

    used_bytes: int
    is_scarce: bool
    full: bool


class Acceptance(Protocol):
    """The part of a store that takes new messages."""

    def mint(self, now: int) -> MessageId: ...

    def submit(self, operation: Accept) -> None: ...


class LaneChange(NamedTuple):
    """One lane changed by an operator: `removed` messages are gone, `replayed` ones start again."""

    lane: str
    host: str
    removed: Container[MessageId] = ()
    replayed: bool = False


class Commit(NamedTuple):
    """One group that is on disk. `done` of each of its operations was called before this is reported.

    `accepted` are its new messages. `arrived` are the messages that this process delivers, in order: an ACTIVE one is
    in no queue and may start at once, any other waits in its lane's queue. `changed` are lanes that delivery must read
    again. `earliest_wake` is when the first of the lanes that the group touched needs attention.
    """

    operations: int
    seconds: float
    accepted: Sequence[Message] = ()
    arrived: Sequence[Entry] = ()
    changed: Sequence[LaneChange] = ()
    earliest_wake: int = NEVER
    is_scarce: bool = False


def lane_changes(operation: Operation, result: Any) -> list[LaneChange]:
    """The lanes that delivery has to read again after an operator's operation."""
    if isinstance(operation, RetryNow):
        if result in (Retried.DUE, Retried.REPLAYED):
            return [LaneChange(operation.lane, operation.host, replayed=result is Retried.REPLAYED)]
    elif isinstance(result, BulkResult):
        if isinstance(operation, ReplayDead):
            return [LaneChange(lane, host, replayed=True) for lane, host in result.lanes.items()]
        removed = frozenset(result.ids)
        return [LaneChange(lane, host, removed) for lane, host in result.lanes.items()]
    return []


class StoreListener:
    """Hears what happens in a store, on the loop. By default it ignores everything."""

    def committed(self, commit: Commit) -> None:
        """A group is on disk."""

    def record_unreadable(self, table: str, key: str, fault: str) -> None:
        """A record can't be read and is skipped; `key` is in hex. Called once for each record."""

    def store_failed(self, error: CommitFailed) -> None:
        """A commit failed. The store writes nothing more."""

    # -- a store that replicas share -----------------------------------------------------------------------------------

    def lease_renewed(self, begins_until: int, run: int) -> None:
        """Attempts may begin until `begins_until`, by the clock's `uptime`; the fleet delivers since `run`."""

    def hosts_gained(self, is_gained: Callable[[str], bool]) -> None:
        """This replica owns more hosts. What it knew of them is out of date."""

    def hosts_leaving(self) -> Collection[str]:
        """Hosts go to another replica: nothing more begins for them here. Returns those with something in memory or
        not written yet; the listener calls the store's `left` when one of them is done.
        """
        return ()

    def ownership_lost(self) -> None:
        """The lease ended: others own every host, and nothing in memory is valid."""

    def store_reconnected(self) -> None:
        """The database was unreachable for longer than a lease and is back, or its clock has jumped."""

    def store_reachable(self, problem: StoreUnreachable | None) -> None:
        """The database became unreachable, for this reason; or reachable again (None)."""

    def clock_jumped(self, ahead: int) -> None:
        """The database's clock jumped ahead by this many milliseconds."""

    async def requested(self, request: bytes) -> bytes:
        """Another replica asks for an operator's action. Returns the answer."""
        raise NotImplementedError

    def spool_filled(self, found: int) -> None:
        """Messages wait in the spool; `found` of them since an earlier run."""

    def spool_emptied(self, messages: int, known: int, duplicates: int) -> None:
        """All messages of the spool are in the database; `known` were there already, `duplicates` have a used key."""


class Store(Acceptance, Protocol):
    """Durable state. `submit` may be called from the loop only; operations are committed in the order of submission."""

    listener: StoreListener

    def submit(self, operation: Operation) -> None: ...

    async def perform(self, operation: Operation) -> Any:
        """Submit, wait for the commit, and return the result or raise the error."""

    @property
    def is_swept_here(self) -> bool:
        """Whether this process removes what is past its retention."""

    @property
    def pending(self) -> int:
        """Operations not yet on disk. Producers wait while there are too many."""

    async def survey(self, asks: Sequence[LaneQuery], bytes_wanted: int = NO_LIMIT) -> list[LaneView]:
        """Returns a view for each query, in order. Once more than `bytes_wanted` were read, the rest may be missing."""

    async def agenda(
        self, now: int, limit: int, skip: Container[str], classes: Container[int] = ALL_CLASSES, since: int = 0
    ) -> Agenda:
        """Returns lanes that need attention from `since` to `now`, of hosts of these classes as far as the store knows
        them.
        """

    async def oldest_finished(self) -> OldestFinished: ...

    async def message_view(self, id: MessageId) -> MessageView | None: ...

    async def message_views(
        self, state: MessageState | None, lane: str | None, after: MessageId | None, limit: int
    ) -> tuple[list[MessageView], MessageId | None]: ...

    async def dead(self, select: DeadFilter, limit: int) -> tuple[list[MessageView], bytes | None]:
        """Returns dead letters whole, and where to go on."""

    async def waiting(self, after: MessageId | None, limit: int) -> tuple[list[Entry], MessageId | None]:
        """Returns messages that are neither delivered nor dead, whole, and where to go on."""

    async def circuit(self, key: str) -> CircuitView | None: ...

    async def circuits(
        self, state: CircuitState | None, after: str | None, limit: int
    ) -> tuple[list[CircuitView], str | None]: ...

    async def statistics(self) -> StoreStatistics: ...

    async def room(self) -> StoreRoom:
        """A small part of the statistics, at a cost that does not depend on how much waits."""


class SharedStore(Store, Protocol):
    """A store that replicas share. Any replica accepts messages. Each host has one owner among the replicas, which
    alone delivers to it and writes its outcomes. Reads and the agenda cover the lanes of this replica's own hosts.
    """

    def owns(self, host: str) -> bool:
        """Whether this replica delivers to a host."""

    def is_leaving(self, host: str) -> bool:
        """Whether a host of this replica goes to another one."""

    def left(self) -> None:
        """Something of a leaving host has ended here."""
