"""How often tests repeat. `make test` uses the first number of each pair; `make test-long` and CI set HOLDFAST_LONG=1
and use the second. A test's own environment variable overrides both.
"""

import os
from collections.abc import Iterable
from typing import TypeVar

LONG = os.environ.get("HOLDFAST_LONG") == "1"


T = TypeVar("T")


def cases(usual: Iterable[T], more: Iterable[T]) -> list[T]:
    """Parameters of a test. `more` are of kinds that the usual ones cover, and run only in the long run."""
    return [*usual, *(more if LONG else ())]


def amount(usual: int, long: int, variable: str = "") -> int:
    return int(os.environ.get(variable, long if LONG else usual))
