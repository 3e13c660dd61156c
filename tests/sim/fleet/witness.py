"""Looks at every request of every replica as it begins, and at every commit in the order of commits.

A rule that another replica's change makes hold only once it is heard of names the beat by which it must be: what a
replica does after a beat that began after a commit is done knowing it. What was under way when its replica was killed,
stood still or could not reach the database is `disturbed`: that alone may be sent twice, and be above a limit.
"""

from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from answers import GivenAnswer
from holdfast.core.board import Start
from holdfast.core.circuit import Circuit
from holdfast.core.message import Fault, id_text
from holdfast.store import port
from sim.fleet.lines import Group
from sim.model import (
    BUCKETS,
    DELIVERED,
    DISABLED,
    DROPPED,
    ENABLED,
    EXPIRED,
    FROZEN,
    WAITING,
    CircuitModel,
    Life,
    MessageModel,
)
from sim.witness import PROBE, Witness, _meaning, short

if TYPE_CHECKING:
    from sim.fleet.replica import Replica

EARLY = 200
"""Milliseconds by which two probes may be closer than their claims were: a claim is answered as late as that."""
FALLEN_DEAD = ("exhausted", EXPIRED)


@dataclass(eq=False)
class Asked:
    """One request. `end` is what came back, None if nothing did."""

    replica: "Replica"
    fence: int
    id: str
    lane: str
    host: str
    kind: str
    began: int
    disturbed: bool
    ended: int | None = None
    end: Any = None
    is_recorded: bool = False

    @property
    def delivered(self) -> bool:
        return isinstance(self.end, GivenAnswer) and 200 <= self.end.status <= 299

    @property
    def is_over(self) -> bool:
        return self.ended is not None and self.is_recorded and not self.delivered


