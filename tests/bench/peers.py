"""The same load on what is built instead: a web framework, a job queue and Redis, each configured well.

    make bench-peers [QUICK=1] [ONLY=bullmq] [OUT=var/bench-peers.json]

Each peer acknowledges when Redis has the webhook on disk (`appendfsync always`), and delivers over kept-alive
connections with 64 in flight. CPU and memory are of all of its processes. They are installed under `var/peers`; one
that can't be is a row that says so. holdfast and the peer are measured in turn; ratios are holdfast's to the peer's.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.bench.figures import Bound, Figure, details
from tests.bench.measuring import Run, saturate, wait_until
from tests.bench.peer_install import APPS, CannotInstall, Installed
from tests.bench.processes import end
from tests.bench.run import arguments, measure, prepared, write
from tests.bench.scenarios import SCENARIOS, Scenario, at_least, at_most
from tests.bench.session import Session
from tests.bench.systems import holdfast

FOLDER = Path("var/peers")


@dataclass
class Peer:
    """A system of several processes, as `System` wants it."""

    name: str
    port: int
    processes: list["subprocess.Popen[str]"]
    database = None

    def urls(self, target: str) -> list[str]:
        return [f"http://127.0.0.1:{self.port}/hook"]

    def groups(self) -> None:
        return None


class Commands(NamedTuple):
    """What a peer consists of besides Redis, and where it runs."""

    front: Sequence[str]
    backs: Sequence[Sequence[str]]
    folder: Path


def bullmq(installed: Installed, port: int) -> Commands:
    """Takes its port from the environment."""
    node, folder = installed.node()
    return Commands([node, "fastify_app.js"], [[node, "bullmq_worker.js"]], folder)


def dramatiq(installed: Installed, port: int) -> Commands:
    tools = installed.python().absolute()
    back = [str(tools / "dramatiq"), "dramatiq_tasks", "--processes", "2", "--threads", "32"]
    return Commands(_uvicorn(tools, port), [back], APPS)


def celery(installed: Installed, port: int) -> Commands:
    """Two workers: each waits for Redis' fsync with every message that it takes and that it has done."""
    tools = installed.python().absolute()
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR"]
    back = [str(tools / "celery"), "-A", "celery_tasks", "worker", "--pool", "threads", "--concurrency", "32", *quiet]
    return Commands(_uvicorn(tools, port), [[*back, "-n", name] for name in ("one@%h", "two@%h")], APPS)


def _uvicorn(tools: Path, port: int) -> list[str]:
    quiet = ["--no-access-log", "--log-level", "warning"]
    return [str(tools / "uvicorn"), "fastapi_app:app", "--host", "127.0.0.1", "--port", str(port), *quiet]


PEERS: dict[str, tuple[str, Callable[[Installed, int], Commands]]] = {
    "bullmq": ("Fastify + BullMQ + Redis", bullmq),
    "dramatiq": ("FastAPI + Dramatiq + Redis", dramatiq),
    "celery": ("FastAPI + Celery + Redis", celery),
}


