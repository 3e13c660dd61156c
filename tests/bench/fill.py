"""Fills a store with waiting messages without a gateway, through the ordinary write path."""

import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from holdfast.clock import BootClock
from holdfast.config import Config, build
from holdfast.core.circuit import CircuitState, Reason
from holdfast.core.lane import Host, Lane
from holdfast.core.message import Message
from holdfast.store.embedded.ledger import Ledger
from holdfast.store.embedded.lmdb import LmdbEngine
from holdfast.store.port import Accept, SaveLane

BODY = (b'{"event": "invoice.paid", "amount": 1200}' * 25)[:1024]
AT_ONCE = 512
REASONS = {CircuitState.FROZEN: Reason.OPERATOR, CircuitState.DISABLED: Reason.FAILURE_RATE}


def message(id: bytes, host: str, now: int) -> Message:
    return Message(id, host, host, "http", host, b"/hook", "POST", (), BODY, now, now)


def settings(folder: Path) -> Config:
    """Room for a million messages, all of them for one host if need be."""
    return build({"store": {"path": str(folder), "max_size": "16GiB", "host_share": 1.0}})


async def fill(config: Config, count: int, hosts: Sequence[str], state: CircuitState) -> None:
    """Accept `count` messages, dealt out to the hosts, whose circuits are in `state`."""
    clock = BootClock()
    engine = LmdbEngine(config.store.path, config.store.max_size)
    rules = config.store_rules(clock.now())
    ledger = Ledger(engine, rules, clock, secrets.randbits)
    ledger.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(ledger.run)
        for start in range(0, len(hosts), AT_ONCE):
            for host in hosts[start : start + AT_ONCE]:
                ledger.submit(SaveLane(lane(host, state, config, clock.now())))
            await written(ledger)
        for start in range(0, count, AT_ONCE):
            for number in range(start, min(start + AT_ONCE, count)):
                now = clock.now()
                ledger.submit(Accept(message(ledger.mint(now), hosts[number % len(hosts)], now)))
            await written(ledger)
        nursery.cancel_scope.cancel()
    engine.close()


def lane(host: str, state: CircuitState, config: Config, now: int) -> Lane:
    made = Lane(host, Host(host, 16, 16))
    circuit = made.circuit
    circuit.state, circuit.reason = state, REASONS.get(state)
    circuit.since = circuit.enabled_at = now
    circuit.next_probe_at = now + config.circuit.probe_every if state is CircuitState.DISABLED else None
    return made


async def written(ledger: Ledger) -> None:
    while ledger.pending:
        await trio.sleep(0)


if __name__ == "__main__":
    folder, count, hosts = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")
    trio.run(fill, settings(folder), count, hosts, CircuitState.FROZEN)
