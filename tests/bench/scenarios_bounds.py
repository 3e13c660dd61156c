"""Scenarios of bounds: a slow disk does not stop a drain, and hanging hosts cost neither memory nor time."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import httpx

from tests.bench.figures import Figure
from tests.bench.measuring import pids, wait_until
from tests.bench.processes import memory
from tests.bench.scenarios_backlog import arrivals
from tests.bench.session import Session
from tests.bench.stores import one_enabled
from tests.bench.systems import Holdfast, holdfast

SLOW_SYNC = 400
"""Milliseconds that an fsync takes longer."""
BACKLOG = 40_000
HANGING = 1_500
LARGE = b"x" * 1_000_000
ENOUGH = 120.0

_SOURCE = Path(__file__).with_name("slow_sync.c")


def slow_disk(session: Session) -> Figure:
    """How fast a backlog of one host drains with a slow fsync, against the same without."""
    compiler = shutil.which("cc")
    if compiler is None:
        return Figure("msg/s", [], note="there is no C compiler to build a slow fsync with")
    library = session.stores.new("slow-sync")
    library.mkdir(parents=True)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library / "slow.so"), str(_SOURCE)], check=True)
    slow = {"LD_PRELOAD": str(library / "slow.so"), "SLOW_SYNC": str(SLOW_SYNC)}
    ours, other = [], []
    for _ in range(session.pairs):
        other.append(_drain_rate(session, {}))
        ours.append(_drain_rate(session, slow))
    return Figure("msg/s", ours, other, "fsync as it is")


def _drain_rate(session: Session, environment: dict[str, str]) -> float:
    store, before = session.stores.filled("slow", one_enabled(BACKLOG, session.sink.host)), session.sink.count()
    with _environment(environment), holdfast(store) as system:
        rate = session.draining(system, before, BACKLOG, ENOUGH).rate
        system.gateway.kill()
    session.stores.drop(store)
    return rate


@contextmanager
def _environment(added: dict[str, str]) -> Iterator[None]:
    """For the processes that are started meanwhile."""
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def memory_hanging(session: Session) -> Figure:
    """The process's own memory with many hosts that hang, each with a message of a megabyte."""
    with holdfast(session.stores.new("hanging")) as system, _hanging(system, LARGE):
        used = memory(pids(system))
        system.gateway.kill()
    return Figure("MB", [used.anon / 1e6], beside={"hosts": HANGING})


def places_hanging(session: Session) -> Figure:
    """From the post of a webhook to its arrival at a host that answers, beside many that hang."""
    with holdfast(session.stores.new("alone")) as system:
        alone = arrivals(system)
    with holdfast(session.stores.new("beside")) as system:
        beside = arrivals(system, before=partial(_hanging, system, b"{}"))
        system.gateway.kill()
    return Figure("ms", [max(beside) * 1e3], [median(alone) * 1e3], "none hang", {"hosts": HANGING})


@contextmanager
def _hanging(system: Holdfast, body: bytes) -> Iterator[None]:
    """Receivers that the kernel answers for and nobody else does, each with one webhook on its way."""
    sockets = []
    try:
        with httpx.Client(trust_env=False, timeout=60) as client:
            for number in range(HANGING):
                listener = socket.socket()
                sockets.append(listener)
                listener.bind((f"127.2.{number // 250}.{number % 250 + 1}", 0))
                listener.listen(8)
                target = "http://{}:{}/hook".format(*listener.getsockname())
                client.post(system.urls(target)[0], content=body).raise_for_status()
        wait_until(lambda: system.gateway.get("/status").json()["in_flight"] >= 10, "hosts that hang")
        yield
    finally:
        for listener in sockets:
            listener.close()
