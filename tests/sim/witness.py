"""Looks at every attempt as it starts and as it ends, and holds it against the model.

What is found goes to `faults`, each with the name of the rule: raised where it is found, it would be taken for a bug of
the gateway's met by one message, and recorded as its failure.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from holdfast.config import Config
from holdfast.core.errors import EgressDenied, NameNotResolved
from holdfast.core.message import MessageId, id_text
from holdfast.core.start_order import Start
from holdfast.http.exceptions import ConnectError
from tests.sim.model import DELIVERED, DISABLED, DROPPED, ENABLED, FROZEN, MOMENT, CircuitModel, HostModel, MessageModel
from tests.sim.receivers import HERE_ERRNO
from tests.support.answers import GivenAnswer

FIRST, RETRY, PROBE = "first", "retry", "probe"


@dataclass
class Witness:
    """All that was seen. `clock` gives the gateway's own time."""

    config: Config
    clock: Callable[[], int] = lambda: 0
    messages: dict[str, MessageModel] = field(default_factory=dict)
    circuits: dict[str, CircuitModel] = field(default_factory=dict)
    hosts: dict[str, HostModel] = field(default_factory=dict)
    known_hosts: set[str] = field(default_factory=set)
    spells: dict[str, int] = field(default_factory=dict)
    ends: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    started_at: int = 0
    alive: bool = False
    most_retries: int = 0
    drawn: float = 0.0

    def note(self, text: str) -> None:
        self.trace.append(f"{self.clock()} {text}")

    def check(self, holds: object, rule: str) -> None:
        if not holds:
            self.faults.append(f"{rule} [at {self.clock()}]")
            self.trace.append(f"{self.clock()} *** {rule}")

    def circuit(self, key: str) -> CircuitModel:
        return self.circuits.setdefault(key, CircuitModel(key))

    def host(self, name: str) -> HostModel:
        """A host that an earlier run knew begins in slow start, and so does one whose circuits go by URL."""
        known = self.hosts.get(name)
        if known is None:
            per_host = self.config.delivery.per_host
            limit = 1 if name in self.known_hosts or by_url(name) else per_host
            known = self.hosts[name] = HostModel(name, min(limit, per_host), per_host)
        return known

    def draw(self, chance: float) -> float:
        """A number drawn for the jitter of the attempt that ends now."""
        self.drawn = chance
        return chance

    def in_flight(self, *kinds: str) -> int:
        """How many attempts of some kinds are under way, or of any."""
        kinds = kinds or (FIRST, RETRY, PROBE)
        return sum(kind in kinds for host in self.hosts.values() for kind in host.in_flight.values())

    # -- the start of an attempt ---------------------------------------------------------------------------------------

    def begins(self, start: Start) -> None:
        id, kind, now = id_text(start.entry.message.id), str(start.kind), self.clock()
        message = self.messages.get(id)
        self.note(f"begins {kind} {short(id)} {start.lane.key}")
        if message is None:
            self.check(False, f"{id}: an attempt of a message that is not on disk")
            return
        circuit, host = self.circuit(message.lane), self.host(message.host)
        about = f"{kind} of {id} to {message.lane}"
        crossed = message.now.state == DROPPED and now - message.now.ended <= MOMENT
        self.check(message.waiting or crossed, f"{about}: it was {message.now.state} already")
        self.check(id not in host.in_flight, f"{about}: two attempts of one message at once")
        self._check_circuit(about, kind, circuit, message, now)
        self._check_limits(about, kind, host, now)
        if kind == FIRST:
            self._check_order(about, message)
        host.in_flight[id] = kind
        host.not_before = max(now, host.not_before) + self._interval(host.name)
        self.spells[id] = circuit.begins(now, self.config.circuit, probe=kind == PROBE)
        if kind == PROBE:
            circuit.probed_in_run = True
        message.started = message.started or kind == FIRST

    def _check_circuit(self, about: str, kind: str, circuit: CircuitModel, message: MessageModel, now: int) -> None:
        state = circuit.now.state
        # What an operator changes in the very millisecond of a start may cross it: it was decided before.
        crossed = circuit.now.since == now
        self.check(crossed or state != FROZEN, f"{about}: a request to a frozen host")
        self.check(crossed or (kind == PROBE) == (state == DISABLED), f"{about}: its circuit is {state}")
        if kind == PROBE:
            early = now < circuit.next_probe and not circuit.probe_asked and not crossed
            self.check(not early, f"{about}: more than one probe in an interval, next at {circuit.next_probe}")
            self.check(not message.held_at(now), f"{about}: it is held by Holdfast-Delay or Retry-After")
            self._check_turn(about, circuit, message, now)
            return
        tried = message.now.tried
        self.check((kind == FIRST) == (tried == 0), f"{about}: {tried} attempts were made in this life")
        self.check(
            tried <= self.most_retries, f"{about}: more scheduled attempts than {self.most_retries + 1} in a life"
        )
        self.check(now >= message.now.due, f"{about}: before it was due at {message.now.due}")

    def _check_turn(self, about: str, circuit: CircuitModel, probe: MessageModel, now: int) -> None:
        """They take turns: between two probes of one message every other that could be one was."""
        before = circuit.probed.get(probe.id)
        for other in self.messages.values() if before is not None else ():
            could = max(other.waits_since, other.now.due if other.now.held else 0)
            if other.lane == circuit.key and other.waiting and max(could, circuit.probed.get(other.id, 0)) < before:
                self.check(False, f"{about}: probed again, and {other.id} not once")
        circuit.probed[probe.id] = now

    def _check_limits(self, about: str, kind: str, host: HostModel, now: int) -> None:
        numbers = self.config.delivery
        busy = len(host.in_flight)
        self.check(busy < host.limit, f"{about}: {busy} in flight, and the host's limit is {host.limit}")
        if kind == RETRY:
            most = max(1, host.per_host // 2)
            self.check(host.retries() < most, f"{about}: retries hold more than half of per_host")
        self.check(now >= host.hold_until - 1, f"{about}: Retry-After holds the host until {host.hold_until}")
        self.check(now >= host.not_before - 1, f"{about}: over the host's rate")
        size = numbers.first_attempts if kind == FIRST else numbers.retries
        used = self.in_flight(FIRST) if kind == FIRST else self.in_flight(RETRY, PROBE)
        self.check(
            used < (size - size // 4 if busy else size), f"{about}: {used} of {size} in flight, {busy} on its host"
        )

    def _check_order(self, about: str, message: MessageModel) -> None:
        if message.delayed or message.started or message.lives > 1:
            return
        for other in self.messages.values():
            if other.id >= message.id:
                continue
            overtaken = other.lane == message.lane and other.waiting and not (other.started or other.delayed)
            if overtaken and other.lives == 1 and other.now.attempts == 0:
                self.check(False, f"{about}: it overtook {other.id}, acknowledged before")

    def _interval(self, host: str) -> float:
        rates = [self.config.delivery.rate_per_host]
        rates += [route.rate for route in self.config.routes.values() if f"//{host.removesuffix(':80')}/" in route.url]
        rates = [rate for rate in rates if rate]
        return 1000 / min(rates) if rates else 0.0

    # -- the end of an attempt -----------------------------------------------------------------------------------------

    def ended(self, start: Start) -> None:
        """Called when the gateway has judged an attempt, before it writes that."""
        id, kind, now = id_text(start.entry.message.id), str(start.kind), self.clock()
        message, end = self.messages.get(id), self.ends.pop(id, None)
        if message is None:
            return
        circuit, host = self.circuit(message.lane), self.host(message.host)
        host.in_flight.pop(id, None)
        ok, here, wish = _meaning(end, now)
        self.note(f"ends {kind} {short(id)} {'ok' if ok else 'here' if here else 'failed'}")
        if ok or not here:
            self._count(circuit, host, now, ok, self.spells[id], kind)
            window, counted = start.lane.circuit.window, circuit.window(now, self.config.circuit)
            running = (window.attempts, window.failures)
            self.check(running == counted, f"window of {message.lane}: {running}, by the history {counted}")
        if wish is not None and isinstance(end, GivenAnswer) and end.status in (429, 503):
            until = min(wish, now + self.config.circuit.probe_every)
            host.hold_until = max(host.hold_until, until)
        if message.waiting:
            if ok:
                message.now = replace(message.now, state=DELIVERED, ended=now)
            elif kind == PROBE or end is None:
                message.now = replace(message.now, attempts=message.now.attempts + 1)
            else:
                message.failed(now, self.config.retry, wish, self.drawn)
        self.compare(start.lane, f"after {kind} of {id}")

    def _count(self, circuit: CircuitModel, host: HostModel, now: int, ok: bool, generation: int, kind: str) -> None:
        before = circuit.now.generation
        circuit.ended(now, ok, self.config.circuit, generation=generation, probe=kind == PROBE)
        if ok:
            host.succeeded()
        else:
            host.failed()
        if circuit.now.generation != before:
            self.note(f"circuit {circuit.key} {circuit.now.state} {circuit.now.reason}")
            if circuit.now.state == ENABLED:
                host.slow_start()

    def compare(self, lane: Any, when: str) -> None:
        """A lane in memory against the model."""
        circuit, host, now = self.circuit(lane.key), self.host(lane.host.name), self.clock()
        real = lane.circuit
        expected = self.shape(circuit, now)
        seen = self.real_shape(real, now)
        self.check(seen == expected, f"circuit {lane.key} {when}: {seen}, by the history {expected}")
        if circuit.now.state == DISABLED:
            self.check(
                circuit.probe_asked or real.next_probe_at == circuit.next_probe,
                f"circuit {lane.key} {when}: next probe {real.next_probe_at}, not {circuit.next_probe}",
            )
        if by_url(host.name) and lane.host.limit < host.limit and host.limit == host.per_host:
            # It left memory with its last circuit, and comes back in slow start: which of them it knew is not kept.
            host.limit, host.successes = lane.host.limit, lane.host.streak
        self.check(lane.host.limit == host.limit, f"host {host.name} {when}: limit {lane.host.limit}, not {host.limit}")
        if by_url(host.name):
            # What another of its circuits was told in an earlier run is known once that one is read.
            host.hold_until = max(host.hold_until, lane.host.hold_until)
        holds = abs(lane.host.hold_until - host.hold_until) <= 1 or max(lane.host.hold_until, host.hold_until) <= now
        self.check(holds, f"host {host.name} {when}: held until {lane.host.hold_until}, not {host.hold_until}")

    def shape(self, circuit: CircuitModel, now: int) -> tuple[object, ...]:
        standing = circuit.now
        window = circuit.window(now, self.config.circuit)
        return standing.state, standing.reason, circuit.run_of_failures(), window, circuit.last_success

    def real_shape(self, real: Any, now: int) -> tuple[object, ...]:
        sums = real.window.sums(now, self.config.circuit)
        reason = None if real.reason is None else str(real.reason)
        return str(real.state), reason, real.consecutive_failures, sums, real.last_success_at

    # -- operators -----------------------------------------------------------------------------------------------------

    def operator_changed(self, lane: Any, event: str) -> None:
        """Told when a circuit was frozen or unfrozen by hand; other changes the model finds by itself."""
        if event not in ("operator_freezes", "operator_unfreezes"):
            return
        freeze, circuit, host = event == "operator_freezes", self.circuit(lane.key), self.host(lane.host.name)
        wanted = circuit.now.state != FROZEN if freeze else circuit.now.state != ENABLED
        self.check(wanted, f"{lane.key}: {event} when {circuit.now.state}")
        circuit.by_operator(self.clock(), self.config.circuit, freeze=freeze)
        self.note(f"circuit {lane.key} {event}")
        if not freeze:
            host.slow_start()
            host.hold_until = 0
        self.compare(lane, f"after {event}")


def by_url(host: str) -> bool:
    """Whether a host's circuits go by URL."""
    return host.startswith("urls.")


def short(id: str) -> str:
    """An id for the trace: of those of one world only these digits differ."""
    return id[8:16] + "-" + id[-3:]


class InFlight(dict[MessageId, Start]):
    """The dispatcher's table of what is under way, with somebody looking on."""

    def __init__(self, witness: Witness) -> None:
        super().__init__()
        self._witness = witness

    def __setitem__(self, id: MessageId, start: Start) -> None:
        if self._witness.alive:
            self._witness.begins(start)
        super().__setitem__(id, start)

    def __delitem__(self, id: MessageId) -> None:
        start = self[id]
        super().__delitem__(id)
        if self._witness.alive:
            self._witness.ended(start)


def _meaning(end: Any, now: int) -> tuple[bool, bool, int | None]:
    """Whether it was delivered, whether a failure is this side's, and the moment that the receiver asked for."""
    if isinstance(end, GivenAnswer):
        value = dict(end.headers).get(b"retry-after")
        return 200 <= end.status <= 299, False, None if value is None else _wish(value.decode(), now)
    here = end is None or isinstance(end, EgressDenied) or (isinstance(end, NameNotResolved) and end.here)
    return False, here or (isinstance(end, ConnectError) and end.errno == HERE_ERRNO), None


def _wish(value: str, now: int) -> int | None:
    if re.fullmatch("[0-9]+", value):
        # The gateway counts in whole milliseconds from the start of the attempt.
        return now + int(value) * 1000 - 1
    try:
        moment = int(parsedate_to_datetime(value).astimezone(UTC).timestamp() * 1000)
    except (ValueError, TypeError):
        return None
    return moment if moment > now else None
