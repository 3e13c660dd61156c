import logging
import signal
from collections.abc import Iterator

import pytest

LONGEST_TEST = 60
"""Real seconds. Virtual time stands still while something spins: such a test would never end."""


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

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LONGEST_TEST)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
