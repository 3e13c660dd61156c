"""What Prometheus is told: every metric as data, its name, its help, and where its value comes from.

A scrape takes one look at the store, at delivery and at the process, and copies the values on the loop; the text is
made of the copies on a thread. It costs the same with one waiting message or a million. Labels are bounded: outcomes by
class, reasons by the enumerations of core, hosts only while their circuit is not enabled and at most `HOSTS_SHOWN`.
Times are seconds from now by the gateway's own clock, not timestamps, since that clock does not follow the wall clock's
jumps.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import NamedTuple

import trio

from holdfast import __version__
from holdfast.clock import Clock, offset
from holdfast.core.circuit import CircuitState, Reason
from holdfast.core.errors import StoreAway
from holdfast.core.message import DeadReason, ErrorKind, masked_lane
from holdfast.core.tally import Distribution, Tally
from holdfast.operate.ports import Condition, Deliveries
from holdfast.operate.queries import Queries
from holdfast.store.port import CircuitView, Store, StoreStatistics

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
HOSTS_SHOWN = 50
OUTCOMES = ("2xx", "3xx", "4xx", "5xx", "other", *ErrorKind)

ByLabels = dict[tuple[str, ...], float]
Value = float | ByLabels | Distribution | None
"""None: there is nothing to tell now, such as the next expiry while nothing can expire."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What one scrape looks at."""

    now: int
    store: StoreStatistics
    volume_free: int | None
    unwell: list[CircuitView]
    tally: Tally
    in_flight: int
    connections: Mapping[str, int]
    clock_offset: int
    healthy: bool
    ready: bool
    draining: bool
    spooled: int


class Kind(Enum):
    COUNTER = auto()
    GAUGE = auto()
    HISTOGRAM = auto()


class Metric(NamedTuple):
    kind: Kind
    name: str
    help: str
    read: Callable[[Scene], Value]
    labels: tuple[str, ...] = ()


class Reading(NamedTuple):
    """A metric's value at the moment of the scrape; nothing in it changes any more."""

    metric: Metric
    value: Value


class Metrics:
    """`connections` gives the open connections by listener; `volume` is a folder on the store's volume, None if the
    store is elsewhere.
    """

    def __init__(
        self,
        queries: Queries,
        store: Store,
        deliveries: Deliveries,
        condition: Condition,
        clock: Clock,
        connections: Callable[[], Mapping[str, int]],
        volume: Path | None,
    ) -> None:
        self._queries = queries
        self._store = store
        self._deliveries = deliveries
        self._condition = condition
        self._clock = clock
        self._connections = connections
        self._volume = volume
        self._thread = trio.CapacityLimiter(1)
        self._last_unwell: list[CircuitView] = []

    async def scrape(self) -> bytes:
        scene = await self._look()
        readings = [Reading(metric, metric.read(scene)) for metric in METRICS]
        return await trio.to_thread.run_sync(_expose, readings, limiter=self._thread)

    async def _look(self) -> Scene:
        await self._condition.counting()
        store = await self._store.statistics()
        free = await trio.to_thread.run_sync(_volume_free, self._volume, limiter=self._thread)
        # Of a database that is away the last known figures are shown, and so are these.
        with suppress(StoreAway):
            self._last_unwell = await self._unwell(store)
        return Scene(
            now=self._clock.now(),
            store=store,
            volume_free=free,
            unwell=self._last_unwell,
            tally=self._condition.tally,
            in_flight=self._deliveries.attempts_in_flight,
            connections=self._connections(),
            clock_offset=offset(self._clock),
            healthy=self._queries.health()[0],
            ready=self._queries.readiness(strict=False)[0],
            draining=self._condition.draining,
            spooled=0 if self._condition.spool is None else self._condition.spool.count,
        )

    async def _unwell(self, store: StoreStatistics) -> list[CircuitView]:
        """Frozen ones first: those wait for an operator."""
        found: list[CircuitView] = []
        for state in (CircuitState.FROZEN, CircuitState.DISABLED):
            if store.circuits[state] and len(found) < HOSTS_SHOWN:
                found += (await self._store.circuits(state, None, HOSTS_SHOWN - len(found)))[0]
        return found