@dataclass
class FleetWitness(Witness):
    asked: dict[str, list[Asked]] = field(default_factory=dict)
    unrecorded: list[Asked] = field(default_factory=list)
    probes: dict[str, tuple[int, int]] = field(default_factory=dict)
    probe_asked: dict[str, int] = field(default_factory=dict)
    changes: dict[str, int] = field(default_factory=dict)
    keys: dict[bytes, str] = field(default_factory=dict)
    evicted: bool = False
    """Whether delivered records and keys left early, for want of room."""
    audit: Any = None
    _orders: Any = field(default_factory=lambda: count(1))
    _next: int = 1
    _done: dict[int, tuple["Replica", Group, Any]] = field(default_factory=dict)

    # -- requests ------------------------------------------------------------------------------------------------------

    def begins(self, replica: "Replica", start: Start, *, stood_still: bool) -> Asked:
        """`stood_still`: it was decided before the process stood still, and is sent after that."""
        message, now = start.entry.message, self.clock()
        id, kind = id_text(message.id), str(start.kind)
        fence = start.entry.fence or replica.store.number
        disturbed = stood_still or replica.is_disturbed
        asked = Asked(replica, fence, id, message.lane, message.host, kind, now, disturbed)
        self.note(f"{replica.name} begins {kind} {short(id)} {message.lane}{' disturbed' if disturbed else ''}")
        about = f"{kind} of {id} to {message.lane} by {replica.name}"
        known = self.messages.get(id)
        self.check(known is not None, f"{about}: a message that is not in the database")
        if known is not None:
            dropped = known.now.state == DROPPED
            if not stood_still and not dropped:
                self._check_claim(about, asked)
            self._check_repeat(about, asked)
            self._check_time(about, asked, known)
        self._check_circuit_of(about, asked)
        self._check_limit(about, asked)
        self.asked.setdefault(id, []).append(asked)
        self.unrecorded.append(asked)
        return asked

    def _check_claim(self, about: str, asked: Asked) -> None:
        owner, lease_until = self.audit.claim_of(asked.id, asked.fence)
        self.check(owner == asked.fence, f"{about}: it is {owner}'s, not {asked.fence}'s")
        self.check(lease_until is not None and lease_until > asked.began, f"{about}: its lease was over")

    def _check_repeat(self, about: str, asked: Asked) -> None:
        for earlier in self.asked.get(asked.id, ()):
            if not earlier.is_over:
                told = "delivered" if earlier.delivered else "open" if earlier.ended is None else "not recorded"
                self.check(
                    earlier.disturbed, f"{about}: sent again, {told} since {earlier.began} by {earlier.replica.name}"
                )

    def _check_time(self, about: str, asked: Asked, message: MessageModel) -> None:
        life, now = message.now, asked.began
        if asked.kind == PROBE:
            self.check(not message.held_at(now), f"{about}: it is held by Holdfast-Delay or Retry-After")
            return
        self.check(now >= life.due or life.state == DROPPED, f"{about}: before it was due at {life.due}")
        self.check(life.tried <= self.config.retry.max_retries, f"{about}: {life.tried} attempts in this life before")

    def _check_circuit_of(self, about: str, asked: Asked) -> None:
        """By the database, as soon as the replica must have heard of it."""
        circuit, now = self.circuit(asked.lane), asked.began
        heard = self.changes.get(asked.lane, 0) < asked.replica.heard_at and not asked.disturbed
        state = circuit.now.state
        self.check(not heard or state != FROZEN, f"{about}: a request to a frozen host")
        self.check(not heard or (asked.kind == PROBE) == (state == DISABLED), f"{about}: its circuit is {state}")
        if asked.kind == PROBE:
            self._check_interval(about, circuit, now)

    def _check_interval(self, about: str, circuit: CircuitModel, now: int) -> None:
        """One for the whole fleet, whoever sends it; an operator may ask for another."""
        spell, before = self.probes.get(circuit.key, (-1, 0))
        not_before = before if spell == circuit.now.spell else circuit.now.since or 0
        early = now < not_before + self.config.circuit.probe_every - EARLY
        asked_for = self.probe_asked.pop(circuit.key, 0) if early else 1
        self.check(asked_for, f"{about}: a probe or the trip was at {not_before}")
        self.probes[circuit.key] = circuit.now.spell, now

    def _check_limit(self, about: str, asked: Asked) -> None:
        if asked.disturbed:
            return
        beside = [one for one in self.unrecorded if one.host == asked.host and one.ended is None and not one.disturbed]
        most = self.config.delivery.per_host
        self.check(len(beside) < most, f"{about}: {len(beside)} open at the host, of {most}")

    def disturbed(self, replica: "Replica") -> None:
        for asked in self.unrecorded:
            if asked.replica is replica:
                asked.disturbed = True

    def taken_for_dead(self, replica: "Replica") -> None:
        self.check(not replica.is_well, f"{replica.name}: taken for dead, and it was well since {replica.well_since}")

    # -- commits -------------------------------------------------------------------------------------------------------

    def commits(self, group: Group) -> None:
        if group.operations:
            group.order, group.at = next(self._orders), self.clock()

    def done(self, replica: "Replica", group: Group, results: Any) -> None:
        self._done[group.order] = replica, replace(group), results
        while self._next in self._done:
            self._take(*self._done.pop(self._next))
            self._next += 1

    def _take(self, replica: "Replica", group: Group, results: Any) -> None:
        told: dict[str, Circuit] = {}
        for operation, result in zip(group.operations, results or (), strict=bool(results)):
            look = getattr(self, f"_{type(operation).__name__.lower()}", None)
            if look is not None:
                look(operation, result, replica, group.at)
            if isinstance(result, port.Verdict) and result.record is not None:
                told[result.record.key] = result.record.circuit
        for lane, circuit in told.items():
            seen, expected = self.real_shape(circuit, group.at), self.shape(self.circuit(lane), group.at)
            self.check(seen == expected, f"circuit {lane}: {seen}, by the history {expected}")

    def _accept(self, operation: port.Accept, result: Any, replica: "Replica", at: int) -> None:
        message = operation.message
        id = id_text(message.id)
        if operation.key is not None:
            first = self.keys.setdefault(operation.key.digest, id) if isinstance(result, port.Accepted) else None
            first = first or self.keys.get(operation.key.digest)
            told = id_text(result.id) if isinstance(result, port.Duplicate) else id
            if isinstance(result, (port.Accepted, port.Duplicate)):
                self.check(told == first, f"{id}: its key was used for {first}, and the answer is {result}")
        if isinstance(result, port.Accepted):
            self.note(f"{replica.name} accepted {short(id)} {message.lane}{' active' if result.active else ''}")
            life = Life(born=message.born, due=message.born, held=message.born > message.accepted_at)
            size = len(message.body)
            self.messages[id] = MessageModel(id, message.lane, message.host, size, life.held, life, life)

    def _deliver(self, operation: port.Deliver, result: port.Verdict, replica: "Replica", at: int) -> None:
        self._outcome(operation, result, replica, at)

    def _fail(self, operation: port.Fail, result: port.Verdict, replica: "Replica", at: int) -> None:
        self._outcome(operation, result, replica, at)

    def _outcome(self, operation: Any, result: port.Verdict, replica: "Replica", at: int) -> None:
        id = id_text(operation.entry.message.id)
        mine = [one for one in self.unrecorded if one.id == id and one.replica is replica]
        mine = [one for one in mine if one.fence == operation.entry.fence]
        asked = mine[0] if mine else None
        if asked is not None:
            asked.is_recorded = not result.fenced
            self.unrecorded.remove(asked)
        message = self.messages[id]
        self.note(
            f"{replica.name} records {short(id)} {operation.attempt.status or operation.attempt.error}"
            f"{' fenced' if result.fenced else ''}"
        )
        if result.fenced:
            excused = message.now.state == DROPPED or asked is None or asked.disturbed or self._was_lost(asked)
            self.check(excused, f"{id}: fenced, and its replica was well")
            return
        self.check(message.waiting, f"{id}: an outcome is recorded when it was {message.now.state}")
        self._judge(operation, result, at)
        end = asked.end if asked is not None else None
        now = operation.attempt.at + operation.attempt.duration
        if isinstance(operation, port.Deliver):
            self.check(asked is not None and asked.delivered, f"{id}: recorded as delivered, and no 2xx was seen")
            message.now = replace(message.now, state=DELIVERED, ended=now)
        elif operation.step is None:
            message.now = replace(message.now, attempts=message.now.attempts + 1)
        else:
            message.failed(now, self.config.retry, _meaning(end, now)[2], 0.5)

    def _was_lost(self, asked: Asked) -> bool:
        return asked.fence != asked.replica.store.number

    def _judge(self, operation: Any, result: port.Verdict, at: int) -> None:
        """Replicas count together: the circuit is what all reports come to, in the order that they were committed."""
        report, lane = operation.report, operation.entry.message.lane
        circuit = self.circuit(lane)
        if circuit.now.silent_since is None:
            circuit.standings[-1] = replace(circuit.now, silent_since=report.began)
        before = circuit.now.spell
        if report.fault is not Fault.HERE:
            moment = self._not_before(circuit, report.ended)
            circuit.ended(moment, report.fault is None, self.config.circuit, spell=report.spell, probe=report.probe)
        self._compare(lane, circuit, result, changed=circuit.now.spell != before, at=at)

    def _compare(self, lane: str, circuit: CircuitModel, result: port.Verdict, *, changed: bool, at: int) -> None:
        if changed:
            self.changes[lane] = at
            self.probe_asked.pop(lane, None)
            self.note(f"circuit {lane} {circuit.now.state} {circuit.now.reason}")
        self.check((result.change is not None) == changed, f"{lane}: {result.change}, by the history {circuit.now}")

    def _not_before(self, circuit: CircuitModel, ended: int) -> int:
        """The window goes only on, whoever's outcome comes first."""
        window = self.config.circuit.window
        width = max(1, window // BUCKETS)
        counted = [one.at for one in circuit.history[circuit.now.window_from :] if one.ok is not None]
        newest = max(counted, default=0) // width * width
        return newest if ended < newest <= ended + window else ended

    def _switch(self, operation: port.Switch, result: port.Verdict, replica: "Replica", at: int) -> None:
        circuit = self.circuit(operation.lane)
        self.note(f"{replica.name} {operation.verb} {operation.lane}")
        changed = False
        if operation.verb is port.Verb.PROBE:
            self.probe_asked[operation.lane] = 1
        elif (circuit.now.state != FROZEN) if operation.verb is port.Verb.FREEZE else (circuit.now.state != ENABLED):
            circuit.by_operator(operation.now, self.config.circuit, freeze=operation.verb is port.Verb.FREEZE)
            changed = True
        self._compare(operation.lane, circuit, result, changed=changed, at=at)

    def _expire(self, operation: port.Expire, result: list[bytes], replica: "Replica", at: int) -> None:
        circuit = self.circuit(operation.lane)
        self.check(not result or circuit.now.state != ENABLED, f"{operation.lane}: expiry in an enabled circuit")
        for id in map(id_text, result):
            message = self.messages[id]
            expiry = max(message.now.born, circuit.now.enabled_at) + self.config.retry.expire_after
            self.check(message.waiting, f"{id}: expired when {message.now.state}")
            self.check(expiry <= operation.now, f"{id}: expired before {expiry}")
            busy = [one for one in self.unrecorded if one.id == id and one.ended is None and not one.disturbed]
            self.check(not busy, f"{id}: expired in flight")
            message.now = replace(message.now, state=EXPIRED, ended=operation.now)
            self.note(f"{replica.name} expired {short(id)}")

    def _replaydead(self, operation: port.ReplayDead, result: port.Swept, replica: "Replica", at: int) -> None:
        for id in map(id_text, result.ids):
            self._replayed(self.messages[id], operation.now)

    def _replayed(self, message: MessageModel, now: int) -> None:
        self.check(message.now.state in FALLEN_DEAD, f"{message.id}: replayed when {message.now.state}")
        message.replayed(now)
        self.note(f"replayed {short(message.id)}")

    def _retrynow(self, operation: port.RetryNow, result: port.Retried, replica: "Replica", at: int) -> None:
        message = self.messages.get(id_text(operation.id))
        if message is None:
            return
        if result is port.Retried.REPLAYED:
            self._replayed(message, operation.now)
        elif result is port.Retried.DUE and message.waiting:
            # It may be claimed, and then stays as it is: nothing is due any later by this.
            born = min(message.now.born, operation.now)
            message.now = replace(message.now, due=min(message.now.due, operation.now), born=born, held=False)

    def _dropmessages(self, operation: port.DropMessages, result: port.Swept, replica: "Replica", at: int) -> None:
        for id in map(id_text, result.ids):
            message = self.messages[id]
            self.check(message.now.state != DELIVERED, f"{id}: dropped when delivered")
            message.now = replace(message.now, state=DROPPED, ended=at)

    _dropdead = _dropmessages

    def _purge(self, operation: port.Purge, result: int, replica: "Replica", at: int) -> None:
        self.check(not operation.dead_before, "dead letters purged before their time")
        if result:
            self.keys.clear()
            self.evicted = True

    def _forget(self, operation: port.Forget, result: bool, replica: "Replica", at: int) -> None:
        if not result:
            return
        waiting = [m.id for m in self.messages.values() if m.lane == operation.lane and m.now.state == WAITING]
        self.check(not waiting, f"{operation.lane}: forgotten with {waiting[:2]} waiting")
        self.check(self.circuit(operation.lane).now.state == ENABLED, f"{operation.lane}: forgotten, not enabled")
        self.note(f"{replica.name} forgot {operation.lane}")
        self.circuits.pop(operation.lane, None)
        self.probes.pop(operation.lane, None)
        self.changes.pop(operation.lane, None)
