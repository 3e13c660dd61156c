import logging
import signal
from collections.abc import Iterator

import pytest

from tests.sim.on_postgres import PostgresWorld, WatchedDatabase
from tests.sim.stores import POSTGRES, stores_of
from tests.sim.world import Maker

LONGEST_TEST = 60
"""Seconds of CPU. Virtual time stands still while something spins: such a test would never end."""


@pytest.fixture(autouse=True)
def no_log() -> Iterator[None]:
    """A line for each of thousands of failed attempts is only noise here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True)
def no_spinning() -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise AssertionError("virtual time stands still")

    before = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_TEST)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store" in metafunc.fixturenames:
        metafunc.parametrize("store", stores_of(metafunc.module, metafunc.function), indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The store that the test's worlds are on."""
    if request.param == POSTGRES:
        url = request.getfixturevalue("tables")
        monkeypatch.setattr(Maker, "make", lambda config: PostgresWorld(config, WatchedDatabase(url)))
    return request.param
