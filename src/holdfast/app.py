"""The composition root: opens the store, nests the nurseries around it, and sets the order of start and shutdown.

The operators' listeners are outermost, then the store, then delivery, then ingest. Shutdown goes from the inside out:
ingest accepts webhooks until the drain ends, delivery records the attempts under way, the store writes its last group,
and the operators' listeners answer to the end.
"""

import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from holdfast.config import Config, ConfigError
from holdfast.core.errors import CommitFailed, ReloadUnfinished, StoreUnusable
from holdfast.core.ownership import Role
from holdfast.delivery.outgoing_handoff import HandoffReport, OutgoingHandoff
from holdfast.http.server import LOCAL_LIMITS, Server
from holdfast.operate.control import ControlAccess
from holdfast.operate.routing import Router
from holdfast.operate.status_listener import StatusListener, refuse_body
from holdfast.process.credentials import Credentials, read_credentials
from holdfast.process.gateway import Gateway
from holdfast.process.lifecycle import Stage, first_signal, keep_time, watch_clock
from holdfast.process.listeners import (
    LAST_ANSWERS,
    CannotListen,
    IngestListener,
    Listeners,
    NoIngestListener,
    group_number,
    open_listeners,
)
from holdfast.process.log import event, setup
from holdfast.process.log_messages import (
    log_clock,
    log_config_warnings,
    log_exit,
    log_handed_over,
    log_ready,
    log_start,
)
from holdfast.process.outbound import Outbound
from holdfast.process.reload import Watch, changed, files_read, merge
from holdfast.process.service_manager import Notifier
from holdfast.process.stores import Opened, open_store
from holdfast.split.parent import IngestProcess

EXIT_OK, EXIT_FAILED, EXIT_CONFIG, EXIT_STORE, EXIT_COMMIT, EXIT_INGEST = 0, 1, 2, 3, 4, 5

LAST_GROUP = 2.0
"""Seconds that a database has after a drain to write the last outcomes."""

_logger = logging.getLogger("holdfast")


