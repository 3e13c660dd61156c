"""Every metric as data: name, help, labels, and where its value comes from.

A scrape takes one snapshot of the store, delivery and the process on the loop; a thread formats it. Its cost does not
depend on how many messages wait. Labels are bounded: outcomes by class, reasons by the enumerations of core, hosts only
while their circuit is not enabled and at most `HOSTS_SHOWN`. Moments are given as seconds from now, not as timestamps:
the gateway's clock does not follow jumps of the wall clock.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import trio

from holdfast import __version__
from holdfast.clock import Clock, offset
from holdfast.core.circuit import CircuitState, Reason
from holdfast.core.counters import Counters, Distribution
from holdfast.core.errors import StoreUnreachable
from holdfast.core.message import DeadReason, ErrorKind, masked_lane
from holdfast.operate.gateway_queries import Queries
from holdfast.operate.ports import Condition, Deliveries
from holdfast.store.port import CircuitView, Store, StoreStatistics

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
HOSTS_SHOWN = 50
OUTCOMES = ("2xx", "3xx", "4xx", "5xx", "other", *ErrorKind)

ByLabels = dict[tuple[str, ...], float]
Value = float | ByLabels | Distribution | None
"""None if there is no value now, such as the next expiry while nothing can expire."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state that one scrape shows."""

    now: int
    store: StoreStatistics
    volume_free: int | None
    not_enabled: list[CircuitView]
    counters: Counters
    in_flight: int
    connections: Mapping[str, int]
    clock_offset: int
    healthy: bool
    ready: bool
    draining: bool
    spooled: int


class Metric(NamedTuple):
    """A counter if its name ends with `_total`, a histogram if its value is a Distribution, else a gauge."""

    name: str
    help: str
    read: Callable[[Snapshot], Value]
    labels: tuple[str, ...] = ()


class MetricReading(NamedTuple):
    """A copy of a metric's value at the moment of the scrape."""

    metric: Metric
    value: Value


class Metrics:
    """`connections` returns the open connections by listener. `volume` is a folder on the store's volume, or None if
    the store is a database.
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
        self._last_not_enabled: list[CircuitView] = []

    async def scrape(self) -> bytes:
        snapshot = await self._snapshot()
        readings = [MetricReading(metric, metric.read(snapshot)) for metric in METRICS]
        return await trio.to_thread.run_sync(_expose, readings, limiter=self._thread)

    async def _snapshot(self) -> Snapshot:
        await self._condition.counting()
        store = await self._store.statistics()
        free = await trio.to_thread.run_sync(_volume_free, self._volume, limiter=self._thread)
        # While a database is unreachable, its last known statistics are shown, and so are these.
        with suppress(StoreUnreachable):
            self._last_not_enabled = await self._not_enabled(store)
        return Snapshot(
            now=self._clock.now(),
            store=store,
            volume_free=free,
            not_enabled=self._last_not_enabled,
            counters=self._condition.counters,
            in_flight=self._deliveries.attempts_in_flight,
            connections=self._connections(),
            clock_offset=offset(self._clock),
            healthy=self._queries.health()[0],
            ready=self._queries.readiness(strict=False)[0],
            draining=self._condition.draining,
            spooled=0 if self._condition.spool is None else self._condition.spool.count,
        )

    async def _not_enabled(self, store: StoreStatistics) -> list[CircuitView]:
        """Frozen circuits come first: they wait for an operator."""
        found: list[CircuitView] = []
        for state in (CircuitState.FROZEN, CircuitState.DISABLED):
            if store.circuits[state] and len(found) < HOSTS_SHOWN:
                found += (await self._store.circuits(state, None, HOSTS_SHOWN - len(found)))[0]
        return found


def _expose(readings: list[MetricReading]) -> bytes:
    from holdfast.operate.exposition import expose

    return expose(readings)


def _volume_free(folder: Path | None) -> int | None:
    if folder is None:
        return None
    volume = os.statvfs(folder)
    return volume.f_bavail * volume.f_frsize


def _outcomes(snapshot: Snapshot) -> ByLabels:
    """Attempts by class of status or by kind of error. Single statuses would be up to 900 series."""
    sums: ByLabels = {(outcome,): 0 for outcome in OUTCOMES}
    for outcome, count in snapshot.counters.outcomes.items():
        name = f"{outcome[0]}xx" if outcome.isdigit() else str(outcome)
        sums[(name,) if (name,) in sums else ("other",)] += count
    return sums


def _each(known: Iterable[str], counts: Counter[str]) -> ByLabels:
    """Includes zeros: Prometheus sees the first increase only of a series that already exists."""
    return {(str(name),): counts[name] for name in known}


def _until(snapshot: Snapshot, moment: int | None) -> float | None:
    return None if moment is None else max(0, moment - snapshot.now) / 1000


def _oldest_age(snapshot: Snapshot) -> float:
    oldest = snapshot.store.oldest_waiting_at
    return 0 if oldest is None else max(0, snapshot.now - oldest) / 1000


def _host(view: CircuitView) -> str:
    """The circuit's key without a path: anyone who reaches the probe listener can read it."""
    return masked_lane(view.record.key)


