"""Delivery as a whole, built from a config: the same for the real gateway and in virtual time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import trio

from holdfast import __version__
from holdfast.clock import Clock
from holdfast.config import Config, RouteSettings
from holdfast.config.hosts import ascii_name
from holdfast.core.counters import Counters
from holdfast.core.start_order import StartOrder
from holdfast.core.target import parse_target
from holdfast.delivery.courier import Carrier, Courier, RouteTerms
from holdfast.delivery.dispatcher import Dispatcher, LaneControl
from holdfast.delivery.lane_cache import LaneCache
from holdfast.delivery.outcome_handler import OutcomeHandler
from holdfast.delivery.signing import Signer
from holdfast.delivery.tls import ClientCertificate
from holdfast.delivery.upkeep import Upkeep
from holdfast.events import Events
from holdfast.store.port import Commit, SharedStore, Store


@dataclass(frozen=True, slots=True, repr=False)
class RouteKeys:
    """Signers and client certificates by the names of their routes. `repr` is off: no log may show them."""

    signers: Mapping[str, Signer] = field(default_factory=dict)
    certificates: Mapping[str, ClientCertificate] = field(default_factory=dict)


class Delivery:
    """`run` delivers until cancelled, then saves all counters. `control` is for operators.

    `shared` is the store if replicas share it. It tells which hosts leave this replica.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        carrier: Carrier,
        clock: Clock,
        chance: Callable[[], float],
        run: int,
        events: Events,
        counters: Counters,
        keys: RouteKeys | None = None,
        *,
        shared: SharedStore | None = None,
    ) -> None:
        self._lanes = LaneCache(store, run, *_host_limits(config))
        self._courier = Courier(carrier, *_terms(config, keys or RouteKeys()))
        limits = config.delivery
        self._start_order = StartOrder(config.circuit, first_attempts=limits.first_attempts, retries=limits.retries)
        self._outcomes = OutcomeHandler(config.circuit, config.retry, chance, counters, events)
        self.dispatcher = Dispatcher(store, self._start_order, self._lanes, self._courier, self._outcomes, clock)
        parts = (self._start_order, self._lanes, self._outcomes, clock)
        self.control = LaneControl(store, self.dispatcher, *parts)
        self._upkeep = Upkeep(store, self.dispatcher, self._lanes, clock, config, counters, events)
        if shared is not None:
            self.dispatcher.is_leaving, self.dispatcher.on_left = shared.is_leaving, shared.left

    def committed(self, commit: Commit) -> None:
        """A group of the store is on disk."""
        self.dispatcher.committed(commit)
        if commit.is_scarce:
            self._upkeep.call()

    def lease_renewed(self, begins_until: int, run: int) -> None:
        """Attempts may begin until `begins_until`, by the clock's `uptime`. The fleet delivers since `run`."""
        self._lanes.run = run
        self.dispatcher.renew_lease(begins_until)

    def hosts_gained(self, is_gained: Callable[[str], bool]) -> None:
        self.dispatcher.gain_hosts(is_gained)
        self._upkeep.review()

    def begin_grace(self) -> None:
        """The store was unreachable: nothing expires for a while."""
        self._upkeep.begin_grace()

    def configure(self, config: Config, keys: RouteKeys | None = None) -> None:
        """Apply another config. Attempts in flight end by the old one; nothing is dropped."""
        self._lanes.configure(*_host_limits(config))
        self._courier.configure(*_terms(config, keys or RouteKeys()))
        limits = config.delivery
        self._start_order.configure(config.circuit, first_attempts=limits.first_attempts, retries=limits.retries)
        self._outcomes.configure(config.circuit, config.retry)
        self._upkeep.configure(config)
        self.dispatcher.apply_limits()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.dispatcher.run)
                nursery.start_soon(self._upkeep.run)
                task_status.started()
        finally:
            self._lanes.close()


def _host_limits(config: Config) -> tuple[int, float, dict[str, float]]:
    rates = {_host_of(route): route.rate for route in config.routes.values() if route.rate}
    return config.delivery.per_host, config.delivery.rate_per_host, rates


def _terms(config: Config, keys: RouteKeys) -> tuple[int, str, dict[str, RouteTerms]]:
    routes = {
        name: RouteTerms(_host_of(route), route.timeout, keys.signers.get(name), keys.certificates.get(name))
        for name, route in config.routes.items()
    }
    return config.delivery.timeout, config.delivery.user_agent or f"holdfast/{__version__}", routes


def _host_of(route: RouteSettings) -> str:
    """The host:port of a route's URL, in the spelling of messages."""
    return parse_target(route.url, ascii_name).host_key
