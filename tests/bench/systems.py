"""What is measured, each as real processes: holdfast and the yardstick. Peers are in `peers.py`.

All get 64 deliveries in flight to one host. holdfast's store is as large as a million waiting messages want, and takes
as many client connections as the benchmarks open; everything else is at its default.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from prometheus_client.parser import text_string_to_metric_families

from bench.processes import end, python
from bench.yardstick import IN_FLIGHT
from harness import Gateway, start

SETTINGS = {
    "store__max_size": "8GiB",
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

    def url(self, target: str) -> str:
        """Where to post what is meant for the target."""
        ...

    @property
    def processes(self) -> list["subprocess.Popen[str]"]: ...

    def groups(self) -> Groups | None: ...


class Yardstick:
    name = "yardstick"

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.processes = [process]
        assert process.stdout is not None
        self._port = int(process.stdout.readline())

    def url(self, target: str) -> str:
        return f"http://127.0.0.1:{self._port}/hook"

    def groups(self) -> None:
        return None


class Holdfast:
    name = "holdfast"

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.processes = [gateway.process]

    def url(self, target: str) -> str:
        return f"http://{self.gateway.ingest}/{target}"

    def groups(self) -> Groups:
        sums = {
            sample.name: sample.value
            for family in text_string_to_metric_families(self.gateway.get("/metrics").text)
            for sample in family.samples
            if sample.name in ("holdfast_commit_operations_count", "holdfast_commit_operations_sum")
        }
        return Groups(sums["holdfast_commit_operations_count"], sums["holdfast_commit_operations_sum"])


@contextmanager
def yardstick(folder: Path, sink: str) -> Iterator[Yardstick]:
    folder.mkdir(parents=True)
    process = python("bench.yardstick", "--store", str(folder), "--sink", sink, stdout=subprocess.PIPE)
    try:
        yield Yardstick(process)
    finally:
        end(process)


@contextmanager
def holdfast(folder: Path, **keys: object) -> Iterator[Holdfast]:
    gateway = start(folder, **SETTINGS | keys)
    try:
        yield Holdfast(gateway)
    finally:
        end(gateway.process)
