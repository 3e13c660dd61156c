"""The gateway of the demo."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from holdfast.config import Address, Config, build
from holdfast.delivery.egress import Guard
from holdfast.demo.endpoints import LOOPBACK, plain_transport
from holdfast.demo.fast_clock import FastClock
from holdfast.http.server import LOCAL_LIMITS, Server
from holdfast.http.sockets import open_tcp_listeners
from holdfast.http.transport import Resolve
from holdfast.ingest.handler import Ingest
from holdfast.operate.status_listener import StatusListener
from holdfast.process.gateway import Gateway
from holdfast.process.lifecycle import Stage
from holdfast.process.random_bits import RandomBits
from holdfast.store.embedded.ledger import Ledger
from holdfast.store.embedded.lmdb import LmdbEngine


def demo_config(folder: Path) -> Config:
    """The defaults, except for two numbers that keep the demo short."""
    return build(
        {
            # The demo has no control socket; its default path may be too long in a deep temporary directory.
            "listen": {"ingest": f"{LOOPBACK}:0", "status": f"{LOOPBACK}:0", "control": "/dev/null"},
            "store": {"path": str(folder), "max_size": "64MiB"},
            "delivery": {"timeout": "1s"},
            "circuit": {"freeze_after": 400},
        }
    )


class DemoGateway(Gateway):
    """A gateway with an ingest and a status listener, and without signals, control socket and log."""

    def __init__(self, config: Config, engine: LmdbEngine, clock: FastClock, resolve: Resolve) -> None:
        run = clock.now()
        ledger = Ledger(engine, config.store_rules(run), clock, RandomBits())
        limits = {"max_answer": config.delivery.max_answer, "max_idle": config.delivery.per_host}
        self._transport = plain_transport(resolve, **limits)
        super().__init__(config, ledger, self._transport, clock, secrets.SystemRandom().random, run)
        self._ledger = ledger
        self._guard = Guard(config.egress)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serves inside the block. `ingest` and `status` are the addresses of its listeners."""
        ingest, status = await open_tcp_listeners(LOOPBACK, 0), await open_tcp_listeners(LOOPBACK, 0)
        self.ingest, self.status = _address(ingest), _address(status)
        async with trio.open_nursery() as operators:
            operators.start_soon(self.events.run)
            await operators.start(self._status_server().serve, status)
            async with trio.open_nursery() as store:
                self._ledger.open()
                await store.start(self._ledger.run)
                async with trio.open_nursery() as delivery:
                    await delivery.start(self.delivery.run)
                    await delivery.start(self._ingest_server().serve, ingest)
                    self.lifecycle.stage = Stage.READY
                    yield
                    delivery.cancel_scope.cancel()
                store.cancel_scope.cancel()
            operators.cancel_scope.cancel()
        await self._transport.aclose()

    def _status_server(self) -> Server:
        # The metrics have no connections: the demo does not count them.
        probes = self.probes(dict, self.config.store.path)
        listener = StatusListener(self.queries, probes, frozenset({"localhost", LOOPBACK}))
        return Server(listener, LOCAL_LIMITS, gate=listener.gate)

    def _ingest_server(self) -> Server:
        def refused(slug: str) -> None:
            self.counters.refused[slug] += 1

        judge = self._guard.judge_literal
        handler = Ingest(self.config, self._ledger, self.clock, judge, refused, listening=self.ingest)
        return Server(handler, LOCAL_LIMITS, gate=handler.gate)


def _address(listeners: list[trio.SocketListener]) -> Address:
    return Address(LOOPBACK, int(listeners[0].socket.getsockname()[1]))
