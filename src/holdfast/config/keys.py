"""Every key of the config: how it is read, its default as a file spells it, and its meaning.

A key is one row here and one field of its section's class. docs/config.md and config/holdfast.toml are written from
the rows by `make docs`.
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
from holdfast.core.circuit import BUCKETS, CircuitRules
from holdfast.core.schedule import MOST_RETRIES, RetryRules

# Above any rate that one process reaches: a larger number is a typing error.
_MAXIMUM_RATE = 1_000_000

# The default of a key that has none.
REQUIRED = object()


@dataclass(frozen=True, slots=True)
class Key:
    """`restart`: a reload does not change it. It decides what is opened or started, or how records are stored."""

    reader: Reader
    default: object
    meaning: str
    restart: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    make: Callable[..., object]
    keys: dict[str, Key]


LISTEN = {
    "ingest": Key(
        ADDRESS,
        "127.0.0.1:8800",
        "where the app sends its webhooks; beyond loopback it needs ingest.token_file",
        restart=True,
    ),
    "status": Key(ADDRESS, "127.0.0.1:8801", "health, metrics and the status page, read-only", restart=True),
    "probe": Key(
        OPTIONAL_ADDRESS,
        "",
        'such as "0.0.0.0:8802": health and metrics alone, for a kubelet and a scraper; "": none',
        restart=True,
    ),
    "control": Key(PATH, "", "the operators' Unix socket; default: control.sock in store.path", restart=True),
    "control_group": Key(
        GROUP, "", "a group that may use it too; then `control` must be outside store.path", restart=True
    ),
}

STORE = {
    "path": Key(
        PATH,
        "",
        "the store's folder; default: $STATE_DIRECTORY, /var/lib/holdfast as root, else $XDG_STATE_HOME/holdfast",
        restart=True,
    ),
    "max_size": Key(
        size("8MiB"),
        "4GiB",
        'space for everything on disk, at least "8MiB"; ingest answers 507 at 90 % of it',
        restart=True,
    ),
    "host_share": Key(
        number(1, above_zero=True), 0.5, "the part of it that waiting and dead messages of one host may hold"
    ),
    "url": Key(
        DATABASE,
        "",
        '"postgresql://user:password@host:5432/database": replicas share that database instead of the embedded '
        "store; `path` still holds the control socket and the spool",
        restart=True,
    ),
    "spool": Key(
        BOOLEAN,
        False,
        "with url: accept into `path` while the database is unreachable; moved over once it is back",
        restart=True,
    ),
}

INGEST = {
    "max_body": Key(size("1B"), "1MiB", "larger webhooks are refused with 413"),
    "max_head": Key(size("1KiB"), "32KiB", "request line and headers together"),
    "max_headers": Key(integer(1), 100, "number of headers"),
    "max_connections": Key(
        integer(1), 1024, "for one more the longest idle one is closed; if all are busy it gets 503"
    ),
    "head_timeout": Key(duration(), "10s", "for a request's head to arrive"),
    "body_timeout": Key(duration(), "30s", "for its body to arrive"),
    "idle_timeout": Key(duration(), "75s", "a connection without a request is closed after this"),
    "ack_status": Key(choice(200, 201, 202, 204), 202, "the answer once a webhook is on disk: 200, 201, 202 or 204"),
    "hosts": Key(HOSTS, [], "further host names that this sidecar answers to, without port"),
    "proxy_hosts": Key(
        PATTERNS, [], 'hosts reachable with holdfast as http_proxy: "*.example.com", "host"; ["*"] for any'
    ),
    "upgrade_to_https": Key(PATTERNS, [], "of these, the ones that are delivered over https"),
    "token_file": Key(PATH, "", "file with the token that senders must show as Holdfast-Token"),
    "idempotency": Key(duration(), "24h", "how long an Idempotency-Key is remembered", restart=True),
    "max_delay": Key(duration("0s"), "30d", "the longest Holdfast-Delay"),
}

RETRY = {
    "base": Key(duration(), "84800ms", "retry n comes ((2^n) - 1) times this after the first failed attempt"),
    "max_retries": Key(integer(0, MOST_RETRIES), 11, f"after the last one the message is dead; 0 to {MOST_RETRIES}"),
    "expire_after": Key(
        duration(unset=True),
        "",
        "how long messages wait in a circuit that is not enabled; default: the schedule's span",
    ),
    "jitter": Key(number(10), 0.0, "adds up to this fraction of each wait"),
    "retry_after_limit": Key(duration("0s"), "24h", "how far a receiver's Retry-After may push a retry back"),
}

CIRCUIT = {
    "scope": Key(choice("host", "url"), "host", 'one circuit per "host", or per "url" (the target without its query)'),
    "url_hosts": Key(PATTERNS, [], 'hosts that have one circuit per url with scope = "host" too'),
    "window": Key(duration(f"{BUCKETS}ms"), "1h", "attempts of this long count for failure_rate"),
    "min_attempts": Key(integer(0), 100, "failure_rate applies when there were more attempts than this"),
    "failure_rate": Key(number(1), 0.70, "disabled when more than this part of them failed; 0 turns the rule off"),
    "disable_after": Key(integer(0), 2000, "disabled after this many consecutive failures; 0 turns the rule off"),
    "freeze_after": Key(
        integer(0), 2000, "frozen after more than this many, with freeze_silence; 0 turns the rule off"
    ),
    "freeze_silence": Key(duration(), "72h", "... and no success for longer than this"),
    "freeze_at": Key(integer(0), 50000, "frozen after this many consecutive failures; 0 turns the rule off"),
    "probe_every": Key(duration(), "10m", "a disabled host gets one attempt this often"),
    "forget_after": Key(duration(), "7d", "an idle, enabled circuit is forgotten after this"),
}

DELIVERY = {
    "timeout": Key(duration(), "30s", "one attempt in all: DNS, connect, TLS, send, the answer's headers"),
    "first_attempts": Key(integer(4), 256, "first attempts in flight at once, at least 4"),
    "retries": Key(integer(4), 64, "retries in flight at once, apart from the above, at least 4"),
    "per_host": Key(integer(1), 16, "in flight to one host at once, at most first_attempts"),
    "rate_per_host": Key(number(_MAXIMUM_RATE), 0, "requests a second to one host; 0: no limit"),
    "max_answer": Key(size("0B"), "64KiB", "how much of an answer's body is read", restart=True),
    "user_agent": Key(USER_AGENT, "", "for messages whose app sent none; default: holdfast/<version>"),
    "ca_file": Key(PATH, "", "PEM file of authorities trusted on top of the system's"),
    "proxy": Key(
        PROXY, "", '"http://host:port": every target is reached through it, by CONNECT to the checked address'
    ),
    "proxy_credentials_file": Key(PATH, "", "file with the user:password that it asks for"),
    "no_proxy": Key(NETWORKS, [], 'dialled directly, and still guarded: "10.1.0.0/16", "*.internal.example", "host"'),
}

EGRESS = {
    "allow_ports": Key(PORTS, [443, 80], 'ports of targets; ["*"] for any'),
    "allow": Key(NETWORKS, [], 'opened on top of the public internet: "10.1.0.0/16", "*.internal.example", "host"'),
    "deny": Key(
        NETWORKS,
        [],
        "closed, whatever else is allowed; same spelling. Only networks close an address: a name is denied by "
        "its spelling alone, and any other name of the same address passes",
    ),
    "allow_loopback": Key(BOOLEAN, False, "127.0.0.0/8 and ::1, for development"),
}

RETENTION = {
    "delivered": Key(duration("0s"), "24h", "how long the record of a delivered message is kept"),
    "dead": Key(duration(), "30d", "how long dead letters are kept"),
}

DRAIN = {
    "timeout": Key(duration("0s"), "25s", "the longest that a shutdown waits for messages that are due or in flight"),
    "linger": Key(duration("0s"), "0s", "the shortest that it goes on accepting webhooks, at most drain.timeout"),
    "handoff": Key(
        HANDOFF,
        "",
        '"http://host:port", another holdfast\'s ingest: gets the messages that wait at the end, with the '
        "token of ingest.token_file. A third of drain.timeout is kept for it",
    ),
}

PROCESS = {
    "split": Key(
        BOOLEAN, False, "ingest in a process of its own: more throughput where two cores are free", restart=True
    ),
    "watch_config": Key(
        BOOLEAN,
        False,
        "reload this file and the files it names when they change, as `holdfast reload` does",
        restart=True,
    ),
}

LOG = {
    "format": Key(choice("json", "text"), "json", 'for machines; "text" for people'),
    "level": Key(
        choice("debug", "info", "warning", "error"),
        "info",
        'the lowest level that is logged: "debug", "info", "warning" or "error"',
    ),
}

# Every [routes.NAME].
ROUTE = {
    "url": Key(URL, REQUIRED, "http or https; the only key that a route needs"),
    "headers": Key(HEADERS, {}, "added to every message of the route"),
    "sign": Key(SIGN, None, "signs them; or secret_env; one secret a line"),
    "timeout": Key(duration(unset=True), "", "of an attempt; default: delivery.timeout"),
    "rate": Key(number(_MAXIMUM_RATE), 0, "requests a second; 0: no limit"),
    "client_cert_file": Key(PATH, "", "PEM file with the certificate that is shown to the receiver"),
    "client_key_file": Key(PATH, "", "its key; default: it is in client_cert_file"),
}

SECTIONS = {
    "listen": Section(tree.ListenSettings, LISTEN),
    "store": Section(tree.StoreSettings, STORE),
    "ingest": Section(tree.IngestSettings, INGEST),
    "retry": Section(RetryRules, RETRY),
    "circuit": Section(CircuitRules, CIRCUIT),
    "delivery": Section(tree.DeliverySettings, DELIVERY),
    "egress": Section(tree.EgressSettings, EGRESS),
    "retention": Section(tree.RetentionSettings, RETENTION),
    "drain": Section(tree.DrainSettings, DRAIN),
    "process": Section(tree.ProcessSettings, PROCESS),
    "log": Section(tree.LogSettings, LOG),
}

NEEDS_RESTART = tuple(
    f"{name}.{key_name}" for name, section in SECTIONS.items() for key_name, key in section.keys.items() if key.restart
)
