"""Fixtures for real processes and databases, and a report of measured figures at the end of the run."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import fork_server, harness
from tests.support.harness import Gateway, Receiver, running
from tests.support.postgres import ELSEWHERE, OwnServer, Server
from tests.support.repetitions import amount

MEASURED = "measured"

# A shell starts background jobs with SIGINT ignored, and children inherit that: tests of Ctrl-C would fail.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The time of an example depends on the machine.
settings.register_profile(
    "holdfast", deadline=None, max_examples=amount(50, 100), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("holdfast")

LONGEST = (
    "cli/test_demo.py",
    "gateway/test_handoff.py",
    "docs/test_pages.py",
    "fleet/test_database_outages.py",
    "crash/test_failing_disk.py",
    "fleet/test_database_clock.py",
    "fleet/test_replica.py",
    "page/test_states.py",
    "gateway/test_hostile_clients.py",
    "contract/test_outcomes.py",
    "cli/test_store_commands_handoff.py",
    "fleet/test_fencing.py",
    "fleet/test_database_hangs.py",
    "fleet/test_rollout.py",
    "fleet/test_kills.py",
    "deploy/test_sbom.py",
    "contract/test_room.py",
    "fleet/test_operators.py",
    "fleet/test_ownership.py",
    "sim/test_circuit.py",
    "sim/test_many_hosts.py",
    "crash/test_clock_jump.py",
    "gateway/test_commands.py",
)
"""The longest files, which start first, so that no worker is left with one at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(f"{item.path.parent.name}/{item.path.name}", len(LONGEST)))


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two processes"])
def processes(request: pytest.FixtureRequest) -> Iterator[int]:
    """Runs a module's tests with ingest in the gateway's process, and in its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(harness.ALSO, "process__split", "true" if request.param == 2 else "false")
        yield request.param


@pytest.fixture
def executed() -> Iterator[None]:
    """Executes gateways instead of forking them, so that each has only its own imports."""
    with fork_server.executing():
        yield


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with running(tmp_path / "store") as gateway:
        yield gateway


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """One server for all tests of a worker."""
    if ELSEWHERE is not None:
        yield Server(ELSEWHERE, ELSEWHERE)
        return
    server = OwnServer(durable=False)
    yield server
    server.close()


@pytest.fixture(scope="session")
def durable_postgres() -> Iterator[OwnServer]:
    """A second server for all tests of a worker, which loses nothing in a crash."""
    server = OwnServer()
    yield server
    server.close()


@pytest.fixture
def own_postgres(request: pytest.FixtureRequest) -> Iterator[OwnServer]:
    """For tests that stop the server or change its settings."""
    if ELSEWHERE is not None:
        pytest.skip("HOLDFAST_TEST_POSTGRES names a server that is not ours to stop")
    server: OwnServer = request.getfixturevalue("durable_postgres")
    yield server
    server.restore()


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    """The URL of an empty database."""
    url = postgres.lend()
    yield url
    postgres.take_back(url)


@pytest.fixture
def tables(postgres: Server) -> Iterator[str]:
    """The URL of a database whose tables are there, and empty."""
    url = postgres.lend_prepared()
    yield url
    postgres.take_back_prepared(url)


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Records a line for the end of the test log."""
    return lambda line: record_property(MEASURED, line)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Prints failures at once, because an interrupted run never reaches the summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(
            f"\n{report.nodeid} failed at {report.when} after {report.duration:.1f} s\n{report.longreprtext}",
            flush=True,
        )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for group in terminalreporter.stats.values() for report in group]
    for report in reports:
        for name, line in getattr(report, "user_properties", ()):
            if name == MEASURED and report.when == "call":
                terminalreporter.write_line(f"measured: {line}")
