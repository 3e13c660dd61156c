"""`holdfast dead replay` of many messages, interrupted half-way and run again: each is delivered exactly once.

make bench-replay [DEAD=50000]
"""

import secrets
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import perf_counter

import trio

from holdfast.clock import BootClock
from holdfast.config import build
from holdfast.core.lane import Host, Lane
from holdfast.core.message import Attempt, AttemptKind, DeadReason, Entry, Fault, Place, Standing
from holdfast.core.schedule import Dead
from holdfast.store.embedded.ledger import Ledger
from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.port import Accept, Fail
from tests.bench.fill import AT_ONCE, message
from tests.support.harness import HOLDFAST, Gateway, Receiver, running, until


async def add_dead(folder: Path, count: int, host: str) -> None:
    """Accept messages and let each die of its only attempt, through the ordinary write path."""
    config = build({"store": {"path": str(folder), "max_size": "4GiB", "host_share": 1.0}})
    clock = BootClock()
    engine = LmdbEngine(config.store.path, config.store.max_size)
    rules = config.store_rules(clock.now())
    ledger = Ledger(engine, rules, clock, secrets.randbits)
    ledger.open()
    lane = Lane(host, Host(host, 16, 16))
    lane.circuit.since = clock.now()
    async with trio.open_nursery() as nursery:
        await nursery.start(ledger.run)
        for start in range(0, count, AT_ONCE):
            now = clock.now()
            for _ in range(start, min(start + AT_ONCE, count)):
                dying = message(ledger.mint(now), host, now)
                failed = Attempt(1, AttemptKind.FIRST, now, 1, status=500, fault=Fault.HOST)
                ledger.submit(Accept(dying))
                entry = Entry(dying, Place(Standing.ACTIVE, now))
                ledger.submit(Fail(entry, failed, Dead(DeadReason.EXHAUSTED), lane))
            while ledger.pending:
                await trio.sleep(0)
        nursery.cancel_scope.cancel()
    engine.close()


def replay(gateway: Gateway) -> "subprocess.Popen[str]":
    command = [HOLDFAST, "dead", "replay", "--socket", str(gateway.control)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    receiver = Receiver()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        trio.run(add_dead, store, count, f"127.0.0.1:{receiver.port}")
        with running(store, store__host_share="1.0") as gateway:
            began = perf_counter()
            first = replay(gateway)
            # Few messages are replayed between two looks: then there is nothing left to interrupt.
            until(lambda: gateway.get("/status").json()["store"]["dead"] <= count // 2, 300)
            first.send_signal(signal.SIGINT)
            out, error = first.communicate()
            left = gateway.get("/status").json()["store"]["dead"]
            how = "interrupted" if left else "over before it was interrupted"
            print(f"{how}, exit {first.returncode}: {(out or error).strip()}; {left:,} still dead")
            second = replay(gateway)
            out, error = second.communicate()
            print(f"again, exit {second.returncode}: {(out or error).strip()}")
            receiver.wait_for(lambda requests: len(requests) >= count, 600)
            until(lambda: gateway.get("/status").json()["store"]["waiting"] == 0, 60)
            seconds = perf_counter() - began
        times = Counter(Counter(request.id for request in receiver.requests).values())
        requests = f"{len(receiver.requests):,} requests in {seconds:.0f} s"
        print(f"{count:,} dead, {requests}; how often each was delivered: {dict(times)}")
        assert dict(times) == {1: count}
    receiver.close()


if __name__ == "__main__":
    main()
