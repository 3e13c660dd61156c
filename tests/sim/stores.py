"""Which stores a scenario is run on: the embedded one, and PostgreSQL but for those that say why not.

A module says `pytestmark = on_each_store`. With HOLDFAST_SIM=all, as `make sim-stores` has it, those run on PostgreSQL
too that only take too long for every run of the suite.
"""

import os
from collections.abc import Callable
from typing import TypeVar

import pytest

EMBEDDED, POSTGRES = "embedded", "postgres"
EVERYTHING = os.environ.get("HOLDFAST_SIM") == "all"

Test = TypeVar("Test", bound=Callable[..., object])

on_each_store = pytest.mark.usefixtures("store")


def embedded_only(why: str) -> Callable[[Test], Test]:
    """The test's subject is the embedded store's own."""
    return _with(why)


def long_on_postgres(test: Test) -> Test:
    """Thousands of messages, or days of probes: seconds on a real server."""
    return test if EVERYTHING else _with("it takes long")(test)


def stores_of(test: Callable[..., object]) -> list[str]:
    return [EMBEDDED] if getattr(test, "embedded_only", "") else [EMBEDDED, POSTGRES]


def _with(why: str) -> Callable[[Test], Test]:
    def mark(test: Test) -> Test:
        test.embedded_only = why  # type: ignore[attr-defined]
        return test

    return mark
