"""Random worlds by seed: `python -m tests.sim.explore` runs new ones until stopped, with a seed only that one."""

import argparse
import hashlib
import logging
import signal
import sys
import traceback
from itertools import count
from random import SystemRandom

import trio
import trio.testing
from trio._core import _run as trio_scheduler

from tests.sim.faults import StepCounter
from tests.sim.random_world import RandomWorld, make

TAIL = 60


def run_world(seed: int) -> RandomWorld:
    """One world from its beginning to its end, the same every time: trio's order of tasks comes from the seed too."""
    steps = StepCounter()

    async def live() -> RandomWorld:
        world = make(seed, steps)
        try:
            await world.live()
        except Exception as error:
            world.witness.trace += traceback.format_exception(error)
            world.witness.check(False, f"the gateway broke: {error!r}")
        return world

    before = trio_scheduler._ALLOW_DETERMINISTIC_SCHEDULING
    trio_scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio_scheduler._r.seed(seed)
    try:
        return trio.run(live, clock=trio.testing.MockClock(autojump_threshold=0), instruments=[steps])
    finally:
        trio_scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before  # type: ignore[misc]


def digest(world: RandomWorld) -> str:
    return hashlib.blake2b("\n".join(world.witness.trace).encode(), digest_size=16).hexdigest()


def report(seed: int, world: RandomWorld) -> str:
    """What was broken, and how to see it again."""
    faults = "\n".join(world.witness.faults[:5])
    return f"seed {seed} is broken; alone: make sim SEED={seed}\n{faults}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this world alone")
    parser.add_argument("--first", type=int, help="run the worlds from this seed on")
    parser.add_argument("--count", type=int, help="stop after so many")
    parser.add_argument("--digest", action="store_true", help="print what tells two runs of a world apart")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if options.seed is not None:
        return alone(options.seed, show_digest=options.digest)
    first = options.first if options.first is not None else SystemRandom().randrange(1 << 40)
    return explore(first, options.count)


def alone(seed: int, *, show_digest: bool) -> int:
    world = run_world(seed)
    if show_digest:
        print(digest(world))
    if world.witness.faults:
        print("\n".join(world.witness.trace[-TAIL:]))
        print(report(seed, world))
        return 1
    print(f"seed {seed}: {len(world.requests)} requests, {len(world.witness.messages)} messages, all well")
    return 0


def explore(first: int, most: int | None) -> int:
    """Fresh worlds until one is broken or somebody stops it; the world under way is then lived to its end."""
    stopped: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: stopped.append(number))
    requests = messages = 0
    for number in count():
        over = bool(stopped) or number == most
        if over or (number and number % 50 == 0):
            print(f"{number} worlds from seed {first}: {messages} messages, {requests} requests", flush=True)
        if over:
            return 0
        world = run_world(first + number)
        requests += len(world.requests)
        messages += len(world.witness.messages)
        if world.witness.faults:
            print(report(first + number, world), flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
