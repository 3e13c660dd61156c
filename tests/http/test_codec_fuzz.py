"""Both engines must read the same damaged bytes in the same way: verdict, values, and ends of messages."""

import os
from collections.abc import Callable
from random import SystemRandom

from holdfast.http.codec import engine
from holdfast.http.request_response import Headers
from tests.support.http_fuzz import ROUND, SEEDS, run_round


def test_both_engines_read_every_input_in_the_same_way(measured: Callable[[str], None]) -> None:
    """Uses other inputs in each run. SEED repeats one."""
    seed = int(os.environ.get("SEED") or SystemRandom().randrange(SEEDS))
    report = run_round(seed)
    measured(f"{ROUND:,} inputs over both HTTP engines, seed {seed}")
    assert report is None, report


class Lax:
    """An engine that drops a header."""

    name = "lax"

    def read_request(self, raw: bytes) -> tuple[str, bytes, Headers]:
        method, target, headers = engine("h11").read_request(raw)
        return method, target, [header for header in headers if header[0] != b"upgrade"]

    def read_response(self, raw: bytes) -> Headers:
        return engine("h11").read_response(raw)


def test_a_difference_is_found_and_reduced() -> None:
    report = run_round(1, [engine("h11"), Lax()])
    assert report is not None
    first, given, *_ = report.splitlines()
    assert first.startswith("engines differ at input ")
    assert first.endswith(" of seed 1; alone: make fuzz SEED=1")
    assert "\\r\\nUpgrade:\\r\\n\\r\\n" in given
    assert len(given) < 120