def _expose(readings: list[Reading]) -> bytes:
    from holdfast.operate.exposition import expose

    return expose(readings)


def _volume_free(folder: Path | None) -> int | None:
    if folder is None:
        return None
    volume = os.statvfs(folder)
    return volume.f_bavail * volume.f_frsize


# -- values ------------------------------------------------------------------------------------------------------------


def _outcomes(scene: Scene) -> ByLabels:
    """Attempts by class of the answer's status, or by kind of error: an answer can have any of 900 statuses."""
    sums: ByLabels = {(outcome,): 0 for outcome in OUTCOMES}
    for outcome, count in scene.tally.outcomes.items():
        name = f"{outcome[0]}xx" if outcome.isdigit() else str(outcome)
        sums[(name,) if (name,) in sums else ("other",)] += count
    return sums


def _each(known: Iterable[str], counts: Counter[str]) -> ByLabels:
    """Also what did not happen yet: a series has to be there before its first increase can be seen."""
    return {(str(name),): counts[name] for name in known}


def _until(scene: Scene, moment: int | None) -> float | None:
    return None if moment is None else max(0, moment - scene.now) / 1000


def _oldest_age(scene: Scene) -> float:
    oldest = scene.store.oldest_waiting_at
    return 0 if oldest is None else max(0, scene.now - oldest) / 1000


def _host(view: CircuitView) -> str:
    """The circuit's key as it may be shown anywhere: anyone who reaches the probe listener reads it."""
    return masked_lane(view.record.key)


def _next_probes(scene: Scene) -> ByLabels:
    probes = {(_host(view),): _until(scene, view.record.circuit.next_probe_at) for view in scene.unwell}
    return {labels: seconds for labels, seconds in probes.items() if seconds is not None}


# -- the metrics -------------------------------------------------------------------------------------------------------


def _counter(name: str, help: str, read: Callable[[Scene], Value], *labels: str) -> Metric:
    return Metric(Kind.COUNTER, f"holdfast_{name}", help, read, labels)


def _gauge(name: str, help: str, read: Callable[[Scene], Value], *labels: str) -> Metric:
    return Metric(Kind.GAUGE, f"holdfast_{name}", help, read, labels)


def _histogram(name: str, help: str, read: Callable[[Scene], Value]) -> Metric:
    return Metric(Kind.HISTOGRAM, f"holdfast_{name}", help, read)


