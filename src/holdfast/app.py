"""The composition root: opens the store, nests the nurseries, and knows the order of start and shutdown.

Operators' listeners are outermost, then the store, then delivery, then ingest. Shutdown unwinds in the reverse order of
the data's way: webhooks are accepted until the end of the drain, what is under way is settled, then the last group is
written, and the operators' listeners answer until there is nothing left to ask about.
"""

import errno
import logging
import secrets
import ssl
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import trio

from holdfast import __version__
from holdfast.clock import BootClock
from holdfast.config import Address, Config, ConfigError
from holdfast.core.errors import StoreUnusable
from holdfast.core.tally import Tally
from holdfast.delivery.egress import Guard
from holdfast.delivery.service import Delivery, circuit_rules, retry_rules
from holdfast.http.server import Limits, Server, open_tcp_listeners, open_unix_listener
from holdfast.http.transport import Transport
from holdfast.ingest.doorkeeper import read_token
from holdfast.ingest.handler import Ingest
from holdfast.lifecycle import Lifecycle, Stage, first_signal
from holdfast.log import event, setup
from holdfast.news import News
from holdfast.operate.actions import Actions
from holdfast.operate.control import ControlSocket
from holdfast.operate.insight import Insight
from holdfast.operate.status import StatusListener
from holdfast.store.ledger import Ledger, last_time
from holdfast.store.lmdb import LmdbEngine
from holdfast.store.work import StoreRules

EXIT_OK, EXIT_FAILED, EXIT_CONFIG, EXIT_STORE, EXIT_COMMIT = 0, 1, 2, 3, 4

KEPT_ALIVE = 50.0
"""Seconds that an idle connection to a receiver is kept: below the 60 s after which many servers close theirs."""
LAST_ANSWERS = 2.0
"""Seconds that requests under way have to get their answers when ingest stops."""
OPERATORS_LIMITS = Limits(
    max_body=65_536,
    max_head=32_768,
    max_headers=100,
    max_connections=64,
    head_timeout=10,
    body_timeout=10,
    idle_timeout=75,
)
HOSTS_REPORTED = 20

_logger = logging.getLogger("holdfast")


