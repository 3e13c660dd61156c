"""Which stores a scenario is run on: the embedded one, and PostgreSQL but for those that say why not.

A module says `pytestmark = on_each_store`. In the long run of the suite those run on PostgreSQL too that only take too
long for every run.
"""

from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.support.repetitions import LONG

EMBEDDED, POSTGRES = "embedded", "postgres"

Test = TypeVar("Test", bound=Callable[..., object])

on_each_store = pytest.mark.usefixtures("store")


def embedded_only(why: str) -> Callable[[Test], Test]:
    """The test's subject is the embedded store's own."""
    return _with(why)


def long_on_postgres(test: Test) -> Test:
    """Thousands of messages, or days of probes: seconds on a real server."""
    return test if LONG else _with("it takes long")(test)


def stores_of(test: Callable[..., object]) -> list[str]:
    return [EMBEDDED] if getattr(test, "embedded_only", "") else [EMBEDDED, POSTGRES]


def _with(why: str) -> Callable[[Test], Test]:
    def mark(test: Test) -> Test:
        test.embedded_only = why  # type: ignore[attr-defined]
        return test

    return mark
