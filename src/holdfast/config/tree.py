"""The frozen Config tree. Durations are milliseconds, sizes are bytes, paths are absolute.

The sections [retry] and [circuit] are core's own classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from holdfast.core.circuit import CircuitRules
from holdfast.core.schedule import RetryRules
from holdfast.core.store_rules import StoreRules


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port. A listener with port 0 takes any free port; an IPv6 host has no brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ListenSettings:
    ingest: Address
    status: Address
    probe: Address | None  # None: no such listener
    control: Path
    control_group: str | None  # a name or number; None: only the owner may use the socket


@dataclass(frozen=True, slots=True, repr=False)
class DatabaseUrl:
    """The URL of a database. As text it shows only hosts and name: the rest is secret, or may be."""

    whole: str
    shown: str

    def __str__(self) -> str:
        return self.shown


@dataclass(frozen=True, slots=True)
class StoreSettings:
    path: Path
    max_size: int  # bytes
    host_share: float  # part of max_size, above 0 and at most 1
    url: DatabaseUrl | None  # None: the embedded store, in `path`
    spool: bool  # accept webhooks into `path` while the database is unreachable


@dataclass(frozen=True, slots=True)
class IngestSettings:
    max_body: int  # bytes
    max_head: int  # bytes
    max_headers: int
    max_connections: int
    head_timeout: int  # ms
    body_timeout: int  # ms
    idle_timeout: int  # ms
    ack_status: int
    hosts: tuple[str, ...]  # lower case, without port or brackets
    proxy_hosts: tuple[str, ...]  # patterns: "*", "*.example.com", "host"
    upgrade_to_https: tuple[str, ...]  # patterns
    token_file: Path | None  # None: no token is required
    idempotency: int  # ms
    max_delay: int  # ms


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    timeout: int  # ms
    first_attempts: int
    retries: int
    per_host: int
    rate_per_host: float  # requests a second; 0: no limit
    max_answer: int  # bytes
    user_agent: str | None  # None: holdfast/<version>
    ca_file: Path | None  # None: only the system's authorities
    proxy: Address | None  # None: targets are dialled directly
    proxy_credentials_file: Path | None  # None: the proxy needs none
    no_proxy: tuple[str, ...]  # networks or patterns, as in Egress


@dataclass(frozen=True, slots=True)
class EgressSettings:
    allow_ports: tuple[int, ...] | None  # None: any port
    allow: tuple[str, ...]  # networks ("10.0.0.0/8", "10.0.0.7") or patterns ("*.example.com", "host")
    deny: tuple[str, ...]  # the same; wins. Only networks close an address
    allow_loopback: bool


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    delivered: int  # ms
    dead: int  # ms


@dataclass(frozen=True, slots=True)
class DrainSettings:
    timeout: int  # ms
    linger: int  # ms
    handoff: Address | None  # None: waiting messages stay here

    @property
    def handoff_time(self) -> int:
        """Milliseconds of `timeout` that are reserved for the hand-over: a third."""
        return self.timeout // 3 if self.handoff is not None else 0


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    split: bool  # ingest runs in a process of its own
    watch_config: bool


@dataclass(frozen=True, slots=True)
class LogSettings:
    format: Literal["json", "text"]
    level: Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class SignSettings:
    """The source of a route's signing secrets: either a file or an environment variable."""

    scheme: Literal["standard-webhooks"]
    secret_file: Path | None
    secret_env: str | None


@dataclass(frozen=True, slots=True)
class RouteSettings:
    url: str
    headers: tuple[tuple[str, str], ...]  # names as written
    sign: SignSettings | None  # None: messages are not signed
    timeout: int | None  # ms; None: delivery.timeout
    rate: float  # requests a second; 0: no limit
    client_cert_file: Path | None  # None: no client certificate is shown
    client_key_file: Path | None  # None: the key is in client_cert_file


@dataclass(frozen=True, slots=True)
class Config:
    listen: ListenSettings
    store: StoreSettings
    ingest: IngestSettings
    retry: RetryRules
    circuit: CircuitRules
    delivery: DeliverySettings
    egress: EgressSettings
    retention: RetentionSettings
    drain: DrainSettings
    process: ProcessSettings
    log: LogSettings
    routes: dict[str, RouteSettings]

    def store_rules(self, run: int) -> StoreRules:
        """The rules of a store that was opened at `run`."""
        return StoreRules(
            self.circuit, self.retry, self.ingest.idempotency, self.store.host_share, self.delivery.per_host, run
        )
