"""Runs load against a system and records rates, latency, CPU and memory of all of its processes."""

import threading
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

from tests.bench.load import CONNECTIONS, SIZE, Load, closed
from tests.bench.processes import Memory, cpu_seconds, memory, tree
from tests.bench.sink import Sink
from tests.bench.systems import Groups, System

PATIENCE = 300.0


class Usage(NamedTuple):
    """So far, or for one message: CPU seconds of the system's own processes and of its database's server, and bytes
    that the server wrote ahead.
    """

    own: float
    server: float = 0.0
    wal: float = 0.0

    def each(self, before: "Usage", messages: int) -> "Usage":
        return Usage(*((now - then) / messages for now, then in zip(self, before, strict=True)))


class Run(NamedTuple):
    """`rate` is of messages both acknowledged and delivered; `usage` is a message's; `group` is None if unknown."""

    rate: float
    ack_rate: float
    usage: Usage
    p50: float
    p99: float
    memory: Memory
    group: float | None

    @property
    def cpu(self) -> float:
        """Seconds a message."""
        return self.usage.own + self.usage.server


def pids(system: System) -> list[int]:
    return [pid for process in system.processes for pid in tree(process.pid)]


def usage(system: System) -> Usage:
    own, database = cpu_seconds(pids(system)), system.database
    return Usage(own, cpu_seconds(tree(database.postmaster)), database.wal()) if database else Usage(own)


def saturate(
    system: System,
    sink: Sink,
    seconds: float,
    size: int = SIZE,
    connections: int = CONNECTIONS,
    own_heads: bool = False,
    target: str | None = None,
    spread: int = 1,
) -> Run:
    """As much as it takes on so many connections, until the last one that was acknowledged is at the sink; or to a
    `target` that nothing is delivered to. `spread`: to so many hosts of the sink.
    """

    def post(for_seconds: float) -> tuple[Load, float]:
        delivered = sink.count()
        load = checked(closed(system.urls(target or sink.url), for_seconds, size, connections, own_heads, spread))
        answered = perf_counter()
        if target is None:
            wait_for_count(sink, delivered + load.acked)
        return load, load.seconds + perf_counter() - answered

    # Not counted: connections, slow start, caches, and compilers that look first.
    post(seconds / 2)
    groups, used = system.groups(), usage(system)
    load, taken = post(seconds)
    return Run(
        rate=load.acked / taken,
        ack_rate=load.rate,
        usage=usage(system).each(used, load.acked),
        p50=load.p50,
        p99=load.p99,
        memory=memory(pids(system)),
        group=group_size(groups, system.groups()),
    )


def checked(load: Load) -> Load:
    assert load.acked and not load.failed, f"not every webhook was accepted: {load}"
    return load


def wait_for_count(sink: Sink, count: int) -> None:
    wait_until(lambda: sink.count() >= count, f"{count} at the sink")


def wait_until(condition: Callable[[], bool], what: str, patience: float = PATIENCE, every: float = 0.02) -> None:
    """Looked at every so often: whoever is measured has the same two cores."""
    bell, began = threading.Event(), perf_counter()
    while not condition():
        assert perf_counter() - began < patience, f"never came: {what}"
        bell.wait(every)


def group_size(before: Groups | None, after: Groups | None) -> float | None:
    if before is None or after is None or after.commits == before.commits:
        return None
    return (after.operations - before.operations) / (after.commits - before.commits)
