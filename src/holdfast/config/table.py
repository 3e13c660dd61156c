"""Every key of the config as data: where it stands, how it is read, and its default as a file would spell it.

Adding a key is one row here and one field in `tree.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.config import tree
from holdfast.config.readers import (
    ADDRESS,
    BOOLEAN,
    DATABASE,
    GROUP,
    HANDOFF,
    HEADERS,
    HOSTS,
    NETWORKS,
    OPTIONAL_ADDRESS,
    PATH,
    PATTERNS,
    PORTS,
    PROXY,
    SIGN,
    URL,
    USER_AGENT,
    Reader,
    choice,
    duration,
    integer,
    number,
    size,
)

# Above any rate that one process reaches: more is a slip of the hand.
_MAXIMUM_RATE = 1_000_000

# Stands for the default of a key that has none.
REQUIRED = object()


@dataclass(frozen=True, slots=True)
class Key:
    section: str
    name: str
    reader: Reader
    default: object


SECTIONS: dict[str, Callable[..., object]] = {
    "listen": tree.Listen,
    "store": tree.Store,
    "ingest": tree.Ingest,
    "retry": tree.Retry,
    "circuit": tree.Circuit,
    "delivery": tree.Delivery,
    "egress": tree.Egress,
    "retention": tree.Retention,
    "drain": tree.Drain,
    "process": tree.Process,
    "log": tree.Log,
}

KEYS = (
    Key("listen", "ingest", ADDRESS, "127.0.0.1:8800"),
    Key("listen", "status", ADDRESS, "127.0.0.1:8801"),
    Key("listen", "probe", OPTIONAL_ADDRESS, ""),
    Key("listen", "control", PATH, ""),
    Key("listen", "control_group", GROUP, ""),
    Key("store", "path", PATH, ""),
    Key("store", "max_size", size("8MiB"), "4GiB"),
    Key("store", "host_share", number(1, above_zero=True), 0.5),
    Key("store", "url", DATABASE, ""),
    Key("store", "spool", BOOLEAN, False),
    Key("ingest", "max_body", size("1B"), "1MiB"),
    Key("ingest", "max_head", size("1KiB"), "32KiB"),
    Key("ingest", "max_headers", integer(1), 100),
    Key("ingest", "max_connections", integer(1), 1024),
    Key("ingest", "head_timeout", duration(), "10s"),
    Key("ingest", "body_timeout", duration(), "30s"),
    Key("ingest", "idle_timeout", duration(), "75s"),
    Key("ingest", "ack_status", choice(200, 201, 202, 204), 202),
    Key("ingest", "hosts", HOSTS, []),
    Key("ingest", "proxy_hosts", PATTERNS, []),
    Key("ingest", "upgrade_to_https", PATTERNS, []),
    Key("ingest", "token_file", PATH, ""),
    Key("ingest", "idempotency", duration(), "24h"),
    Key("ingest", "max_delay", duration("0s"), "30d"),
    Key("retry", "base", duration(), "84800ms"),
    Key("retry", "max_retries", integer(0, 20), 11),
    Key("retry", "expire_after", duration(unset=True), ""),
    Key("retry", "jitter", number(10), 0.0),
    Key("retry", "retry_after_limit", duration("0s"), "24h"),
    Key("circuit", "scope", choice("host", "url"), "host"),
    Key("circuit", "url_hosts", PATTERNS, []),
    Key("circuit", "window", duration("60ms"), "1h"),
    Key("circuit", "min_attempts", integer(0), 100),
    Key("circuit", "failure_rate", number(1), 0.70),
    Key("circuit", "disable_after", integer(0), 2000),
    Key("circuit", "freeze_after", integer(0), 2000),
    Key("circuit", "freeze_silence", duration(), "72h"),
    Key("circuit", "freeze_at", integer(0), 50000),
    Key("circuit", "probe_every", duration(), "10m"),
    Key("circuit", "forget_after", duration(), "7d"),
    Key("delivery", "timeout", duration(), "30s"),
    Key("delivery", "first_attempts", integer(4), 256),
    Key("delivery", "retries", integer(4), 64),
    Key("delivery", "per_host", integer(1), 16),
    Key("delivery", "rate_per_host", number(_MAXIMUM_RATE), 0),
    Key("delivery", "max_answer", size("0B"), "64KiB"),
    Key("delivery", "user_agent", USER_AGENT, ""),
    Key("delivery", "ca_file", PATH, ""),
    Key("delivery", "proxy", PROXY, ""),
    Key("delivery", "proxy_credentials_file", PATH, ""),
    Key("delivery", "no_proxy", NETWORKS, []),
    Key("egress", "allow_ports", PORTS, [443, 80]),
    Key("egress", "allow", NETWORKS, []),
    Key("egress", "deny", NETWORKS, []),
    Key("egress", "allow_loopback", BOOLEAN, False),
    Key("retention", "delivered", duration("0s"), "24h"),
    Key("retention", "dead", duration(), "30d"),
    Key("drain", "timeout", duration("0s"), "25s"),
    Key("drain", "linger", duration("0s"), "0s"),
    Key("drain", "handoff", HANDOFF, ""),
    Key("process", "split", BOOLEAN, False),
    Key("process", "watch_config", BOOLEAN, False),
    Key("log", "format", choice("json", "text"), "json"),
    Key("log", "level", choice("debug", "info", "warning", "error"), "info"),
)

# The keys of every [routes.NAME].
ROUTE_KEYS = (
    Key("routes", "url", URL, REQUIRED),
    Key("routes", "headers", HEADERS, {}),
    Key("routes", "sign", SIGN, None),
    Key("routes", "timeout", duration(unset=True), ""),
    Key("routes", "rate", number(_MAXIMUM_RATE), 0),
    Key("routes", "client_cert_file", PATH, ""),
    Key("routes", "client_key_file", PATH, ""),
)
