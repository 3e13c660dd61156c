"""How often tests repeat. `make test` uses the first number of each pair; `make test-long` and CI set HOLDFAST_LONG=1
and use the second. A test's own environment variable overrides both.
"""

import os

LONG = os.environ.get("HOLDFAST_LONG") == "1"


def amount(usual: int, long: int, variable: str = "") -> int:
    return int(os.environ.get(variable, long if LONG else usual))
