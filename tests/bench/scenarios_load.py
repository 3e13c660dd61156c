"""Scenarios under load on empty stores: throughput, what it costs, latency at half of it, many idle connections."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import httpx

from tests.bench.figures import Figure, details
from tests.bench.load import CONNECTIONS, WRK, alongside, closed, paced
from tests.bench.measuring import Run, checked, pids, saturate, wait_until
from tests.bench.processes import cpu_seconds, memory
from tests.bench.session import Pair, Session
from tests.bench.systems import Holdfast, System, holdfast, yardstick

LARGE = 64 << 10
HANGING = 200
HANG_AT_ONCE = 128
"""Hosts that were not tried yet share half of the places."""
FOR_EACH = 3
"""Messages for each hanging receiver: when one times out, the next one hangs."""
IDLE_CONNECTIONS = 2_000 - CONNECTIONS
IDLE_RATE = 100.0
"""Webhooks a second over all idle connections: each speaks every 20 seconds, none is closed as idle."""


def rates(pairs: Sequence[Pair]) -> Figure:
    return Figure(
        "msg/s",
        [pair.holdfast.rate for pair in pairs],
        [pair.yardstick.rate for pair in pairs],
        "yardstick",
        details([pair.holdfast for pair in pairs]),
    )


def end_to_end(session: Session) -> Figure:
    return rates(session.fresh())


def own_heads(session: Session) -> Figure:
    """What is gained by knowing a head again is not gained here."""
    if WRK is None:
        return Figure("msg/s", [], note="only wrk gives every request a head of its own")
    return rates(session.fresh(own_heads=True))


def cpu(session: Session) -> Figure:
    pairs = session.fresh()
    ours, other = [pair.holdfast.cpu * 1e6 for pair in pairs], [pair.yardstick.cpu * 1e6 for pair in pairs]
    return Figure("us/msg", ours, other, "yardstick")


def large_fresh(session: Session) -> Figure:
    return rates(session.fresh(LARGE))


def large_drained(session: Session) -> Figure:
    """On the store that a whole backlog was drained from; the yardstick on an empty one."""
    drain = session.drain(session.backlog)
    store, pairs = session.drained(session.backlog), []
    for _ in range(session.pairs):
        other = session.run_yardstick(LARGE)
        with holdfast(store) as system:
            pairs.append(Pair(other, saturate(system, session.sink, session.seconds, LARGE)))
    short = drain.delivered < session.backlog
    return replace(rates(pairs), note=f"only {drain.delivered:,} were drained in time" if short else "")


# -- two processes -----------------------------------------------------------------------------------------------------


class Share(NamedTuple):
    """What one process of a gateway cost: CPU in seconds a message, bytes of its own memory."""

    cpu: float
    anon: int


def split(session: Session) -> Figure:
    """Against its own one process, on the same two cores as the load and the sink."""
    one, two, shares = [], [], []
    for _ in range(session.pairs):
        one.append(session.run_holdfast())
        run, each = _run_split(session)
        two.append(run)
        shares.append(each)
    beside = details(two)
    for place, name in enumerate(("gateway", "ingest")):
        beside[f"{name} cpu us"] = median(each[place].cpu for each in shares) * 1e6
        beside[f"{name} anon MB"] = median(each[place].anon for each in shares) / 1e6
    return Figure("msg/s", [run.rate for run in two], [run.rate for run in one], "one process", beside)


def _run_split(session: Session) -> tuple[Run, list[Share]]:
    store = session.stores.new("split")
    with holdfast(store, process__split="true") as system:
        both, before = pids(system), session.sink.count()
        used = [cpu_seconds([pid]) for pid in both]
        run = saturate(system, session.sink, session.seconds)
        messages = session.sink.count() - before
        shares = [
            Share((cpu_seconds([pid]) - cpu) / messages, memory([pid]).anon)
            for pid, cpu in zip(both, used, strict=True)
        ]
    session.stores.drop(store)
    return run, shares


# -- latency -----------------------------------------------------------------------------------------------------------


class Latency(NamedTuple):
    """Of one round, in seconds: the p99 of each at half of its own saturation, and the p50 of ours."""

    yardstick: float
    holdfast: float
    hanging: float
    p50: float


def latencies(session: Session) -> list[Latency]:
    return list(session.once("latencies", lambda: [_latency(session) for _ in range(session.pairs)]))


def _latency(session: Session) -> Latency:
    half = session.fresh_rate() / 2
    store = session.stores.new("yardstick")
    with yardstick(store, session.sink.host) as other:
        their_p99, _ = _paced(session, other, (session.yardstick_rate() or 2 * half) / 2)
    session.stores.drop(store)
    store = session.stores.new("holdfast")
    with holdfast(store) as system, hanging_receivers() as targets:
        p99, p50 = _paced(session, system, half)
        with httpx.Client(trust_env=False, timeout=60) as client:
            for target in targets * FOR_EACH:
                client.post(system.urls(target)[0], content=b"x").raise_for_status()
        wait_until(lambda: _in_flight(system) >= HANG_AT_ONCE, f"{HANG_AT_ONCE} hang")
        hanging_p99, _ = _paced(session, system, half)
        system.gateway.kill()
    session.stores.drop(store)
    return Latency(their_p99, p99, hanging_p99, p50)


def _paced(session: Session, system: System, rate: float) -> tuple[float, float]:
    """p99 and p50."""
    urls = system.urls(session.sink.url)
    checked(closed(urls, session.seconds / 2))
    load = checked(paced(urls, rate, session.seconds))
    return load.p99, load.p50


def _in_flight(system: Holdfast) -> int:
    return int(system.gateway.get("/status").json()["in_flight"])


@contextmanager
def hanging_receivers() -> Iterator[list[str]]:
    """Targets that take a connection and a request and never answer: the kernel does, nobody accepts."""
    sockets: list[socket.socket] = []
    try:
        for number in range(HANGING):
            receiver = socket.socket()
            sockets.append(receiver)
            receiver.bind((f"127.0.1.{number + 1}", 0))
            receiver.listen(256)
        yield ["http://{}:{}/hook".format(*receiver.getsockname()) for receiver in sockets]
    finally:
        for receiver in sockets:
            receiver.close()


def ack_p99(session: Session) -> Figure:
    rounds = latencies(session)
    ours, other = [one.holdfast * 1e3 for one in rounds], [one.yardstick * 1e3 for one in rounds]
    beside = {"at msg/s": session.fresh_rate() / 2, "ack p50 ms": median(one.p50 for one in rounds) * 1e3}
    return Figure("ms", ours, other, "yardstick", beside)


def ack_p99_hanging(session: Session) -> Figure:
    rounds = latencies(session)
    ours, other = [one.hanging * 1e3 for one in rounds], [one.holdfast * 1e3 for one in rounds]
    return Figure("ms", ours, other, "none hang")


# -- connections -------------------------------------------------------------------------------------------------------


def connections(session: Session) -> Figure:
    ours, other, runs = [], [], []
    for _ in range(session.pairs):
        store = session.stores.new("connections")
        with holdfast(store) as system:
            other.append(saturate(system, session.sink, session.seconds).ack_rate)
            with alongside(system.urls(session.sink.url)[0], IDLE_RATE, IDLE_CONNECTIONS):
                runs.append(saturate(system, session.sink, session.seconds))
            ours.append(runs[-1].ack_rate)
        session.stores.drop(store)
    return Figure("msg/s", ours, other, f"{CONNECTIONS} connections", details(runs))
