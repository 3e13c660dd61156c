"""Fills a store with waiting messages without a gateway, through the ordinary write path."""

import secrets
import sys
from pathlib import Path

import trio

from holdfast.clock import BootClock
from holdfast.config import Config, build
from holdfast.core.circuit import CircuitState, Reason
from holdfast.core.lane import Host, Lane
from holdfast.core.message import Message
from holdfast.delivery.service import circuit_rules, retry_rules
from holdfast.store.ledger import Ledger
from holdfast.store.lmdb import LmdbEngine
from holdfast.store.port import Accept, SaveLane
from holdfast.store.work import StoreRules

BODY = b'{"event": "invoice.paid", "amount": 1200}' * 12
AT_ONCE = 512


def message(id: bytes, host: str, now: int) -> Message:
    return Message(id, host, host, "http", host, b"/hook", "POST", (), BODY, now, now)


async def fill(config: Config, count: int, hosts: list[str], *, frozen: bool) -> None:
    """Accept `count` messages, dealt out to the hosts; frozen ones stay where they are when a gateway starts."""
    clock = BootClock()
    engine = LmdbEngine(config.store.path, config.store.max_size)
    rules = StoreRules(
        circuit_rules(config), retry_rules(config), config.ingest.idempotency, config.store.host_share, 16, clock.now()
    )
    ledger = Ledger(engine, rules, clock, secrets.randbits)
    ledger.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(ledger.run)
        for host in hosts:
            lane = Lane(host, Host(host, 16, 16))
            if frozen:
                lane.circuit.state, lane.circuit.reason = CircuitState.FROZEN, Reason.OPERATOR
            lane.circuit.since = lane.circuit.enabled_at = clock.now()
            await ledger.perform(SaveLane(lane))
        for start in range(0, count, AT_ONCE):
            for number in range(start, min(start + AT_ONCE, count)):
                now = clock.now()
                ledger.submit(Accept(message(ledger.mint(now), hosts[number % len(hosts)], now)))
            while ledger.pending:
                await trio.sleep(0)
        nursery.cancel_scope.cancel()
    engine.close()


if __name__ == "__main__":
    folder, count, hosts = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")
    settings = {"store": {"path": str(folder), "max_size": "8GiB", "host_share": 1.0}}
    trio.run(lambda: fill(build(settings), count, hosts, frozen=True))
