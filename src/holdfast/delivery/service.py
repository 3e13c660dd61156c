"""Delivery put together: the same from a config for the real gateway and for one in virtual time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import NamedTuple, TypedDict
from urllib.parse import urlsplit

import trio

from holdfast import __version__
from holdfast.clock import Clock
from holdfast.config import Config, Route
from holdfast.core.addresses import unmapped
from holdfast.core.board import Board
from holdfast.core.circuit import CircuitRules
from holdfast.core.schedule import RetryRules
from holdfast.core.tally import Tally
from holdfast.delivery.courier import Carrier, Courier, RouteTerms
from holdfast.delivery.dispatcher import Dispatcher
from holdfast.delivery.fleet.dispatcher import FleetDispatcher
from holdfast.delivery.fleet.roster import FleetRoster
from holdfast.delivery.fleet.settling import FleetSettling
from holdfast.delivery.fleet.upkeep import FleetUpkeep
from holdfast.delivery.roster import Roster
from holdfast.delivery.settling import Settling
from holdfast.delivery.signing import Signer
from holdfast.delivery.tls import ClientCertificate
from holdfast.delivery.upkeep import Retention, Upkeep
from holdfast.news import News
from holdfast.store.port import Store

DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, repr=False)
class RouteKeys:
    """What routes sign with and show, by their names. `repr` is off: no log may spell it."""

    signers: Mapping[str, Signer] = field(default_factory=dict)
    certificates: Mapping[str, ClientCertificate] = field(default_factory=dict)


def circuit_rules(config: Config) -> CircuitRules:
    rules = config.circuit
    return CircuitRules(
        rules.window,
        rules.min_attempts,
        rules.failure_rate,
        rules.disable_after,
        rules.freeze_after,
        rules.freeze_silence,
        rules.freeze_at,
        rules.probe_every,
        rules.forget_after,
    )


def retry_rules(config: Config) -> RetryRules:
    rules = config.retry
    return RetryRules(rules.base, rules.max_retries, rules.expire_after, rules.jitter, rules.retry_after_limit)


class Parts(NamedTuple):
    """What delivery is made of."""

    roster: type[Roster]
    settling: type[Settling]
    dispatcher: type[Dispatcher]
    upkeep: type[Upkeep]


ALONE = Parts(Roster, Settling, Dispatcher, Upkeep)
FLEET = Parts(FleetRoster, FleetSettling, FleetDispatcher, FleetUpkeep)


class Delivery:
    """`dispatcher` and `upkeep` run until cancelled; then what was counted or claimed is handed to the store.

    `shared`: the store is a SharedStore, and other replicas deliver from it too.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        carrier: Carrier,
        clock: Clock,
        chance: Callable[[], float],
        run: int,
        news: News,
        tally: Tally,
        keys: RouteKeys | None = None,
        *,
        shared: bool = False,
    ) -> None:
        circuit, retry = circuit_rules(config), retry_rules(config)
        parts = FLEET if shared else ALONE
        self._roster = parts.roster(store, run=run, **_host_limits(config))
        self._courier = Courier(carrier, **_terms(config, keys or RouteKeys()))
        self._board = Board(circuit, **_budgets(config))
        self._settling = parts.settling(circuit, retry, chance, tally, news)
        self.dispatcher = parts.dispatcher(store, self._board, self._roster, self._courier, self._settling, clock)
        self._upkeep = parts.upkeep(store, self.dispatcher, clock, circuit, retry, _retention(config), tally, news)

    def configure(self, config: Config, keys: RouteKeys | None = None) -> None:
        """Other numbers from now on: what is under way ends by the old ones, nothing is dropped."""
        circuit, retry = circuit_rules(config), retry_rules(config)
        self._roster.configure(**_host_limits(config))
        self._courier.configure(**_terms(config, keys or RouteKeys()))
        self._board.configure(circuit, **_budgets(config))
        self._settling.configure(circuit, retry)
        self._upkeep.configure(circuit, retry, _retention(config))
        self.dispatcher.look_again()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.dispatcher.run)
                nursery.start_soon(self._upkeep.run)
                task_status.started()
        finally:
            self._roster.close()


class HostLimits(TypedDict):
    per_host: int
    rate: float
    rates: dict[str, float]


class Terms(TypedDict):
    timeout: int
    user_agent: str
    routes: dict[str, RouteTerms]


class Budgets(TypedDict):
    first_attempts: int
    retries: int


def _host_limits(config: Config) -> HostLimits:
    rates = {_host_of(route): route.rate for route in config.routes.values() if route.rate}
    return {"per_host": config.delivery.per_host, "rate": config.delivery.rate_per_host, "rates": rates}


def _terms(config: Config, keys: RouteKeys) -> Terms:
    def of(name: str, route: Route) -> RouteTerms:
        return RouteTerms(_host_of(route), route.timeout, keys.signers.get(name), keys.certificates.get(name))

    return {
        "timeout": config.delivery.timeout,
        "user_agent": config.delivery.user_agent or f"holdfast/{__version__}",
        "routes": {name: of(name, route) for name, route in config.routes.items()},
    }


def _budgets(config: Config) -> Budgets:
    return {"first_attempts": config.delivery.first_attempts, "retries": config.delivery.retries}


def _retention(config: Config) -> Retention:
    return Retention(config.retention.delivered, config.retention.dead, config.ingest.idempotency)


def _host_of(route: Route) -> str:
    """The host:port that a route sends to, as messages name it."""
    parts = urlsplit(route.url)
    host = parts.hostname or ""
    if ":" in host:
        host = str(unmapped(ip_address(host)))
    port = parts.port or DEFAULT_PORTS[parts.scheme]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
