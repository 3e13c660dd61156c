"""Which addresses may be dialled: everything that keeps holdfast from becoming a way into its own network.

A name is resolved once, every address is judged, and only a judged one is dialled. `deny` wins over everything; what is
not the public internet opens only by `allow`, by `allow_loopback`, or for messages of a route whose own host it is.
Link-local addresses, where clouds keep their metadata, open only by a CIDR in `allow`.
"""

import socket
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

import trio

from holdfast.config import Egress
from holdfast.core.errors import EgressDenied, NameNotResolved
from holdfast.core.outcome import HERE_ERRNOS
from holdfast.http.transport import Origin

ROUTE_ZONE = "route"
"""The zone of connections opened under a route's exemption: never shared with the same host by prefix."""

RESOLVERS = 16

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network
SocketAddress = tuple[socket.AddressFamily, tuple[Any, ...]]

LOOPBACK = tuple(ip_network(text) for text in ("127.0.0.0/8", "::1/128"))
LINK_LOCAL = tuple(ip_network(text) for text in ("169.254.0.0/16", "fe80::/10"))

DENIED_V4 = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "168.63.129.16/32",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
PUBLIC_V6 = ip_network("2000::/3")
DENIED_V6 = tuple(ip_network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))


class Guard:
    """The egress rules. `own` are the addresses that holdfast itself listens on: never a target."""

    def __init__(self, rules: Egress) -> None:
        self._limiter = trio.CapacityLimiter(RESOLVERS)
        self.own: set[tuple[str, int]] = set()
        self.configure(rules)

    def configure(self, rules: Egress) -> None:
        self._rules = rules
        self._allowed = [network for text in rules.allow if (network := _network(text)) is not None]
        self._denied = [network for text in rules.deny if (network := _network(text)) is not None]
        self._allowed_names = [text for text in rules.allow if _network(text) is None]
        self._denied_names = [text for text in rules.deny if _network(text) is None]

    def judge_literal(self, host: str, port: int, route: bool) -> None:
        """What can be said of a target before it is resolved: its port, its name, and its address if it is one."""
        if any(fnmatchcase(host, pattern) for pattern in self._denied_names):
            raise EgressDenied(f"{host} is denied by egress.deny")
        if not route and self._rules.allow_ports is not None and port not in self._rules.allow_ports:
            allowed = ", ".join(str(allowed) for allowed in self._rules.allow_ports)
            raise EgressDenied(f"port {port} is not in egress.allow_ports ({allowed})")
        address = _literal(host)
        if address is not None:
            self._judge(address, host, port, route)

    async def resolve(self, origin: Origin) -> Sequence[SocketAddress]:
        """The addresses of an origin that may be dialled."""
        route = origin.zone == ROUTE_ZONE
        self.judge_literal(origin.host, origin.port, route)
        addresses = await self._look_up(origin.host, origin.port)
        permitted = []
        denial: EgressDenied | None = None
        for family, address in addresses:
            try:
                self._judge(ip_address(address[0].partition("%")[0]), origin.host, origin.port, route)
            except EgressDenied as error:
                denial = error
            else:
                permitted.append((family, address))
        if not permitted:
            raise denial or NameNotResolved(f"{origin.host} has no address", here=False)
        return permitted

    def _judge(self, address: IpAddress, host: str, port: int, route: bool) -> None:
        address = getattr(address, "ipv4_mapped", None) or address
        if _within(address, self._denied):
            raise EgressDenied(f"{address} is denied by egress.deny")
        if self._is_own(address, port):
            raise EgressDenied(f"{address} port {port} is holdfast itself")
        if _within(address, LINK_LOCAL):
            if not _within(address, self._allowed):
                raise EgressDenied(f"{address} is a link-local address; only a CIDR in egress.allow opens it")
        elif _within(address, LOOPBACK):
            if not (self._rules.allow_loopback or route):
                raise EgressDenied(f"{address} is a loopback address; egress.allow_loopback opens it")
        elif not (is_public(address) or route or self._is_allowed(address, host)):
            raise EgressDenied(f"{address} is not on the public internet; egress.allow opens it")

    def _is_allowed(self, address: IpAddress, host: str) -> bool:
        return _within(address, self._allowed) or any(fnmatchcase(host, name) for name in self._allowed_names)

    def _is_own(self, address: IpAddress, port: int) -> bool:
        anywhere = ("0.0.0.0", port) in self.own or ("::", port) in self.own
        return (str(address), port) in self.own or (anywhere and _within(address, LOOPBACK))

    async def _look_up(self, host: str, port: int) -> list[SocketAddress]:
        address = _literal(host)
        if address is not None:
            family = socket.AF_INET if address.version == 4 else socket.AF_INET6
            return [(family, (str(address), port))]
        ask: Callable[[], list[Any]] = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        try:
            found = await trio.to_thread.run_sync(ask, abandon_on_cancel=True, limiter=self._limiter)
        except socket.gaierror as error:
            raise NameNotResolved(f"{host}: {error.strerror}", here=error.errno == socket.EAI_AGAIN) from error
        except OSError as error:
            raise NameNotResolved(f"{host}: {error}", here=error.errno in HERE_ERRNOS) from error
        except UnicodeError as error:
            raise NameNotResolved(f"{host}: not a host name", here=False) from error
        return [(family, address) for family, _, _, _, address in found]


def is_public(address: IpAddress) -> bool:
    """Whether an address is on the public internet, by our own table: `ipaddress.is_global` is wrong for several."""
    if isinstance(address, IPv4Address):
        return not _within(address, DENIED_V4)
    return address in PUBLIC_V6 and not _within(address, DENIED_V6)


def _within(address: IpAddress, networks: Sequence[IpNetwork]) -> bool:
    return any(address in network for network in networks if network.version == address.version)


def _literal(host: str) -> IpAddress | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _network(text: str) -> IpNetwork | None:
    try:
        return ip_network(text)
    except ValueError:
        return None
