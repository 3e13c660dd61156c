"""Rules between keys. A rule names the keys that it reads, and is skipped if one of them is bad."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.config.faults import ConfigFault
from holdfast.config.hosts import is_loopback
from holdfast.config.readers import DURATIONS, LONGEST_DURATION, format_duration
from holdfast.config.tree import Address, Config, RouteSettings
from holdfast.core.schedule import schedule_span

# The size of the path in sockaddr_un, without the closing NUL.
_LONGEST_SOCKET_PATH = 107
_ANY_HOST = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Rule:
    keys: tuple[str, ...]
    check: Callable[[Config], ConfigFault | None]


@dataclass(frozen=True, slots=True)
class RouteRule:
    """A rule between the keys of one route. `check` gets the dotted name of the route."""

    keys: tuple[str, ...]
    check: Callable[[str, RouteSettings], ConfigFault | None]


RULES: list[Rule] = []
ROUTE_RULES: list[RouteRule] = []


def _rule(*keys: str) -> Callable[[Callable[[Config], ConfigFault | None]], None]:
    return lambda check: RULES.append(Rule(keys, check))


def _route_rule(*keys: str) -> Callable[[Callable[[str, RouteSettings], ConfigFault | None]], None]:
    return lambda check: ROUTE_RULES.append(RouteRule(keys, check))


def _listeners_apart(first: str, second: str) -> Rule:
    def check(config: Config) -> ConfigFault | None:
        one: Address | None = getattr(config.listen, first)
        other: Address | None = getattr(config.listen, second)
        if one is None or other is None or not _collide(one, other):
            return None
        return ConfigFault(f"listen.{second}", f"{other} is taken by listen.{first}, {one}", "another port")

    return Rule((f"listen.{first}", f"listen.{second}"), check)


RULES += [_listeners_apart(*pair) for pair in (("ingest", "status"), ("ingest", "probe"), ("status", "probe"))]


def _collide(one: Address, other: Address) -> bool:
    same_family = (":" in one.host) == (":" in other.host)
    covered = same_family and (one.host in _ANY_HOST or other.host in _ANY_HOST)
    return one.port != 0 and one.port == other.port and (covered or one.host == other.host)


@_rule("listen.ingest", "ingest.token_file")
def _token_beyond_loopback(config: Config) -> ConfigFault | None:
    if is_loopback(config.listen.ingest.host) or config.ingest.token_file is not None:
        return None
    problem = (
        f"{config.listen.ingest} is reachable from other machines, and without ingest.token_file "
        "anyone there could send webhooks in this app's name"
    )
    return ConfigFault("listen.ingest", problem, "a loopback address, or ingest.token_file set")


@_rule("listen.control", "store.path")
def _socket_path_fits(config: Config) -> ConfigFault | None:
    length = len(os.fsencode(config.listen.control))
    if length <= _LONGEST_SOCKET_PATH:
        return None
    problem = f"the socket's path has {length} bytes; set a shorter one"
    return ConfigFault("listen.control", problem, f"at most {_LONGEST_SOCKET_PATH} bytes")


@_rule("listen.control_group", "listen.control", "store.path")
def _group_can_reach_the_socket(config: Config) -> ConfigFault | None:
    """The store's folder is its owner's alone, and stays so."""
    listen, store = config.listen, config.store.path
    if listen.control_group is None or not listen.control.is_relative_to(store):
        return None
    problem = "the group can't reach listen.control, in the folder of the store"
    allowed = 'with listen.control elsewhere, such as "/run/holdfast/control.sock"'
    return ConfigFault("listen.control_group", problem, allowed)


@_rule("retry.base", "retry.max_retries")
def _schedule_bounded(config: Config) -> ConfigFault | None:
    span = schedule_span(config.retry.base, config.retry.max_retries)
    if span <= LONGEST_DURATION:
        return None
    problem = f"with retry.base the last retry would come after {span // DURATIONS['d']} days"
    return ConfigFault("retry.max_retries", problem, f"a schedule of at most {format_duration(LONGEST_DURATION)}")


@_rule("delivery.per_host", "delivery.first_attempts")
def _lanes_fit(config: Config) -> ConfigFault | None:
    delivery = config.delivery
    if delivery.per_host <= delivery.first_attempts:
        return None
    problem = f"{delivery.per_host} is more than delivery.first_attempts"
    return ConfigFault("delivery.per_host", problem, f"at most {delivery.first_attempts}")


@_rule("drain.timeout", "drain.linger")
def _linger_fits(config: Config) -> ConfigFault | None:
    timeout, linger = config.drain.timeout, config.drain.linger
    if linger <= timeout:
        return None
    problem = f'"{format_duration(linger)}" is longer than drain.timeout, which ends it'
    return ConfigFault("drain.linger", problem, f'at most "{format_duration(timeout)}"')


@_rule("drain.timeout", "drain.linger", "drain.handoff")
def _handoff_fits(config: Config) -> ConfigFault | None:
    drain = config.drain
    longest = drain.timeout - drain.handoff_time
    if drain.handoff is None or not longest < drain.linger <= drain.timeout:
        return None
    problem = f'"{format_duration(drain.linger)}" leaves drain.handoff less than its third of drain.timeout'
    return ConfigFault("drain.linger", problem, f'at most "{format_duration(longest)}"')


@_rule("drain.handoff", "ingest.token_file")
def _handoff_has_a_token(config: Config) -> ConfigFault | None:
    if config.drain.handoff is None or config.ingest.token_file is not None:
        return None
    problem = "another holdfast takes messages only with its token, and there is none here to show"
    return ConfigFault("drain.handoff", problem, "with ingest.token_file set, to the same token on both sides")


@_rule("drain.handoff", "listen.ingest")
def _handoff_is_another(config: Config) -> ConfigFault | None:
    if config.drain.handoff is None or config.drain.handoff != config.listen.ingest:
        return None
    return ConfigFault("drain.handoff", f"{config.drain.handoff} is holdfast itself", "another holdfast, or none")


@_rule("store.url", "store.spool")
def _spool_has_a_database(config: Config) -> ConfigFault | None:
    if not config.store.spool or config.store.url is not None:
        return None
    problem = "is of no use without store.url: the store is on this machine anyway"
    return ConfigFault("store.spool", problem, "false, or with store.url set")


@_rule("store.url", "process.split")
def _fleet_does_not_split(config: Config) -> ConfigFault | None:
    if not config.process.split or config.store.url is None:
        return None
    problem = "is for a store of one machine; with store.url scale ingest with --role instead"
    return ConfigFault("process.split", problem, "false, with holdfast run --role ingest and --role deliver beside it")


@_rule("store.url", "drain.handoff")
def _fleet_does_not_hand_over(config: Config) -> ConfigFault | None:
    if config.drain.handoff is None or config.store.url is None:
        return None
    problem = "has nothing to give away: with store.url what waits is in the database, where the other replicas find it"
    return ConfigFault("drain.handoff", problem, "without store.url")


@_rule("delivery.proxy", "delivery.proxy_credentials_file")
def _credentials_have_a_proxy(config: Config) -> ConfigFault | None:
    delivery = config.delivery
    if delivery.proxy is not None or delivery.proxy_credentials_file is None:
        return None
    return ConfigFault("delivery.proxy_credentials_file", "is of no use without a proxy", "with delivery.proxy set")


@_rule("delivery.proxy", "listen.ingest")
def _proxy_is_another(config: Config) -> ConfigFault | None:
    if config.delivery.proxy != config.listen.ingest:
        return None
    return ConfigFault("delivery.proxy", f"{config.delivery.proxy} is holdfast itself", "another proxy, or none")


@_route_rule("client_cert_file", "client_key_file")
def _key_has_a_certificate(where: str, route: RouteSettings) -> ConfigFault | None:
    if route.client_key_file is None or route.client_cert_file is not None:
        return None
    return ConfigFault(f"{where}.client_key_file", "is of no use without its certificate", "with client_cert_file set")


@_route_rule("client_cert_file", "url")
def _certificate_can_be_shown(where: str, route: RouteSettings) -> ConfigFault | None:
    if route.client_cert_file is None or route.url.lower().startswith("https:"):
        return None
    return ConfigFault(f"{where}.client_cert_file", "is never shown to an http target", "with an https url")
