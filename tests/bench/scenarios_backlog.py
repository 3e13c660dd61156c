"""Scenarios with many messages waiting: nothing may cost more than with none."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from statistics import median
from time import perf_counter

import httpx

from tests.bench.figures import Figure, details
from tests.bench.measuring import Run, pids
from tests.bench.processes import cpu_seconds, memory
from tests.bench.session import Drain, Session
from tests.bench.stores import frozen_and_disabled, many_enabled, many_frozen, one_enabled
from tests.bench.systems import Holdfast, holdfast
from tests.support.harness import Received, Receiver

FEW = 1_000
CROWD = 100_000
"""Waiting for one host while another one gets a webhook."""
PER_HOST = 16
"""As it is by default: what is in flight to the one host is what the other's webhook finds before it."""
SAMPLES = 20
PAUSE = 0.05
MANY_HOSTS_ENOUGH = 60.0
"""Seconds after which a drain over many hosts has shown its rate."""
SETTLE = 3.0
"""Seconds after the start before a gateway counts as idle."""


def many(session: Session) -> Path:
    return session.stores.filled("frozen-hosts", many_frozen(session.backlog, session.hosts))


# -- acknowledgements --------------------------------------------------------------------------------------------------


def ack_one(session: Session) -> Figure:
    return _acks(session, session.frozen(session.backlog))


def ack_hosts(session: Session) -> Figure:
    return _acks(session, many(session))


def _acks(session: Session, store: Path) -> Figure:
    rounds = [(session.run_on(store), session.run_holdfast()) for _ in range(session.pairs)]
    ours, other = ([run.ack_rate for run in runs] for runs in zip(*rounds, strict=True))
    return Figure("msg/s", ours, other, "none waiting", details([run for run, _ in rounds]))


# -- delivery ----------------------------------------------------------------------------------------------------------


def delivery_one(session: Session) -> Figure:
    return _delivery(session, lambda: session.drain(session.backlog))


def delivery_hosts(session: Session) -> Figure:
    if not session.sink.many_hosts:
        return Figure("msg/s", [], note="the sink may not be bound to the loopback device here")
    return _delivery(session, lambda: _drain_hosts(session))


def _drain_hosts(session: Session) -> Drain:
    fillings = many_enabled(session.backlog, session.hosts, session.sink.port)
    store, before = session.stores.filled("enabled-hosts", fillings), session.sink.count()
    with holdfast(store) as system:
        drain = session.draining(system, before, session.backlog, MANY_HOSTS_ENOUGH)
        system.gateway.kill()
    session.stores.drop(store)
    return drain


def _delivery(session: Session, measure: Callable[[], Drain]) -> Figure:
    """Against the fresh rate before and after: a long drain outlasts the mood of a machine."""
    before, drain, after = session.run_holdfast(), measure(), session.run_holdfast()
    fresh = (before.rate + after.rate) / 2
    beside = {
        "cpu us": drain.cpu * 1e6,
        "anon MB": drain.memory.anon / 1e6,
        "file MB": drain.memory.file / 1e6,
        "delivered": drain.delivered,
    }
    return Figure("msg/s", [drain.rate], [fresh], "fresh", beside)


# -- start -------------------------------------------------------------------------------------------------------------


def start_one(session: Session) -> Figure:
    return _starts(session, session.frozen(session.backlog))


def start_hosts(session: Session) -> Figure:
    return _starts(session, many(session))


def _starts(session: Session, store: Path) -> Figure:
    empty = session.stores.filled("empty", [])
    _start(empty)
    rounds = [(_start(store), _start(empty)) for _ in range(session.pairs)]
    ours, other = ([seconds * 1e3 for seconds in times] for times in zip(*rounds, strict=True))
    return Figure("ms", ours, other, "none waiting")


def _start(store: Path) -> float:
    began = perf_counter()
    with holdfast(store):
        return perf_counter() - began