def main(config: Config, load: Callable[[], Config], file: Path | None, role: Role) -> int:
    """Run the gateway until a signal. Returns the exit status. `load` reads the config again, from `file` if any."""
    setup(config.log.format, config.log.level)
    try:
        credentials = read_credentials(config, os.environ)
        group = group_number(config.listen.control_group)
        opened = open_store(config, role)
        process = GatewayProcess(config, opened, credentials, group, load, file)
    except ConfigError as error:
        for fault in error.faults:
            print(f"holdfast: {fault}", file=sys.stderr)  # noqa: T201
        return EXIT_CONFIG
    except StoreUnusable as error:
        print(f"holdfast: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_STORE
    try:
        return trio.run(process.run)
    except CannotListen as error:
        print(f"holdfast: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_FAILED
    finally:
        opened.close()


class GatewayProcess:
    """One gateway with its listeners, its signals and its config on disk."""

    def __init__(
        self,
        config: Config,
        opened: Opened,
        credentials: Credentials,
        group: int | None,
        load: Callable[[], Config],
        file: Path | None,
    ) -> None:
        self._config = config
        self._opened = opened
        self._role = opened.role or Role.ALL
        self._load = load
        self._watch = Watch(lambda: files_read(self._config, file))
        self._credentials = credentials
        self._group = group
        self._servers: dict[str, Server] = {}
        self._clock, self._store = opened.clock, opened.store
        self._outbound = Outbound(config, credentials)
        self._gateway = Gateway(
            config,
            opened.store,
            self._outbound.transport,
            opened.clock,
            secrets.SystemRandom().random,
            opened.run,
            credentials.route_keys,
            shared=opened.shared,
            spool=opened.spool,
            role=opened.role,
        )
        self._counters, self._events = self._gateway.counters, self._gateway.events
        self._delivery, self._lifecycle = self._gateway.delivery, self._gateway.lifecycle
        self._notifier = Notifier(os.environ)
        self._drain_ends: float | None = None
        self._handed_over = HandoffReport()

    async def run(self) -> int:
        log_start(self._config, self._credentials, self._opened)
        listeners = await open_listeners(self._config.listen, self._group, self._role)
        self._outbound.guard.own.update(listeners.names)
        self._ingest = self._open_ingest(listeners)
        self._lifecycle.counting = self._ingest.count
        async with trio.open_nursery() as operators:
            asked_to_stop: trio.Event = await operators.start(first_signal)
            operators.start_soon(self._reload_on_signal)
            operators.start_soon(watch_clock, self._clock, partial(log_clock, self._events))
            operators.start_soon(self._notifier.keep_watch, lambda: self._lifecycle.store_trouble)
            operators.start_soon(self._events.run)
            async with trio.open_nursery() as listening:
                await self._serve_operators(listening, listeners)
                if self._config.process.watch_config:
                    operators.start_soon(self._reload_on_change)
                await self._run_stores(listeners, asked_to_stop)
                # A request that failed with the store still gets its answer.
                for server in self._servers.values():
                    server.stop()
                listening.cancel_scope.deadline = trio.current_time() + LAST_ANSWERS
            operators.cancel_scope.cancel()
        await self._outbound.transport.aclose()
        with suppress(FileNotFoundError):
            self._config.listen.control.unlink()
        if self._failure is not None:
            return EXIT_STORE if isinstance(self._failure.__cause__, StoreUnusable) else EXIT_COMMIT
        return EXIT_INGEST if self._ingest.lost.is_set() else EXIT_OK

    async def _run_stores(self, listeners: Listeners, asked_to_stop: trio.Event) -> None:
        """Run the stores, and inside them everything that writes."""
        async with trio.open_nursery() as store:
            for each in self._gateway.stores:
                await store.start(each.run)
            if self._failure is None:
                await self._serve(listeners, asked_to_stop)
            store.cancel_scope.cancel()
        if self._failure is None:
            await log_exit(self._store, self._handed_over, self._opened.spool)

    @property
    def _failure(self) -> CommitFailed | None:
        return next((each.failed for each in self._gateway.stores if each.failed is not None), None)

    async def _serve(self, listeners: Listeners, asked_to_stop: trio.Event) -> None:
        async with trio.open_nursery() as delivery:
            await delivery.start(self._deliver)
            delivery.start_soon(self._outbound.transport.run)
            if self._opened.ledger is not None:
                delivery.start_soon(keep_time, self._opened.ledger)
            await self._serve_ingest(listeners, asked_to_stop)
            if self._drain_ends is not None and self._failure is None:
                # Ingest accepted webhooks until now. Their attempts end too, if there is time.
                with trio.move_on_at(self._drain_ends - self._config.drain.handoff_time / 1000):
                    await self._delivery.dispatcher.wait_quiet()
            delivery.cancel_scope.cancel()
        await self._hand_over()

    async def _deliver(self, *, task_status: trio.TaskStatus[None]) -> None:
        """A failed store ends the gateway through ingest, so that requests that wait for a commit get an answer."""
        try:
            await self._delivery.run(task_status=task_status)
        except* CommitFailed:
            pass

    # -- listeners ---------------------------------------------------------------------------------------------------

    async def _serve_operators(self, nursery: trio.Nursery, listeners: Listeners) -> None:
        probes = self._gateway.probes(self._connections, self._opened.volume)
        status = StatusListener(self._gateway.queries, probes, _status_names(self._config))
        control = self._gateway.control_socket(self._reload)
        control.drain_timeout = self._config.drain.timeout / 1000
        self._status, self._control = status, control
        admit = ControlAccess(self._group, self._count_refused)
        self._servers["status"] = Server(status, LOCAL_LIMITS, gate=status.gate)
        self._servers["control"] = Server(control, LOCAL_LIMITS, admit=admit)
        if "probe" in listeners.tcp:
            self._servers["probe"] = Server(Router(probes.routes), LOCAL_LIMITS, gate=refuse_body)
        for name, server in self._servers.items():
            await nursery.start(server.serve, listeners.tcp.get(name, [listeners.control]))

    async def _serve_ingest(self, listeners: Listeners, asked_to_stop: trio.Event) -> None:
        """Accept webhooks until the drain ends, a store fails, or the ingest process dies."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._ingest.serve, listeners.tcp.get("ingest", []))
            if not self._ingest.lost.is_set():
                self._lifecycle.stage = Stage.READY
                self._log_ready(listeners)
            await self._until_done(asked_to_stop)
            self._ingest.stop()
            nursery.cancel_scope.deadline = trio.current_time() + LAST_ANSWERS

    def _open_ingest(self, listeners: Listeners) -> IngestListener | IngestProcess | NoIngestListener:
        if not self._role.ingests:
            return NoIngestListener()
        config, token, ledger = self._config, self._credentials.token, self._opened.ledger
        bound = listeners.bound["ingest"]
        if config.process.split and ledger is not None:
            own = frozenset(listeners.names)
            return IngestProcess(config, token, ledger, self._clock, own, self._counters, bound)
        store = self._opened.spool or self._store
        return IngestListener(config, token, store, self._clock, self._outbound.guard, self._counters, bound)

    # -- reload ------------------------------------------------------------------------------------------------------

    async def _reload_on_signal(self) -> None:
        with trio.open_signal_receiver(signal.SIGHUP) as signals:
            async for _ in signals:
                with suppress(ConfigError, ReloadUnfinished):
                    await self._reload()

    async def _reload_on_change(self) -> None:
        async def take_over() -> None:
            with suppress(ConfigError, ReloadUnfinished):
                await self._reload()

        self._watch.remember()
        if not self._is_as_loaded():
            await take_over()
        await self._watch.run(take_over)

    def _is_as_loaded(self) -> bool:
        """Whether the config on disk is the one that runs. It may have changed while the process started."""
        try:
            return self._load() == self._config
        except ConfigError:
            return False

    async def _reload(self) -> dict[str, list[str]]:
        with self._notifier.reloading():
            return await self._take_over()

    async def _take_over(self) -> dict[str, list[str]]:
        """Apply the config on disk without dropping a connection or an attempt. A bad config changes nothing."""
        self._watch.remember()
        try:
            wanted = self._load()
            credentials = read_credentials(wanted, os.environ)
        except ConfigError as error:
            event(_logger, logging.ERROR, "reload_refused", faults=[str(fault) for fault in error.faults])
            raise
        config, needs_restart = merge(self._config, wanted)
        different = changed(self._config, config)
        self._config, self._credentials = config, credentials
        self._apply(config, credentials)
        try:
            await self._ingest.configure(config, credentials.token)
        except ReloadUnfinished as error:
            event(_logger, logging.ERROR, "reload_unfinished", changed=different, detail=str(error))
            raise
        event(_logger, logging.INFO, "reloaded", changed=different, needs_restart=needs_restart)
        if different:
            log_config_warnings(config, credentials)
        return {"changed": different, "needs_restart": needs_restart}

    def _apply(self, config: Config, credentials: Credentials) -> None:
        setup(config.log.format, config.log.level)
        self._outbound.configure(config, credentials)
        self._gateway.configure(config, credentials.route_keys)
        self._control.drain_timeout = config.drain.timeout / 1000
        self._status.hosts = _status_names(config)

    def _connections(self) -> dict[str, int]:
        served = {name: server.connections for name, server in self._servers.items()}
        return {**served, "ingest": self._ingest.connections}

    # -- the end -----------------------------------------------------------------------------------------------------

    async def _until_done(self, asked_to_stop: trio.Event) -> None:
        async with trio.open_nursery() as nursery:

            async def until(end: trio.Event) -> None:
                await end.wait()
                nursery.cancel_scope.cancel()

            for each in self._gateway.stores:
                nursery.start_soon(until, each.broken)
            nursery.start_soon(until, self._ingest.lost)
            await asked_to_stop.wait()
            await self._drain()
            nursery.cancel_scope.cancel()

    async def _drain(self) -> None:
        """Deliver until nothing is due and the linger is over. Stops early enough to leave time for a hand-over."""
        drain = self._config.drain
        self._lifecycle.drain()
        in_flight = self._delivery.control.attempts_in_flight
        event(_logger, logging.INFO, "draining", in_flight=in_flight, timeout=drain.timeout / 1000)
        self._notifier.stopping(drain.timeout / 1000)
        self._drain_ends = trio.current_time() + drain.timeout / 1000
        if self._opened.shared is not None:
            self._opened.shared.end_by(self._drain_ends + LAST_GROUP)
        with trio.move_on_at(self._drain_ends - drain.handoff_time / 1000):
            await trio.sleep(drain.linger / 1000)
            if self._opened.spool is not None:
                # Its disk may go with the pod.
                await self._opened.spool.wait_empty()
            await self._delivery.dispatcher.wait_quiet()

    async def _hand_over(self) -> None:
        """Hand waiting messages to another holdfast in the rest of the drain. Ingest and delivery have stopped."""
        to, token, ends = self._config.drain.handoff, self._credentials.token, self._drain_ends
        if to is None or token is None or ends is None or self._failure is not None:
            return
        handoff = OutgoingHandoff(self._outbound.transport, to, token, ends)
        self._handed_over = handoff.report
        with suppress(CommitFailed):
            await handoff.run(self._store)
        log_handed_over(to, handoff.report)

    # -- log -----------------------------------------------------------------------------------------------------------

    def _log_ready(self, listeners: Listeners) -> None:
        control, place, role = self._config.listen.control, self._opened.place, self._opened.role
        self._notifier.ready(log_ready(listeners.bound, control, place, role, ready=self._lifecycle.ready))

    def _count_refused(self, user: int) -> None:
        self._counters.control_refused += 1
        self._events.log(logging.WARNING, "control_refused", user=user)


def _status_names(config: Config) -> frozenset[str]:
    """The names that the status listener accepts in `Host`."""
    return frozenset({"localhost", "127.0.0.1", "::1", config.listen.status.host, *config.ingest.hosts})
