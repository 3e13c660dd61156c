"""On which stores a scenario runs: the embedded one, and PostgreSQL unless the test gives a reason.

A module sets `pytestmark = on_each_store`, or `long_on_each_store` if its scenarios run on PostgreSQL only in the long
run: their rules are those of `core` and `delivery/`, which do not know the store.
"""

from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

import pytest

from tests.support.repetitions import LONG

EMBEDDED, POSTGRES = "embedded", "postgres"

Test = TypeVar("Test", bound=Callable[..., object])

on_each_store = pytest.mark.usefixtures("store")
long_on_each_store = [on_each_store]


def embedded_only(why: str) -> Callable[[Test], Test]:
    """For tests of the embedded store alone."""

    def mark(test: Test) -> Test:
        test.embedded_only = why  # type: ignore[attr-defined]
        return test

    return mark


def long_on_postgres(test: Test) -> Test:
    """For thousands of messages, or days of probes: seconds on a real server."""
    return test if LONG else embedded_only("it takes long")(test)


def stores_of(module: ModuleType, test: Callable[..., object]) -> list[str]:
    is_embedded_only = getattr(test, "embedded_only", "") or (not LONG and module.pytestmark is long_on_each_store)
    return [EMBEDDED] if is_embedded_only else [EMBEDDED, POSTGRES]