METRICS = (
    _gauge(
        "build_info",
        "Always 1; the labels say what runs.",
        lambda scene: {(__version__, sys.version.split()[0]): 1},
        "version",
        "python",
    ),
    _gauge("healthy", "1 while the process can make progress, as /healthz.", lambda scene: scene.healthy),
    _gauge("ready", "1 while ready, as /readyz.", lambda scene: scene.ready),
    _gauge("draining", "1 while draining.", lambda scene: scene.draining),
    _gauge(
        "connections_open",
        "Open connections by listener.",
        lambda scene: {(listener,): count for listener, count in scene.connections.items()},
        "listener",
    ),
    _gauge(
        "clock_offset_seconds",
        "How far the gateway's time is ahead of the machine's wall clock; negative if it is behind.",
        lambda scene: scene.clock_offset / 1000,
    ),
    # What came in.
    _counter("accepted_total", "Webhooks put on disk and acknowledged.", lambda scene: scene.tally.accepted),
    _counter(
        "refused_total",
        "Requests that ingest refused, by reason.",
        lambda scene: {(reason,): count for reason, count in scene.tally.refused.items()},
        "reason",
    ),
    _histogram(
        "ack_duration_seconds",
        "From a complete request to its acknowledgement.",
        lambda scene: scene.tally.ack_seconds.snapshot(),
    ),
    # What went out.
    _counter("attempts_total", "Attempts that ended, by status class or kind of error.", _outcomes, "outcome"),
    _histogram(
        "attempt_duration_seconds",
        "From the start of an attempt to its outcome.",
        lambda scene: scene.tally.attempt_seconds.snapshot(),
    ),
    _gauge("attempts_in_flight", "Attempts under way.", lambda scene: scene.in_flight),
    _counter("delivered_total", "Messages that a receiver took with 2xx.", lambda scene: scene.tally.delivered),
    _counter(
        "dead_total", "Messages that died, by reason.", lambda scene: _each(DeadReason, scene.tally.dead), "reason"
    ),
    _counter(
        "fenced_outcomes_total",
        "Outcomes not recorded: the message had gone to another replica, which sends it again.",
        lambda scene: scene.tally.fenced,
    ),
    _counter("replayed_total", "Dead letters that started a new life.", lambda scene: scene.tally.replayed),
    _counter("dropped_total", "Messages that operators dropped.", lambda scene: scene.tally.dropped),
    # What waits.
    _gauge(
        "waiting_messages",
        "Messages that wait for their first attempt or for a retry, those under way included.",
        lambda scene: {("first",): scene.store.first, ("retry",): scene.store.retry},
        "queue",
    ),
    _gauge("dead_letters", "Dead letters that are kept.", lambda scene: scene.store.dead),
    _gauge("oldest_waiting_age_seconds", "Age of the oldest message that waits; 0 if none does.", _oldest_age),
    _gauge(
        "next_due_seconds",
        "Seconds until the next retry or delayed message is due; absent if none is.",
        lambda scene: _until(scene, scene.store.next_due_at),
    ),
    _gauge(
        "earliest_expiry_seconds",
        "Seconds until the first message expires in a circuit that is not enabled; absent if none can.",
        lambda scene: _until(scene, scene.store.earliest_expiry_at),
    ),
    _gauge(
        "spooled_messages",
        "Messages that wait on this machine's disk for the database to come back; 0 without a spool.",
        lambda scene: scene.spooled,
    ),
    # Circuits.
    _gauge(
        "circuits",
        "Circuits by state.",
        lambda scene: {(str(state),): scene.store.circuits[state] for state in CircuitState},
        "state",
    ),
    _counter(
        "circuit_trips_total",
        "Circuits that were disabled or frozen, by reason.",
        lambda scene: _each(Reason, scene.tally.trips),
        "reason",
    ),
    _gauge(
        "circuit_state",
        f"1 for each circuit that is not enabled, frozen ones first, at most {HOSTS_SHOWN}.",
        lambda scene: {(_host(view), str(view.record.circuit.state)): 1 for view in scene.unwell},
        "host",
        "state",
    ),
    _gauge(
        "circuit_waiting_messages",
        "Messages that wait in a circuit of holdfast_circuit_state.",
        lambda scene: {(_host(view),): view.waiting for view in scene.unwell},
        "host",
    ),
    _gauge(
        "circuit_next_probe_seconds",
        "Seconds until a disabled circuit of holdfast_circuit_state is probed.",
        _next_probes,
        "host",
    ),
    # The store.
    _gauge("store_used_bytes", "Bytes of the store in use.", lambda scene: scene.store.used_bytes),
    _gauge(
        "store_reserved_bytes",
        "Bytes of the store that are set aside for the outcomes of messages that are not delivered.",
        lambda scene: scene.store.reserved_bytes,
    ),
    _gauge("store_max_bytes", "Bytes that the store may use (store.max_size).", lambda scene: scene.store.max_bytes),
    _gauge(
        "store_volume_free_bytes",
        "Bytes free on the volume that the store is on; absent if that is a database.",
        lambda scene: scene.volume_free,
    ),
    _gauge("store_full", "1 while new webhooks are answered 507.", lambda scene: scene.store.full),
    _histogram(
        "commit_duration_seconds",
        "From handing over a group of operations to its being on disk.",
        lambda scene: scene.tally.commit_seconds.snapshot(),
    ),
    _histogram(
        "commit_operations",
        "Operations that shared one commit.",
        lambda scene: scene.tally.group_operations.snapshot(),
    ),
    _counter("evicted_total", "Records that left early to make room.", lambda scene: scene.tally.evicted),
    _counter(
        "broken_records_total", "Stored records that could not be read.", lambda scene: scene.tally.broken_records
    ),
    _counter(
        "control_refused_total",
        "Connections to the control socket refused for who made them.",
        lambda scene: scene.tally.control_refused,
    ),
)