@contextmanager
def running(name: str, installed: Installed, store: Path, target: str) -> Iterator[Peer]:
    port, redis_port = free_port(), free_port()
    redis, libraries = installed.redis()
    commands = PEERS[name][1](installed, port)
    store.mkdir(parents=True)
    durable = ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--dir", str(store)]
    environment = os.environ | {
        "PORT": str(port),
        "REDIS_PORT": str(redis_port),
        "TARGET": target,
        "TASKS": f"{name}_tasks",
        "NODE_ENV": "production",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with ExitStack() as ends, (store / "log").open("w") as log:

        def start(command: Sequence[str], folder: Path, **more: str) -> "subprocess.Popen[str]":
            process = subprocess.Popen(
                command, cwd=folder, env=environment | more, stdout=log, stderr=log, text=True, start_new_session=True
            )
            ends.callback(end, process)
            return process

        bound = ["--bind", "127.0.0.1", "--port", str(redis_port)]
        processes = [start([redis, *bound, *durable], store, **libraries)]
        wait_for_port(redis_port, processes[0], store / "log")
        processes += [start(command, commands.folder) for command in (*commands.backs, commands.front)]
        wait_for_port(port, processes[-1], store / "log")
        yield Peer(name, port, processes)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait_for_port(port: int, process: "subprocess.Popen[str]", log: Path) -> None:
    def listens() -> bool:
        assert process.poll() is None, f"it ended: {log.read_text()[-200:]}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_until(listens, f"port {port}", patience=60)


# -- scenarios ---------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    holdfast: Run
    peer: Run


def pairs(session: Session, name: str, installed: Installed) -> list[Pair]:
    return list(session.once(name, lambda: [_pair(session, name, installed) for _ in range(session.pairs)]))


def _pair(session: Session, name: str, installed: Installed) -> Pair:
    store = session.stores.new(name)
    with running(name, installed, store, session.sink.url) as peer:
        their_run = saturate(peer, session.sink, session.seconds)
    session.stores.drop(store)
    store = session.stores.new("holdfast")
    with holdfast(store) as system:
        run = saturate(system, session.sink, session.seconds)
    session.stores.drop(store)
    return Pair(run, their_run)


def compare(
    session: Session,
    name: str,
    installed: Installed,
    unit: str,
    read: Callable[[Run], float],
    *,
    detailed: bool = False,
) -> Figure:
    measured = pairs(session, name, installed)
    ours, other = [read(pair.holdfast) for pair in measured], [read(pair.peer) for pair in measured]
    return Figure(unit, ours, other, PEERS[name][0], _about(session, measured) if unit == "msg/s" else {})


def _about(session: Session, measured: Sequence[Pair]) -> dict[str, float]:
    """Once for each peer, beside its rate."""
    peers = [pair.peer for pair in measured]
    about = {f"its {what}": value for what, value in details(peers).items()}
    yardstick = session.yardstick_rate()
    return about | ({"its ratio to the yardstick": median(run.rate for run in peers) / yardstick} if yardstick else {})


def scenarios(installed: Installed, names: Sequence[str]) -> Iterator[Scenario]:
    for name in names:
        known_as, commands = PEERS[name]
        try:
            installed.redis()
            commands(installed, 0)
        except CannotInstall as reason:
            told = Figure("", [], against=known_as, note=f"can't be installed: {reason}")
            yield Scenario(name, "not measured", Bound(), lambda session, told=told: told)
            continue
        how = partial(compare, name=name, installed=installed)
        rate = partial(how, unit="msg/s", read=lambda run: run.rate)
        yield Scenario(f"{name}_rate", "end to end, 1 KiB, 32 connections", at_least(1.0), rate)
        cpu = partial(how, unit="us/msg", read=lambda run: run.cpu * 1e6)
        yield Scenario(f"{name}_cpu", "CPU per message, all processes", at_most(1.0), cpu)
        p99 = partial(how, unit="ms", read=lambda run: run.p99 * 1e3)
        yield Scenario(f"{name}_p99", "ack p99 at saturation", at_most(1.0), p99)
        anon = partial(how, unit="MB", read=lambda run: run.memory.resident / 1e6)
        yield Scenario(f"{name}_memory", "RSS under load, all processes", at_most(1.0), anon)


def main() -> int:
    given = arguments(__doc__, Path("var/bench-peers.json"))
    wanted = [name for name in PEERS if name.startswith(given.only.partition("_")[0])]
    known = [*SCENARIOS[:2], *scenarios(Installed(FOLDER), wanted)]
    chosen = [scenario for scenario in known if scenario.name.startswith(given.only)]
    with prepared(given) as session:
        rows = [(scenario, measure(scenario, session)) for scenario in chosen]
        write(given, session, rows)
    return 1 if any(figure.note.startswith("failed") for _, figure in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
