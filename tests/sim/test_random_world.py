"""Random worlds by seed: the rules always hold, and a seed gives the same events every time.

The test's name and message contain a failing seed: `make sim SEED=...` runs it alone. `make sim` runs new ones until
stopped.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.explore import report, run_world
from tests.support.repetitions import amount

ROOT = Path(__file__).parents[2]
SEEDS = range(amount(25, 250))
A_TEST = 5
"""Worlds in one test: a few hundred tests more would only cost time."""


@pytest.mark.parametrize("first", SEEDS[::A_TEST])
def test_the_rules_hold_in_a_random_world(first: int) -> None:
    for seed in range(first, first + A_TEST):
        world = run_world(seed)
        assert not world.witness.faults, report(seed, world)


def test_a_seed_gives_the_same_events_every_time() -> None:
    stories = [_story(7, hash_seed) for hash_seed in ("1", "2")]
    assert stories[0] == stories[1]
    assert stories[0] != _story(8, "1")


def _story(seed: int, hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.sim.explore", "--seed", str(seed), "--digest"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=120)
    return done.stdout.splitlines()[0]
