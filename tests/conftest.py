"""Real processes as fixtures, a database among them, and figures that tests measured, told at the end of the run."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import fork_server, harness
from tests.support.harness import Gateway, Receiver, running
from tests.support.postgres import ELSEWHERE, OwnServer, Server

MEASURED = "measured"

# Started in the background of a shell the suite has SIGINT ignored, and every child too: Ctrl-C would do nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is the machine's affair.
settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("holdfast")

LONGEST = (
    "crash/test_failing_disk.py",
    "cli/test_demo.py",
    "fleet/test_kills.py",
    "fleet/test_database_clock.py",
    "fleet/test_database_hangs.py",
    "fleet/test_database_outages.py",
    "fleet/test_fencing.py",
    "fleet/test_rollout.py",
    "gateway/test_handoff.py",
    "cli/test_handoff.py",
    "docs/test_pages.py",
    "page/test_states.py",
    "sim/test_expiry.py",
    "sim/test_fairness.py",
    "fleet/test_operators.py",
    "fleet/test_random_fleet.py",
    "gateway/test_process.py",
    "gateway/test_hostile_clients.py",
    "gateway/test_commands.py",
)
"""Files that take longest: begun first, none of them is left over when the other workers are done."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(f"{item.path.parent.name}/{item.path.name}", len(LONGEST)))


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two processes"])
def processes(request: pytest.FixtureRequest) -> Iterator[int]:
    """For tests of what holds whether or not ingest has a process of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(harness.ALSO, "process__split", "true" if request.param == 2 else "false")
        yield request.param


@pytest.fixture
def executed() -> Iterator[None]:
    """Gateways are executed, not forked: each has only what it imported itself."""
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
    """One for all tests of a worker."""
    if ELSEWHERE is not None:
        yield Server(ELSEWHERE, ELSEWHERE)
        return
    server = OwnServer(heedless=True)
    yield server
    server.close()


@pytest.fixture(scope="session")
def durable_postgres() -> Iterator[OwnServer]:
    """One more for all tests of a worker, which loses nothing in a crash."""
    server = OwnServer()
    yield server
    server.close()


@pytest.fixture
def own_postgres(request: pytest.FixtureRequest) -> Iterator[OwnServer]:
    """For tests that stop it, or set it otherwise."""
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
def measured(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Keeps a line for the end of the test log, from whichever worker ran the test."""
    return lambda line: record_property(MEASURED, line)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Said at once, and not only at the end, which a run that is cut off never reaches."""
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
