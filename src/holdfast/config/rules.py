"""What must hold between keys. Each rule names the keys it looks at, and rests while one of them is bad."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.config.faults import ConfigFault
from holdfast.config.hosts import is_loopback
from holdfast.config.tree import Address, Config, Route
from holdfast.config.units import DURATIONS, LONGEST_DURATION, format_duration
from holdfast.core.schedule import schedule_span

# What the kernel's sockaddr_un holds, less the closing NUL.
_LONGEST_SOCKET_PATH = 107
_ANY_HOST = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Rule:
    keys: tuple[str, ...]
    check: Callable[[Config], ConfigFault | None]


@dataclass(frozen=True, slots=True)
class RouteRule:
    """Between the keys of one route; `check` is told where the route stands in the config."""

    keys: tuple[str, ...]
    check: Callable[[str, Route], ConfigFault | None]


def _lanes_fit(config: Config) -> ConfigFault | None:
    delivery = config.delivery
    if delivery.per_host <= delivery.first_attempts:
        return None
    problem = f"{delivery.per_host} is more than delivery.first_attempts"
    return ConfigFault("delivery.per_host", problem, f"at most {delivery.first_attempts}")


def _listeners_apart(first: str, second: str) -> Rule:
    def check(config: Config) -> ConfigFault | None:
        one: Address | None = getattr(config.listen, first)
        other: Address | None = getattr(config.listen, second)
        if one is None or other is None or not _collide(one, other):
            return None
        return ConfigFault(f"listen.{second}", f"{other} is taken by listen.{first}, {one}", "another port")

    return Rule((f"listen.{first}", f"listen.{second}"), check)


def _collide(one: Address, other: Address) -> bool:
    same_family = (":" in one.host) == (":" in other.host)
    covered = same_family and (one.host in _ANY_HOST or other.host in _ANY_HOST)
    return one.port != 0 and one.port == other.port and (covered or one.host == other.host)


def _token_beyond_loopback(config: Config) -> ConfigFault | None:
    if is_loopback(config.listen.ingest.host) or config.ingest.token_file is not None:
        return None
    problem = (
        f"{config.listen.ingest} is reachable from other machines, and without ingest.token_file "
        "anyone there could send webhooks in this app's name"
    )
    return ConfigFault("listen.ingest", problem, "a loopback address, or ingest.token_file set")


def _schedule_bounded(config: Config) -> ConfigFault | None:
    span = schedule_span(config.retry.base, config.retry.max_retries)
    if span <= LONGEST_DURATION:
        return None
    problem = f"with retry.base the last retry would come after {span // DURATIONS['d']} days"
    return ConfigFault("retry.max_retries", problem, f"a schedule of at most {format_duration(LONGEST_DURATION)}")


def _linger_fits(config: Config) -> ConfigFault | None:
    timeout, linger = config.drain.timeout, config.drain.linger
    if linger <= timeout:
        return None
    problem = f'"{format_duration(linger)}" is longer than drain.timeout, which ends it'
    return ConfigFault("drain.linger", problem, f'at most "{format_duration(timeout)}"')


def _handoff_fits(config: Config) -> ConfigFault | None:
    drain = config.drain
    longest = drain.timeout - drain.handoff_time
    if drain.handoff is None or not longest < drain.linger <= drain.timeout:
        return None
    problem = f'"{format_duration(drain.linger)}" leaves drain.handoff less than its third of drain.timeout'
    return ConfigFault("drain.linger", problem, f'at most "{format_duration(longest)}"')


def _handoff_has_a_token(config: Config) -> ConfigFault | None:
    if config.drain.handoff is None or config.ingest.token_file is not None:
        return None
    problem = "another holdfast takes messages only with its token, and there is none here to show"
    return ConfigFault("drain.handoff", problem, "with ingest.token_file set, to the same token on both sides")


def _handoff_is_another(config: Config) -> ConfigFault | None:
    if config.drain.handoff is None or config.drain.handoff != config.listen.ingest:
        return None
    return ConfigFault("drain.handoff", f"{config.drain.handoff} is holdfast itself", "another holdfast, or none")


def _spool_has_a_database(config: Config) -> ConfigFault | None:
    if not config.store.spool or config.store.url is not None:
        return None
    problem = "is of no use without store.url: the store is on this machine anyway"
    return ConfigFault("store.spool", problem, "false, or with store.url set")


def _fleet_does_not_split(config: Config) -> ConfigFault | None:
    if not config.process.split or config.store.url is None:
        return None
    problem = "is for a store of one machine; with store.url scale ingest with --role instead"
    return ConfigFault("process.split", problem, "false, with holdfast run --role ingest and --role deliver beside it")


def _fleet_does_not_hand_over(config: Config) -> ConfigFault | None:
    if config.drain.handoff is None or config.store.url is None:
        return None
    problem = "has nothing to give away: with store.url what waits is in the database, where the other replicas find it"
    return ConfigFault("drain.handoff", problem, "without store.url")


def _socket_path_fits(config: Config) -> ConfigFault | None:
    length = len(os.fsencode(config.listen.control))
    if length <= _LONGEST_SOCKET_PATH:
        return None
    problem = f"the socket's path has {length} bytes; set a shorter one"
    return ConfigFault("listen.control", problem, f"at most {_LONGEST_SOCKET_PATH} bytes")


def _group_can_reach_the_socket(config: Config) -> ConfigFault | None:
    """The store's folder is its owner's alone, and stays so."""
    listen, store = config.listen, config.store.path
    if listen.control_group is None or not listen.control.is_relative_to(store):
        return None
    problem = "the group can't reach listen.control, in the folder of the store"
    allowed = 'with listen.control elsewhere, such as "/run/holdfast/control.sock"'
    return ConfigFault("listen.control_group", problem, allowed)


def _credentials_have_a_proxy(config: Config) -> ConfigFault | None:
    delivery = config.delivery
    if delivery.proxy is not None or delivery.proxy_credentials_file is None:
        return None
    return ConfigFault("delivery.proxy_credentials_file", "is of no use without a proxy", "with delivery.proxy set")


def _proxy_is_another(config: Config) -> ConfigFault | None:
    if config.delivery.proxy != config.listen.ingest:
        return None
    return ConfigFault("delivery.proxy", f"{config.delivery.proxy} is holdfast itself", "another proxy, or none")


def _key_has_a_certificate(where: str, route: Route) -> ConfigFault | None:
    if route.client_key_file is None or route.client_cert_file is not None:
        return None
    return ConfigFault(f"{where}.client_key_file", "is of no use without its certificate", "with client_cert_file set")


def _certificate_can_be_shown(where: str, route: Route) -> ConfigFault | None:
    if route.client_cert_file is None or route.url.lower().startswith("https:"):
        return None
    return ConfigFault(f"{where}.client_cert_file", "is never shown to an http target", "with an https url")


RULES = (
    _listeners_apart("ingest", "status"),
    _listeners_apart("ingest", "probe"),
    _listeners_apart("status", "probe"),
    Rule(("listen.ingest", "ingest.token_file"), _token_beyond_loopback),
    Rule(("listen.control", "store.path"), _socket_path_fits),
    Rule(("listen.control_group", "listen.control", "store.path"), _group_can_reach_the_socket),
    Rule(("retry.base", "retry.max_retries"), _schedule_bounded),
    Rule(("delivery.per_host", "delivery.first_attempts"), _lanes_fit),
    Rule(("drain.timeout", "drain.linger"), _linger_fits),
    Rule(("drain.timeout", "drain.linger", "drain.handoff"), _handoff_fits),
    Rule(("drain.handoff", "ingest.token_file"), _handoff_has_a_token),
    Rule(("drain.handoff", "listen.ingest"), _handoff_is_another),
    Rule(("store.url", "store.spool"), _spool_has_a_database),
    Rule(("store.url", "process.split"), _fleet_does_not_split),
    Rule(("store.url", "drain.handoff"), _fleet_does_not_hand_over),
    Rule(("delivery.proxy", "delivery.proxy_credentials_file"), _credentials_have_a_proxy),
    Rule(("delivery.proxy", "listen.ingest"), _proxy_is_another),
)

ROUTE_RULES = (
    RouteRule(("client_cert_file", "client_key_file"), _key_has_a_certificate),
    RouteRule(("client_cert_file", "url"), _certificate_can_be_shown),
)
