"""What is measured, each as real processes: holdfast, also as a fleet, and the yardstick. Peers are in `peers.py`.

All get 64 deliveries in flight to one host. holdfast's store is as large as a million waiting messages want, and takes
as many client connections as the benchmarks open; everything else is at its default.
"""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from prometheus_client.parser import text_string_to_metric_families

from tests.bench.database import Database
from tests.bench.processes import end, python
from tests.bench.yardstick import IN_FLIGHT
from tests.support import fork_server
from tests.support.harness import Gateway, start, until

SETTINGS = {
    "store__max_size": "16GiB",
    "store__host_share": "1.0",
    "ingest__max_connections": "4096",
    "delivery__per_host": str(IN_FLIGHT),
}


class Groups(NamedTuple):
    """Commits so far and operations in them."""

    commits: float
    operations: float


class System(Protocol):
    name: str
    database: Database | None

    def urls(self, target: str) -> list[str]:
        """Where to post what is meant for the target: any of them."""
        ...

    @property
    def processes(self) -> list["subprocess.Popen[str]"]: ...

    def groups(self) -> Groups | None: ...


class Yardstick:
    name = "yardstick"
    database = None

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.processes = [process]
        assert process.stdout is not None
        self._port = int(process.stdout.readline())

    def urls(self, target: str) -> list[str]:
        return [f"http://127.0.0.1:{self._port}/hook"]

    def groups(self) -> None:
        return None


class Holdfast:
    """One gateway, or replicas on one database; each that takes webhooks gets the same."""

    name = "holdfast"

    def __init__(self, gateways: Sequence[Gateway], database: Database | None = None) -> None:
        self.gateway = gateways[0]
        self.processes = [gateway.process for gateway in gateways]
        self.database = database
        self._gateways = gateways

    def urls(self, target: str) -> list[str]:
        return [f"http://{gateway.ingest}/{target}" for gateway in self._gateways if gateway.ingest]

    def groups(self) -> Groups:
        each = [_groups_of(gateway) for gateway in self._gateways]
        return Groups(sum(groups.commits for groups in each), sum(groups.operations for groups in each))


def _groups_of(gateway: Gateway) -> Groups:
    sums = {
        sample.name: sample.value
        for family in text_string_to_metric_families(gateway.get("/metrics").text)
        for sample in family.samples
        if sample.name in ("holdfast_commit_operations_count", "holdfast_commit_operations_sum")
    }
    return Groups(sums["holdfast_commit_operations_count"], sums["holdfast_commit_operations_sum"])


@contextmanager
def yardstick(folder: Path, sink: str) -> Iterator[Yardstick]:
    folder.mkdir(parents=True)
    process = python("tests.bench.yardstick", "--store", str(folder), "--sink", sink, stdout=subprocess.PIPE)
    try:
        yield Yardstick(process)
    finally:
        end(process)


@contextmanager
def holdfast(folder: Path, **keys: object) -> Iterator[Holdfast]:
    with fork_server.executing():
        gateway = start(folder, **SETTINGS | keys)
    try:
        yield Holdfast([gateway])
    finally:
        end(gateway.process)


@contextmanager
def fleet(folder: Path, database: Database, roles: Sequence[str] = ("all",), **keys: object) -> Iterator[Holdfast]:
    """A replica of each role, once those that deliver share the hosts."""
    folder.mkdir(parents=True)
    gateways: list[Gateway] = []
    keys = SETTINGS | {"store__url": database.url} | keys
    try:
        with fork_server.executing():
            for number, role in enumerate(roles):
                gateways.append(start(folder / f"replica{number}", None, "--role", role, **keys))
        owners = len([role for role in roles if role != "ingest"])
        until(lambda: database.ask("SELECT count(DISTINCT owner) FROM shards") == [(owners,)])
        yield Holdfast(gateways, database)
    finally:
        for gateway in gateways:
            end(gateway.process)