def _next_probes(snapshot: Snapshot) -> ByLabels:
    probes = {(_host(view),): _until(snapshot, view.record.circuit.next_probe_at) for view in snapshot.not_enabled}
    return {labels: seconds for labels, seconds in probes.items() if seconds is not None}


METRICS = (
    Metric(
        "holdfast_build_info",
        "Always 1. The labels are the versions of holdfast and Python.",
        lambda at: {(__version__, sys.version.split()[0]): 1},
        ("version", "python"),
    ),
    Metric("holdfast_healthy", "1 while /healthz answers 200.", lambda at: at.healthy),
    Metric("holdfast_ready", "1 while /readyz answers 200.", lambda at: at.ready),
    Metric("holdfast_draining", "1 during a drain.", lambda at: at.draining),
    Metric(
        "holdfast_connections_open",
        "Open connections by listener.",
        lambda at: {(listener,): count for listener, count in at.connections.items()},
        ("listener",),
    ),
    Metric(
        "holdfast_clock_offset_seconds",
        "Seconds that the gateway's clock is ahead of the wall clock; negative if it is behind.",
        lambda at: at.clock_offset / 1000,
    ),
    # Ingest.
    Metric("holdfast_accepted_total", "Webhooks stored and acknowledged.", lambda at: at.counters.accepted),
    Metric(
        "holdfast_refused_total",
        "Requests refused at ingest, by reason.",
        lambda at: {(reason,): count for reason, count in at.counters.refused.items()},
        ("reason",),
    ),
    Metric(
        "holdfast_ack_duration_seconds",
        "Time from a complete request to its acknowledgement.",
        lambda at: at.counters.ack_seconds.snapshot(),
    ),
    # Delivery.
    Metric("holdfast_attempts_total", "Finished attempts, by status class or kind of error.", _outcomes, ("outcome",)),
    Metric(
        "holdfast_attempt_duration_seconds",
        "Time from the start of an attempt to its outcome.",
        lambda at: at.counters.attempt_seconds.snapshot(),
    ),
    Metric("holdfast_attempts_in_flight", "Attempts under way.", lambda at: at.in_flight),
    Metric("holdfast_delivered_total", "Messages that a receiver answered with 2xx.", lambda at: at.counters.delivered),
    Metric(
        "holdfast_dead_total",
        "Messages that died, by reason.",
        lambda at: _each(DeadReason, at.counters.dead),
        ("reason",),
    ),
    Metric(
        "holdfast_fenced_outcomes_total",
        "Outcomes not recorded because another replica had taken over the host; it sends the message again.",
        lambda at: at.counters.fenced,
    ),
    Metric("holdfast_replayed_total", "Dead letters that were replayed.", lambda at: at.counters.replayed),
    Metric("holdfast_dropped_total", "Messages that operators dropped.", lambda at: at.counters.dropped),
    # Waiting messages.
    Metric(
        "holdfast_waiting_messages",
        "Messages that wait for their first attempt or for a retry, including attempts in flight.",
        lambda at: {("first",): at.store.first, ("retry",): at.store.retry},
        ("queue",),
    ),
    Metric("holdfast_dead_letters", "Dead letters in the store.", lambda at: at.store.dead),
    Metric("holdfast_oldest_waiting_age_seconds", "Age of the oldest waiting message; 0 if none waits.", _oldest_age),
    Metric(
        "holdfast_next_due_seconds",
        "Seconds until the next retry or delayed message is due; absent if there is none.",
        lambda at: _until(at, at.store.next_due_at),
    ),
    Metric(
        "holdfast_earliest_expiry_seconds",
        "Seconds until the first message in a circuit that is not enabled expires; absent if there is none.",
        lambda at: _until(at, at.store.earliest_expiry_at),
    ),
    Metric(
        "holdfast_spooled_messages",
        "Messages in the local spool, waiting for the database; 0 without a spool.",
        lambda at: at.spooled,
    ),
    # Circuits.
    Metric(
        "holdfast_circuits",
        "Circuits by state.",
        lambda at: {(str(state),): at.store.circuits[state] for state in CircuitState},
        ("state",),
    ),
    Metric(
        "holdfast_circuit_trips_total",
        "Circuits that became disabled or frozen, by reason.",
        lambda at: _each(Reason, at.counters.trips),
        ("reason",),
    ),
    Metric(
        "holdfast_circuit_state",
        f"1 for each circuit that is not enabled, frozen ones first, at most {HOSTS_SHOWN}.",
        lambda at: {(_host(view), str(view.record.circuit.state)): 1 for view in at.not_enabled},
        ("host", "state"),
    ),
    Metric(
        "holdfast_circuit_waiting_messages",
        "Messages that wait in each circuit of holdfast_circuit_state.",
        lambda at: {(_host(view),): view.waiting for view in at.not_enabled},
        ("host",),
    ),
    Metric(
        "holdfast_circuit_next_probe_seconds",
        "Seconds until each disabled circuit of holdfast_circuit_state is probed.",
        _next_probes,
        ("host",),
    ),
    # The store.
    Metric("holdfast_store_used_bytes", "Bytes of the store in use.", lambda at: at.store.used_bytes),
    Metric(
        "holdfast_store_reserved_bytes",
        "Bytes of the store reserved for the outcomes of waiting messages.",
        lambda at: at.store.reserved_bytes,
    ),
    Metric("holdfast_store_max_bytes", "Bytes that the store may use (store.max_size).", lambda at: at.store.max_bytes),
    Metric(
        "holdfast_store_volume_free_bytes",
        "Free bytes on the store's volume; absent if the store is a database.",
        lambda at: at.volume_free,
    ),
    Metric("holdfast_store_full", "1 while new webhooks are answered 507.", lambda at: at.store.full),
    Metric(
        "holdfast_commit_duration_seconds",
        "Time to commit a group of operations.",
        lambda at: at.counters.commit_seconds.snapshot(),
    ),
    Metric(
        "holdfast_commit_operations",
        "Operations per commit.",
        lambda at: at.counters.group_operations.snapshot(),
    ),
    Metric(
        "holdfast_evicted_total",
        "Records removed before their retention ended, to make room.",
        lambda at: at.counters.evicted,
    ),
    Metric(
        "holdfast_broken_records_total", "Stored records that could not be read.", lambda at: at.counters.broken_records
    ),
    Metric(
        "holdfast_control_refused_total",
        "Connections to the control socket refused because of their user.",
        lambda at: at.counters.control_refused,
    ),
)
