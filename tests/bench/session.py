"""One session of the benchmarks: the sink, the stores, how long and how often, and what several scenarios share.

What is measured for one scenario and wanted by another is measured once: cached here, by what it is.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from tests.bench.database import Databases
from tests.bench.load import SIZE
from tests.bench.measuring import Run, Usage, pids, saturate, usage, wait_until
from tests.bench.processes import Memory, memory
from tests.bench.sink import Sink
from tests.bench.stores import Stores, one_enabled, one_frozen
from tests.bench.systems import System, holdfast, yardstick

SPREAD = 16
"""Hosts that the load of a fleet is for: a replica owns some of them."""
ENOUGH = 400.0
"""Seconds after which a drain that goes on is measured by what it did so far."""


class Pair(NamedTuple):
    yardstick: Run
    holdfast: Run


class Drain(NamedTuple):
    """`usage` is a message's; `memory` as it was at the end."""

    delivered: int
    seconds: float
    usage: Usage
    memory: Memory

    @property
    def cpu(self) -> float:
        """Seconds a message."""
        return self.usage.own + self.usage.server

    @property
    def rate(self) -> float:
        return self.delivered / self.seconds


@dataclass
class Session:
    sink: Sink
    stores: Stores
    databases: Databases
    seconds: float
    pairs: int
    backlog: int
    hosts: int
    _known: dict[str, Any] = field(default_factory=dict)
    _failed: dict[str, Exception] = field(default_factory=dict)

    @property
    def spread(self) -> int:
        """How many hosts the sink can be for the load of a fleet."""
        return SPREAD if self.sink.many_hosts else 1

    def once(self, name: str, measure: Callable[[], Any]) -> Any:
        """What failed fails again at once for whoever else wants it."""
        if name in self._failed:
            raise self._failed[name]
        if name not in self._known:
            try:
                self._known[name] = measure()
            except Exception as error:
                self._failed[name] = error
                raise
        return self._known[name]

    def fresh(self, size: int = SIZE, own_heads: bool = False) -> list[Pair]:
        """Both on empty stores, in turn."""
        name = f"fresh {size}{' own heads' if own_heads else ''}"
        return list(self.once(name, lambda: [self._pair(size, own_heads) for _ in range(self.pairs)]))

    def fresh_rate(self) -> float:
        return median(pair.holdfast.rate for pair in self.fresh())

    def yardstick_rate(self) -> float | None:
        """None unless it was measured in this run."""
        pairs = self._known.get(f"fresh {SIZE}")
        return median(pair.yardstick.rate for pair in pairs) if pairs else None

    def _pair(self, size: int, own_heads: bool) -> Pair:
        return Pair(self.run_yardstick(size, own_heads), self.run_holdfast(size, own_heads))

    def run_yardstick(self, size: int = SIZE, own_heads: bool = False) -> Run:
        store = self.stores.new("yardstick")
        with yardstick(store, self.sink.host) as system:
            run = saturate(system, self.sink, self.seconds, size, own_heads=own_heads)
        self.stores.drop(store)
        return run

    def run_holdfast(self, size: int = SIZE, own_heads: bool = False) -> Run:
        store = self.stores.new("holdfast")
        with holdfast(store) as system:
            run = saturate(system, self.sink, self.seconds, size, own_heads=own_heads)
        self.stores.drop(store)
        return run

    def run_on(self, store: Path) -> Run:
        """Load to the sink on a store that has something in it, and keeps it."""
        with holdfast(store) as system:
            return saturate(system, self.sink, self.seconds)

    def frozen(self, waiting: int) -> Path:
        """A store with so many waiting for one frozen host."""
        return self.stores.filled(f"frozen-{waiting}", one_frozen(waiting))

    def drained(self, waiting: int) -> Path:
        """The store that `drain` empties."""
        return self.stores.filled(f"enabled-{waiting}", one_enabled(waiting, self.sink.host))

    def drain(self, waiting: int) -> Drain:
        """From a start with so many waiting for the sink until it has them all."""

        def measure() -> Drain:
            store, before = self.drained(waiting), self.sink.count()
            with holdfast(store) as system:
                return self.draining(system, before, waiting, ENOUGH)

        return Drain(*self.once(f"drain {waiting}", measure))

    def draining(self, system: System, before: int, waiting: int, enough: float) -> Drain:
        """`before` is what the sink had counted when the gateway was started: it begins before we look."""
        used, began = usage(system), perf_counter()
        wait_until(
            lambda: self.sink.count() - before >= waiting or perf_counter() - began > enough,
            f"{waiting} at the sink",
            patience=enough + 60,
        )
        delivered, seconds = self.sink.count() - before, perf_counter() - began
        return Drain(delivered, seconds, usage(system).each(used, delivered), memory(pids(system)))
