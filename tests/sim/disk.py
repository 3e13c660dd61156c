"""Checks every group that is on disk, and the disk itself between two runs."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.core.errors import StoreFull
from holdfast.core.message import DeadReason, MessageState, id_text
from holdfast.store import port
from holdfast.store.embedded import queries as story_reads
from holdfast.store.embedded import reads
from holdfast.store.embedded.group import Group
from holdfast.store.records import lane_key
from tests.sim.model import (
    DISABLED,
    DROPPED,
    ENABLED,
    EXHAUSTED,
    EXPIRED,
    MOMENT,
    WAITING,
    CircuitModel,
    Life,
    MessageModel,
)
from tests.sim.witness import Witness, by_url, short
from tests.sim.world import raw_id
from tests.store.memory import MemoryEngine

GRACE = 600_000
COST = 4_096
FRESH = (ENABLED, None, 0, (0, 0), None)
DEAD_FOR = {EXHAUSTED: DeadReason.EXHAUSTED, EXPIRED: DeadReason.EXPIRED}


@dataclass
class DiskWitness(Witness):
    keys: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    kills: int = 0
    limit: int = 0
    grace: int = 0
    purged: bool = False
    numbers_changed: bool = False
    changed_at: int = 0

    # -- what is asked of the store ------------------------------------------------------------------------------------

    def submitted(self, operation: port.Operation) -> None:
        if not self.alive:
            return
        now = self.clock()
        if isinstance(operation, port.Expire):
            circuit = self.circuit(operation.lane)
            self.check(now >= self.started_at + self.grace, f"{operation.lane}: expiry in the grace after a start")
            self.check(circuit.now.state != ENABLED, f"{operation.lane}: expiry in an enabled circuit")
            before_start = (circuit.now.since or 0) < self.started_at
            if circuit.now.state == DISABLED and before_start and not circuit.probed_in_run:
                ready = [m.id for m in self._waiting(operation.lane) if not m.held_at(now)]
                self.check(not ready, f"{operation.lane}: expiry before a probe of this run, of {ready[:2]}")
        elif isinstance(operation, port.Purge):
            by_time = operation.dead_before or 0 < operation.delivered_before < now - MOMENT
            self.check(not by_time or now >= self.started_at + self.grace, "a purge by time in the grace after a start")
            retention = self.config.retention
            self.check(operation.dead_before <= now - retention.dead, "dead letters purged before their time")
            if operation.delivered_before > now - retention.delivered or operation.keys_before > now:
                self.purged = True

    # -- groups on disk ------------------------------------------------------------------------------------------------

    def prepared(self, group: Group) -> None:
        """A group was closed: what happened to circuits by now is in it."""
        self.marks = {key: len(circuit.history) for key, circuit in self.circuits.items()}

    def written(self, group: Group, results: list[Any]) -> None:
        touched = set(group.lanes)
        for operation, result in zip(group.operations, results, strict=True):
            if isinstance(operation, (port.Deliver, port.Fail)):
                touched.add(operation.entry.message.lane)
            look: Callable[..., None] | None = getattr(self, f"_{type(operation).__name__.lower()}", None)
            if look is not None:
                look(operation, result, group.now)
        for key in touched:
            self.circuit(key).written(self.marks.get(key, 0))
        for key in group.lanes:
            self.circuit(key).forgotten = False

    def _accept(self, operation: port.Accept, result: Any, now: int) -> None:
        message = operation.message
        id = id_text(message.id)
        if operation.key is not None:
            known = self.keys.get(operation.key.digest)
            if known and message.accepted_at - known[1] < self.config.ingest.idempotency and not self.purged:
                same = isinstance(result, port.Duplicate) and id_text(result.id) == known[0]
                self.check(same, f"{id}: its key was used for {known[0]}, and the answer is {result}")
        if isinstance(result, StoreFull):
            self._check_refusal(message.host, len(message.body), result)
        if not isinstance(result, port.Accepted):
            return
        if operation.key is not None:
            self.keys[operation.key.digest] = id, message.accepted_at
        life = Life(born=message.born, due=message.born, held=message.born > message.accepted_at)
        size = len(message.body)
        self.messages[id] = MessageModel(
            id, message.lane, message.host, size, life.held, life, life, waits_since=self.clock()
        )
        self.circuit(message.lane).busy(now)
        self.host(message.host)
        if not self.kills:
            used = self._held_by(message.host)
            self.check(used <= self.limit * self.config.store.host_share, f"{id}: its host is over its share: {used}")

    def _check_refusal(self, host: str, size: int, refusal: StoreFull) -> None:
        if refusal.host is not None and not self.kills:
            used = self._held_by(host) + COST + size
            full = used > self.limit * self.config.store.host_share
            self.check(full, f"{host}: refused for its share, of which it holds {used}")

    def _held_by(self, host: str) -> int:
        """Waiting and dead messages of a host, as SPEC counts them."""
        gone = ("delivered", DROPPED)
        mine = [m for m in self.messages.values() if m.host == host and m.disk.state not in gone and not m.may_be_gone]
        return sum(COST + m.size for m in mine)

    def _deliver(self, operation: port.Deliver, result: Any, now: int) -> None:
        message = self._known(operation.entry.message.id)
        if message is not None and message.disk.state == WAITING:
            self.check(message.now.state == "delivered", f"{message.id}: written as delivered, and no 2xx was seen")
            message.disk = message.now

    def _fail(self, operation: port.Fail, result: Any, now: int) -> None:
        message = self._known(operation.entry.message.id)
        if message is not None and message.disk.state == WAITING:
            message.disk = message.now
            message.waits_since = self.clock()

    def _expire(self, operation: port.Expire, result: Any, now: int) -> None:
        enabled_at = self.circuit(operation.lane).now.enabled_at
        for message in filter(None, map(self._known, result)):
            expiry = max(message.now.born, enabled_at) + self.config.retry.expire_after
            self.check(message.waiting, f"{message.id}: expired when {message.now.state}")
            self.check(expiry <= operation.now, f"{message.id}: expired before {expiry}")
            self.check(message.id not in self.host(message.host).in_flight, f"{message.id}: expired in flight")
            message.now = message.disk = replace(message.now, state=EXPIRED, ended=operation.now)
            self.note(f"expired {short(message.id)}")

    def _replaydead(self, operation: port.ReplayDead, result: port.BulkResult, now: int) -> None:
        for message in filter(None, map(self._known, result.ids)):
            self._replayed(message, operation.now)

    def _retrynow(self, operation: port.RetryNow, result: port.Retried, now: int) -> None:
        message = self._known(operation.id)
        if message is None:
            return
        if result is port.Retried.REPLAYED:
            self._replayed(message, operation.now)
        elif result is port.Retried.DUE and message.waiting and (message.now.tried or message.now.held):
            born = min(message.now.born, operation.now)
            due = replace(message.now, due=operation.now, born=born, held=False)
            message.now = message.disk = due
            message.waits_since = self.clock()

    def _replayed(self, message: MessageModel, now: int) -> None:
        self.check(message.now.state in DEAD_FOR, f"{message.id}: replayed when {message.now.state}")
        message.replayed(now)
        self.circuit(message.lane).probed.pop(message.id, None)
        message.waits_since = self.clock()
        self.host(message.host).owes_slow_start = self.clock()

    def _dropmessages(self, operation: port.DropMessages, result: port.BulkResult, now: int) -> None:
        for message in filter(None, map(self._known, result.ids)):
            self.check(message.disk.state != "delivered", f"{message.id}: dropped when delivered")
            message.now = message.disk = replace(message.now, state=DROPPED, ended=self.clock())

    _dropdead = _dropmessages

    def _forget(self, operation: port.Forget, result: bool, now: int) -> None:
        if not result:
            return
        circuit = self.circuit(operation.lane)
        self.note(f"forgot {operation.lane}")
        crossed = now - circuit.idle_since <= MOMENT
        # An operator's freeze of this moment is in memory, and written back by the group behind this one.
        changing = now - (circuit.now.since or 0) <= MOMENT
        since = 0 if changing else circuit.now.since or 0
        idle = max(circuit.idle_before if crossed else circuit.idle_since, since)
        self.check(circuit.now.state == ENABLED or changing, f"{operation.lane}: forgotten when {circuit.now.state}")
        self.check(crossed or not self._waiting(operation.lane), f"{operation.lane}: forgotten with messages waiting")
        self.check(idle + self.config.circuit.forget_after <= now, f"{operation.lane}: forgotten, busy at {idle}")
        circuit.forgotten = True

    def _evictlanes(self, operation: port.EvictLanes, result: port.Evicted, now: int) -> None:
        for lane in result.lanes:
            self.check(self.circuit(lane).now.state == ENABLED, f"{lane}: evicted when {self.circuit(lane).now.state}")
            self.check(not self._waiting(lane), f"{lane}: evicted with messages waiting")
            self.circuit(lane).forgotten = True

    def forgot(self, key: str) -> None:
        """A circuit left memory for good: the next message is the first sight of it."""
        self.circuits.pop(key, None)
        name = key.removeprefix("http://").partition("/")[0].removesuffix(":80")
        if not any(name in other for other in self.circuits):
            self.hosts.pop(f"{name}:80", None)
            self.known_hosts.discard(f"{name}:80")

    def _purge(self, operation: port.Purge, result: int, now: int) -> None:
        for message in self.messages.values():
            before = operation.dead_before if message.disk.state in DEAD_FOR else operation.delivered_before
            if message.disk.state != WAITING and message.disk.ended < before:
                message.may_be_gone = True

    def _known(self, id: bytes) -> MessageModel | None:
        return self.messages.get(id_text(id))

    def _waiting(self, lane: str) -> list[MessageModel]:
        return [m for m in self.messages.values() if m.lane == lane and m.waiting]

    # -- between two runs ----------------------------------------------------------------------------------------------

    def run_begins(self, engine: MemoryEngine) -> None:
        self.started_at = self.clock()
        self.grace = min(GRACE, self.config.circuit.probe_every)
        self.most_retries = max(self.most_retries, self.config.retry.max_retries)
        self.hosts.clear()
        self.ends.clear()
        with engine.read() as transaction:
            views = reads.circuits(transaction, None, None, 10_000)[0]
        self.known_hosts = {view.record.host for view in views}
        for view in views:
            host = self.host(view.record.host)
            host.may_hold_until = max(host.may_hold_until, view.record.hold_until)
            if not by_url(host.name):
                host.hold_until = host.may_hold_until
        for circuit in self.circuits.values():
            circuit.probed_in_run = circuit.probe_asked = False
        self.alive = True

    def run_ended(self, engine: MemoryEngine, *, clean: bool) -> None:
        """The gateway is gone: what is on disk now is all there is."""
        self.alive = False
        self.kills += not clean
        for message in self.messages.values():
            if clean:
                self.check(message.now == message.disk, f"{message.id}: {message.now} was not written at shutdown")
            message.now = message.disk
        with engine.read() as transaction:
            for key in sorted(self.circuits):
                view = reads.circuit(transaction, lane_key(key))
                self._adopt(key, None if view is None else view.record.circuit, clean)
            self._check_messages(transaction)

    def _adopt(self, key: str, real: Any, clean: bool) -> None:
        """Of the outcomes only successes of a host that had not failed may be missing, and only after a crash."""
        circuit, now = self.circuits[key], self.clock()
        needed, most = (len(circuit.history),) * 2 if clean else circuit.cut_back()
        if real is None:
            if circuit.forgotten or not circuit.history:
                del self.circuits[key]
                return
            self.check(False, f"circuit {key} is not on disk")
            return
        seen, expected = self.real_shape(real, now), self.shape(circuit, now)
        for number in range(most, needed - 1, -1):
            circuit.keep(number)
            if self.shape(circuit, now) == seen:
                break
        else:
            if circuit.forgotten and seen == FRESH:
                self.circuits[key] = CircuitModel(key)
                return
            self.check(False, f"circuit {key} on disk: {seen}, by the history {expected}")
        if not clean or circuit.probe_asked:
            circuit.next_probe = real.next_probe_at or circuit.next_probe
            circuit.idle_since = real.last_attempt_at or 0
            circuit.probed.clear()
        if real.silent_since is None:
            circuit.standings[-1] = replace(circuit.now, silent_since=None)

    def _check_messages(self, transaction: Any) -> None:
        for message in self.messages.values():
            view = story_reads.message_view(transaction, raw_id(message.id))
            if view is None:
                gone = message.may_be_gone or message.disk.state == DROPPED
                self.check(gone, f"{message.id}: lost, it was {message.disk.state}")
            else:
                self._check_story(message, view)

    def _told_as(self, message: MessageModel) -> tuple[MessageState, ...]:
        held = self.circuit(message.lane).now.state != ENABLED
        return (MessageState.HELD,) if held else (MessageState.QUEUED, MessageState.RETRYING)

    def _check_story(self, message: MessageModel, view: port.MessageView) -> None:
        life = message.disk
        about = f"{message.id}: on disk {view.state} {view.dead_reason or ''}, by the history {life}"
        if life.state in DEAD_FOR:
            self.check(view.state is MessageState.DEAD and view.dead_reason is DEAD_FOR[life.state], about)
        elif life.state == "delivered":
            self.check(view.state is MessageState.DELIVERED, about)
        else:
            self.check(life.state == WAITING and view.state in self._told_as(message), about)
            place = view.place
            self.check(place is not None and place.retry == life.tried, f"{about}: {place}")
            if place is not None and life.tried:
                in_time = life.due - 1 <= place.due <= life.due + 1
                self.check(in_time, f"{message.id}: due {place.due}, not {life.due}")
        failed = life.attempts
        recorded = [attempt.number for attempt in view.attempts if attempt.fault is not None]
        expected = [number for number in range(1, failed + 1) if number == 1 or number > failed - 15]
        self.check(recorded == expected, f"{message.id}: attempts {recorded} on record, not {expected}")