def main(config: Config) -> int:
    """Run the gateway until a signal; returns the exit status."""
    setup(config.log.format, config.log.level)
    try:
        token = read_token(config.ingest.token_file) if config.ingest.token_file else None
        engine = LmdbEngine(config.store.path, config.store.max_size)
    except ConfigError as error:
        for fault in error.faults:
            print(f"holdfast: {fault}", file=sys.stderr)  # noqa: T201
        return EXIT_CONFIG
    except StoreUnusable as error:
        print(f"holdfast: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_STORE
    try:
        return trio.run(Gateway(config, engine, token).run)
    except CannotListen as error:
        print(f"holdfast: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_FAILED
    finally:
        engine.close()


class CannotListen(Exception):
    """An address to listen on can't be had."""


class Listeners(NamedTuple):
    ingest: list[trio.SocketListener]
    status: list[trio.SocketListener]
    control: trio.SocketListener


class Gateway:
    """One process with everything in it."""

    def __init__(self, config: Config, engine: LmdbEngine, token: bytes | None) -> None:
        self._config = config
        self._token = token
        self._clock = BootClock(last_time(engine))
        run = self._clock.now()
        rules = StoreRules(
            circuit_rules(config),
            retry_rules(config),
            config.ingest.idempotency,
            config.store.host_share,
            config.delivery.per_host,
            run,
        )
        self._tally = Tally()
        self._ledger = Ledger(engine, rules, self._clock, secrets.randbits)
        self._guard = Guard(config.egress)
        self._transport = Transport(
            self._guard.resolve,
            ssl_context=lambda origin: _ssl_context(config.delivery.ca_file),
            max_answer=config.delivery.max_answer,
            max_idle_per_origin=config.delivery.per_host,
            idle_timeout=KEPT_ALIVE,
        )
        chance = secrets.SystemRandom().random
        self._news = News(self._clock)
        self._delivery = Delivery(
            config, self._ledger, self._transport, self._clock, chance, run, self._news, self._tally
        )
        self._lifecycle = Lifecycle(self._ledger, self._tally, run)

    async def run(self) -> int:
        self._tell_start()
        listeners = await self._listen()
        async with trio.open_nursery() as operators:
            asked_to_stop: trio.Event = await operators.start(first_signal)
            await self._serve_operators(operators, listeners)
            async with trio.open_nursery() as store:
                self._ledger.open()
                await store.start(self._ledger.run)
                async with trio.open_nursery() as delivery:
                    await delivery.start(self._delivery.run)
                    delivery.start_soon(self._transport.run)
                    await self._serve_ingest(listeners.ingest, asked_to_stop)
                    delivery.cancel_scope.cancel()
                store.cancel_scope.cancel()
            await self._report()
            operators.cancel_scope.cancel()
        await self._transport.aclose()
        with suppress(FileNotFoundError):
            self._config.listen.control.unlink()
        return EXIT_OK if self._ledger.failed is None else EXIT_COMMIT

    # -- listeners ---------------------------------------------------------------------------------------------------

    async def _listen(self) -> Listeners:
        """Every address, before anything starts: one that can't be had is told by itself."""
        listen = self._config.listen
        listeners = Listeners(
            await _listen(listen.ingest), await _listen(listen.status), await _listen_control(listen.control)
        )
        own = (*listeners.ingest, *listeners.status)
        self._guard.own.update(listener.socket.getsockname()[:2] for listener in own)
        self._ingest_address = _bound(listeners.ingest, listen.ingest)
        self._status_address = _bound(listeners.status, listen.status)
        return listeners

    async def _serve_operators(self, nursery: trio.Nursery, listeners: Listeners) -> None:
        dispatcher, config = self._delivery.dispatcher, self._config
        rules = (circuit_rules(config), retry_rules(config))
        insight = Insight(self._ledger, dispatcher, self._lifecycle, self._clock, self._news, *rules)
        names = frozenset({"localhost", "127.0.0.1", "::1", config.listen.status.host, *config.ingest.hosts})
        status = StatusListener(insight, names)
        actions = Actions(insight, dispatcher, self._ledger, self._clock, self._tally, self._news)
        drain_timeout = config.drain.timeout / 1000
        control = ControlSocket(insight, actions, dispatcher, self._lifecycle, self._ledger, self._news, drain_timeout)
        nursery.start_soon(self._news.run)
        await nursery.start(Server(status, OPERATORS_LIMITS, gate=status.gate).serve, listeners.status)
        await nursery.start(Server(control, OPERATORS_LIMITS).serve, [listeners.control])

    async def _serve_ingest(self, listeners: list[trio.SocketListener], asked_to_stop: trio.Event) -> None:
        """Accept webhooks until the drain is over, or the disk failed."""
        tally = self._tally
        ingest = Ingest(
            self._config,
            self._ledger,
            self._clock,
            self._guard.judge_literal,
            lambda slug: tally.refused.update([slug]),
            listening=self._ingest_address,
            token=self._token,
        )
        server = Server(
            ingest,
            _ingest_limits(self._config),
            gate=ingest.gate,
            on_refusal=lambda status, detail: tally.refused.update([str(status)]),
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, listeners)
            self._lifecycle.stage = Stage.READY
            self._tell_ready()
            await self._until_done(asked_to_stop)
            server.stop()
            nursery.cancel_scope.deadline = trio.current_time() + LAST_ANSWERS

    # -- the end -----------------------------------------------------------------------------------------------------

    async def _until_done(self, asked_to_stop: trio.Event) -> None:
        async with trio.open_nursery() as nursery:

            async def until_broken() -> None:
                await self._ledger.broken.wait()
                event(_logger, logging.CRITICAL, "store_failed", detail=str(self._ledger.failed))
                nursery.cancel_scope.cancel()

            nursery.start_soon(until_broken)
            await asked_to_stop.wait()
            await self._drain()
            nursery.cancel_scope.cancel()

    async def _drain(self) -> None:
        """Go on until nothing is due and the linger is over, at most `drain.timeout`."""
        drain = self._config.drain
        self._lifecycle.drain()
        in_flight = self._delivery.dispatcher.attempts_in_flight
        event(_logger, logging.INFO, "draining", in_flight=in_flight, timeout=drain.timeout / 1000)
        with trio.move_on_after(drain.timeout / 1000):
            await trio.sleep(drain.linger / 1000)
            await self._delivery.dispatcher.wait_quiet()

    async def _report(self) -> None:
        """Say how many wait on disk, by host; the hosts that hold most first."""
        if self._ledger.failed is not None:
            return
        store = await self._ledger.statistics()
        waiting: dict[str, int] = {}
        after: str | None = None
        while store.waiting:
            page, after = await self._ledger.circuits(None, after, 1_000)
            waiting |= {view.record.key: view.waiting for view in page if view.waiting}
            if after is None:
                break
        most = sorted(waiting.items(), key=lambda item: -item[1])[:HOSTS_REPORTED]
        event(_logger, logging.INFO, "exit", waiting=store.waiting, dead=store.dead, waiting_by_host=dict(most))

    # -- what is told --------------------------------------------------------------------------------------------------

    def _tell_start(self) -> None:
        event(_logger, logging.INFO, "start", version=__version__, store=str(self._config.store.path))
        if self._clock.behind:
            event(_logger, logging.WARNING, "clock_behind", seconds=self._clock.behind / 1000)
        if self._config.egress.allow_loopback:
            event(_logger, logging.WARNING, "loopback_allowed", detail="targets on this machine may be dialled")

    def _tell_ready(self) -> None:
        ingest, status = self._ingest_address, self._status_address
        event(_logger, logging.INFO, "ready", ingest=str(ingest), status=str(status))
        print(  # noqa: T201
            f"holdfast {__version__} ready: ingest http://{ingest}, status http://{status}, "
            f"control {self._config.listen.control}, store {self._config.store.path}",
            flush=True,
        )


@cache
def _ssl_context(ca_file: Path | None) -> ssl.SSLContext:
    """Made when the first https target is met: the system's certificates take a few megabytes."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


async def _listen(address: Address) -> list[trio.SocketListener]:
    try:
        return await open_tcp_listeners(address.host, address.port)
    except OSError as error:
        reason = "it is in use" if error.errno == errno.EADDRINUSE else str(error)
        raise CannotListen(f"can't listen on {address}: {reason}") from error


async def _listen_control(path: Path) -> trio.SocketListener:
    try:
        return await open_unix_listener(path, 0o600)
    except OSError as error:
        raise CannotListen(f"can't listen on {path}: {error}") from error


def _bound(listeners: list[trio.SocketListener], asked: Address) -> Address:
    """The address with the port that was really given."""
    return Address(asked.host, int(listeners[0].socket.getsockname()[1]))


def _ingest_limits(config: Config) -> Limits:
    ingest = config.ingest
    return Limits(
        max_body=ingest.max_body,
        max_head=ingest.max_head,
        max_headers=ingest.max_headers,
        max_connections=ingest.max_connections,
        head_timeout=ingest.head_timeout / 1000,
        body_timeout=ingest.body_timeout / 1000,
        idle_timeout=ingest.idle_timeout / 1000,
    )