# -- idle --------------------------------------------------------------------------------------------------------------


def memory_backlog(session: Session) -> Figure:
    """Own memory after some load, with the backlog and with a few."""
    rounds: list[tuple[Run, Run]] = []
    for _ in range(session.pairs):
        rounds.append((session.run_on(session.frozen(session.backlog)), session.run_on(session.frozen(FEW))))
    ours, other = ([run.memory.anon / 1e6 for run in runs] for runs in zip(*rounds, strict=True))
    files = [median(run.memory.file for run in runs) / 1e6 for runs in zip(*rounds, strict=True)]
    return Figure("MB", ours, other, f"{FEW:,} waiting", {"file MB": files[0], f"file MB with {FEW:,}": files[1]})


def idle_memory(session: Session) -> Figure:
    """Everything resident, right after a start on an empty store."""
    with holdfast(session.stores.filled("empty", [])) as system:
        threading.Event().wait(SETTLE)
        used = memory(pids(system))
    return Figure("MB", [used.resident / 1e6], beside={"anon MB": used.anon / 1e6, "file MB": used.file / 1e6})


def idle_cpu(session: Session) -> Figure:
    store = session.stores.filled("frozen-and-disabled", frozen_and_disabled(session.backlog))
    bell, seconds = threading.Event(), session.seconds * 4
    with holdfast(store) as system:
        bell.wait(SETTLE)
        before = cpu_seconds(pids(system))
        bell.wait(seconds)
        used = cpu_seconds(pids(system)) - before
        kept = memory(pids(system))
    session.stores.drop(store)
    return Figure("%", [used / seconds * 100], beside={"anon MB": kept.anon / 1e6, "file MB": kept.file / 1e6})


# -- fairness ----------------------------------------------------------------------------------------------------------


def fairness(session: Session) -> Figure:
    """From the post of one webhook to its arrival, while another host's backlog is drained as fast as it goes."""
    crowd = min(CROWD, session.backlog)
    store = session.stores.filled("crowd", one_enabled(crowd, session.sink.host))
    with holdfast(session.stores.filled("empty", []), delivery__per_host=PER_HOST) as system:
        alone = arrivals(system)
    before = session.sink.count()
    with holdfast(store, delivery__per_host=PER_HOST) as system:
        crowded = arrivals(system, lambda: session.sink.count() - before < crowd)
        left = crowd - (session.sink.count() - before)
        system.gateway.kill()
    session.stores.drop(store)
    note = "" if left > 0 else "the backlog was gone too soon"
    ours, other = median(crowded) * 1e3, median(alone) * 1e3
    return Figure(
        "ms", [ours], [other], "empty gateway", {"samples": len(crowded), "worst ms": max(crowded) * 1e3}, note
    )


def arrivals(
    system: Holdfast,
    going_on: Callable[[], bool] = lambda: True,
    before: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[float]:
    """Seconds that single webhooks took to their receiver, as long as something goes on.

    The receiver has answered once before what is begun with `before`.
    """
    receiver, bell, came = Receiver(), threading.Event(), threading.Event()
    times: list[float] = []

    def answer(request: Received) -> int:
        times.append(perf_counter())
        came.set()
        return 200

    receiver.answer = answer
    taken: list[float] = []
    with httpx.Client(trust_env=False, timeout=60) as client, ExitStack() as stack:
        client.post(system.urls(f"{receiver.url}/first")[0], content=b"x").raise_for_status()
        assert came.wait(60), "the first webhook did not arrive"
        stack.enter_context(before())
        while len(taken) < SAMPLES and (going_on() or not taken):
            bell.wait(PAUSE)
            came.clear()
            began = perf_counter()
            client.post(system.urls(f"{receiver.url}/hook")[0], content=b"x" * 1024).raise_for_status()
            assert came.wait(60), "a single webhook did not arrive"
            taken.append(times[-1] - began)
    receiver.close()
    return taken
