"""Runs load against a system and keeps everything about it: rates, latency, CPU and memory of all of its processes."""

import threading
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

from bench.load import CONNECTIONS, SIZE, Load, closed
from bench.processes import Memory, cpu_seconds, memory, tree
from bench.sink import Sink
from bench.systems import Groups, System

PATIENCE = 300.0


class Run(NamedTuple):
    """`rate` is of messages both acknowledged and delivered; `cpu` in seconds a message; `group` is None if unknown."""

    rate: float
    ack_rate: float
    cpu: float
    p50: float
    p99: float
    memory: Memory
    group: float | None


def pids(system: System) -> list[int]:
    return [pid for process in system.processes for pid in tree(process.pid)]


def saturate(
    system: System,
    sink: Sink,
    seconds: float,
    size: int = SIZE,
    connections: int = CONNECTIONS,
    own_heads: bool = False,
) -> Run:
    """As much as it takes on so many connections, until the last one that was acknowledged is at the sink."""
    url = system.url(sink.url)
    # Not counted: connections, slow start, caches, and compilers that look first.
    before = sink.count()
    wait_for_count(sink, before + checked(closed(url, seconds / 2, size, connections, own_heads)).acked)
    groups, delivered, cpu = system.groups(), sink.count(), cpu_seconds(pids(system))
    load = checked(closed(url, seconds, size, connections, own_heads))
    answered = perf_counter()
    wait_for_count(sink, delivered + load.acked)
    taken = load.seconds + perf_counter() - answered
    used = cpu_seconds(pids(system)) - cpu
    return Run(
        rate=load.acked / taken,
        ack_rate=load.rate,
        cpu=used / load.acked,
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
