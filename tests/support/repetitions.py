"""How much of the same: what every change is held to, or as much as CI does.

`make test` takes the first of each pair, `make test-long` and CI set HOLDFAST_LONG=1 and take the second. An amount's
own variable overrides both.
"""

import os

LONG = os.environ.get("HOLDFAST_LONG") == "1"


def amount(usual: int, long: int, variable: str = "") -> int:
    return int(os.environ.get(variable, long if LONG else usual))
