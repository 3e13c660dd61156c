"""The way out to receivers: which addresses may be dialled, how, and the transport that keeps the connections."""

from typing import TypedDict

from holdfast.config import Config
from holdfast.core.start_order import attempts_per_address
from holdfast.delivery.dialer import Dialer, ProxySettings
from holdfast.delivery.egress import Guard
from holdfast.http.transport import Transport
from holdfast.process.credentials import Credentials
from holdfast.process.descriptors import room_for

KEPT_ALIVE = 50.0
"""Seconds that an idle connection to a receiver is kept: below the 60 s after which many servers close theirs."""


class ConnectionLimits(TypedDict):
    max_idle_per_origin: int
    max_idle: int
    max_per_address: int


class Outbound:
    """`guard` decides which addresses may be dialled; `transport` sends requests."""

    def __init__(self, config: Config, credentials: Credentials) -> None:
        self._credentials = credentials
        self.guard = Guard(config.egress)
        self._dialer = Dialer(
            _proxy_settings(config, credentials), judge_peer=self.guard.judge_peer, look_up=self.guard.look_up
        )
        self.transport = Transport(
            self.guard.resolve,
            dial=self._dialer.dial,
            ssl_context=lambda origin: self._credentials.contexts.context(origin),
            max_answer=config.delivery.max_answer,
            idle_timeout=KEPT_ALIVE,
            **_connection_limits(config),
        )

    def configure(self, config: Config, credentials: Credentials) -> None:
        self._credentials = credentials
        self.guard.configure(config.egress)
        self._dialer.configure(_proxy_settings(config, credentials))
        self.transport.renew(**_connection_limits(config))


def _proxy_settings(config: Config, credentials: Credentials) -> ProxySettings:
    proxy = config.delivery.proxy
    named = None if proxy is None else (proxy.host, proxy.port)
    return ProxySettings(named, credentials.proxy_authorization, config.delivery.no_proxy)


def _connection_limits(config: Config) -> ConnectionLimits:
    delivery = config.delivery
    return {
        "max_idle_per_origin": delivery.per_host,
        "max_idle": room_for(config).idle,
        "max_per_address": attempts_per_address(delivery.first_attempts, delivery.per_host),
    }
