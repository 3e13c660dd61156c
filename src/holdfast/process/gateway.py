"""One gateway on an open store: delivery, and what operators ask and do. The process, the demo and the simulation
compose it here, each with its own clock, store and transport.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path

from holdfast.clock import Clock
from holdfast.config import Config
from holdfast.core.counters import Counters
from holdfast.core.errors import CommitFailed, StoreUnreachable
from holdfast.core.message import masked_lane
from holdfast.core.ownership import Role
from holdfast.delivery.courier import Carrier
from holdfast.delivery.service import Delivery, RouteKeys
from holdfast.events import Events
from holdfast.operate.actions import Actions
from holdfast.operate.control import ControlSocket
from holdfast.operate.forwarding import ForwardingActions
from holdfast.operate.gateway_queries import Queries
from holdfast.operate.metrics import Metrics
from holdfast.operate.status_listener import HealthRoutes
from holdfast.process import log_messages
from holdfast.process.lifecycle import Lifecycle
from holdfast.process.stores import OpenSharedStore, OpenStore
from holdfast.store.embedded.spool import Spool
from holdfast.store.port import Commit, StoreListener


class Gateway(StoreListener):
    """Hears what its stores report. `run` is the moment of this start, which tells runs apart."""

    def __init__(
        self,
        config: Config,
        store: OpenStore,
        carrier: Carrier,
        clock: Clock,
        random: Callable[[], float],
        run: int,
        keys: RouteKeys | None = None,
        *,
        shared: OpenSharedStore | None = None,
        spool: Spool | None = None,
        role: Role | None = None,
    ) -> None:
        self.config = config
        self.store = store
        self.clock = clock
        self.run = run
        self.counters, self.events = Counters(), Events(clock)
        self.delivery = Delivery(
            config, store, carrier, clock, random, run, self.events, self.counters, keys, shared=shared
        )
        self.dispatcher, self.control = self.delivery.dispatcher, self.delivery.control
        self.lifecycle = Lifecycle(store, self.counters, run, role, spool)
        if shared is not None:
            self.lifecycle.on_draining = shared.step_back
        self.queries = Queries(store, self.control, self.lifecycle, clock, self.events, config.circuit, config.retry)
        parts = (self.queries, self.control, store, clock, self.counters, self.events)
        self._served = None if shared is None else ForwardingActions(shared, *parts)
        self.actions = self._served or Actions(*parts)
        self.stores: list[OpenStore | Spool] = [store] if spool is None else [store, spool]
        for each in self.stores:
            each.listener = self

    def configure(self, config: Config, keys: RouteKeys | None = None) -> None:
        """Apply another config. Attempts under way end by the old one; nothing is dropped."""
        self.config = config
        for each in self.stores:
            each.configure(config.store_rules(self.run))
        self.delivery.configure(config, keys)
        self.queries.configure(config.circuit, config.retry)

    def probes(self, connections: Callable[[], Mapping[str, int]], volume: Path | None) -> HealthRoutes:
        parts = (self.queries, self.store, self.control, self.lifecycle, self.clock)
        return HealthRoutes(self.queries, Metrics(*parts, connections, volume))

    def control_socket(self, reload: Callable[[], Awaitable[dict[str, list[str]]]]) -> ControlSocket:
        parts = (self.queries, self.actions, self.control, self.lifecycle, self.store, self.events)
        return ControlSocket(*parts, reload)

    # -- what the stores report ----------------------------------------------------------------------------------------

    def committed(self, commit: Commit) -> None:
        if commit.operations:
            self.counters.group_operations.observe(commit.operations)
            self.counters.commit_seconds.observe(commit.seconds)
        self.delivery.committed(commit)

    def record_unreadable(self, table: str, key: str, fault: str) -> None:
        self.counters.broken_records += 1
        self.events.log(logging.ERROR, "record_broken", table=table, key=_masked_key(key), detail=fault)

    def store_failed(self, error: CommitFailed) -> None:
        log_messages.log_store_failure(error)

    def lease_renewed(self, begins_until: int, run: int) -> None:
        self.delivery.lease_renewed(begins_until, run)

    def hosts_gained(self, is_gained: Callable[[str], bool]) -> None:
        self.delivery.hosts_gained(is_gained)

    def hosts_leaving(self) -> Collection[str]:
        return self.dispatcher.release_hosts()

    def ownership_lost(self) -> None:
        self.dispatcher.lose_all_hosts()

    def store_reconnected(self) -> None:
        self.delivery.begin_grace()

    def store_reachable(self, problem: StoreUnreachable | None) -> None:
        log_messages.log_store_reachable(self.events, problem)

    def clock_jumped(self, ahead: int) -> None:
        log_messages.log_clock_jump(self.events, ahead)

    async def requested(self, request: bytes) -> bytes:
        assert self._served is not None
        return await self._served.serve(request)

    def spool_filled(self, found: int) -> None:
        log_messages.log_spooling(self.events, found)

    def spool_emptied(self, messages: int, known: int, duplicates: int) -> None:
        self.events.log(logging.INFO, "spool_moved", messages=messages, known=known, duplicates=duplicates)


def _masked_key(key: str) -> str:
    """A row's key in hex. A key that holds a circuit's URL is shown as that URL without its path."""
    _, scheme, rest = bytes.fromhex(key).partition(b"http")
    return masked_lane((scheme + rest).decode("latin-1")) if rest.startswith((b"://", b"s://")) else key
