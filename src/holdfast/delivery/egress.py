"""Which addresses may be dialled: everything that keeps holdfast from becoming a way into its own network.

A name is resolved once, every address is judged, and only a judged one is dialled; the peer is judged again when the
connection stands. Of several addresses those that may be dialled are, and the others are left out: whoever answers for
a name gains nothing by one that is never dialled, and a name with one private address too many stays usable.

`deny` wins over everything. A name in it is judged by its spelling, in the one that targets have: any other name may
lead to the same address, so only networks close one. What is not the public internet (core/addresses.py) opens only by
`allow`, by `allow_loopback`, or for messages of a route whose own host it is. Link-local addresses and others where
clouds keep their metadata open only by a CIDR in `allow`. Where an address carries another one inside, as NAT64 does,
both must be open. holdfast's own listeners are never a target, by whatever name or address of this machine.
"""

import errno
import socket
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from ipaddress import IPv6Network, ip_address, ip_network

from holdfast.config import Egress
from holdfast.config.hosts import names_among
from holdfast.core.addresses import IpAddress, IpNetwork, Opening, Range, range_of, unmapped
from holdfast.core.errors import EgressDenied, NameNotResolved
from holdfast.delivery.resolver import GetAddrInfo, Resolver
from holdfast.http.connection import Address
from holdfast.http.transport import Origin

ROUTE_ZONE = "route"
"""How the zones of connections opened under a route's exemption begin: never shared with the same host by prefix."""

_NOT_THIS_MACHINE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def is_route(zone: str) -> bool:
    """Whether connections of a zone have a route's exemption."""
    return zone.startswith(ROUTE_ZONE)


class Guard:
    """The egress rules. `own` are the addresses that holdfast itself listens on."""

    def __init__(self, rules: Egress, getaddrinfo: GetAddrInfo = socket.getaddrinfo) -> None:
        self._resolver = Resolver(getaddrinfo)
        self.look_up = self._resolver.look_up
        """The addresses of a name, not judged: for a host that the operator wrote for holdfast's own use."""
        self.own: set[tuple[str, int]] = set()
        self.configure(rules)

    def configure(self, rules: Egress) -> None:
        self._rules = rules
        self._allowed, self._allowed_names = _networks_and_names(rules.allow)
        self._denied, self._denied_names = _networks_and_names(rules.deny)

    def judge_literal(self, host: str, port: int, route: bool) -> None:
        """What can be said of a target before it is resolved: its port, its name, and its address if it is one."""
        if _matches(host, self._denied_names):
            raise EgressDenied(f"{host} is denied by egress.deny")
        if not route and self._rules.allow_ports is not None and port not in self._rules.allow_ports:
            allowed = ", ".join(str(allowed) for allowed in self._rules.allow_ports)
            raise EgressDenied(f"port {port} is not in egress.allow_ports ({allowed})")
        address = _literal(host)
        if address is not None:
            self._judge(address, host, port, route)

    async def resolve(self, origin: Origin) -> Sequence[Address]:
        """The addresses of an origin that may be dialled."""
        route = is_route(origin.zone)
        self.judge_literal(origin.host, origin.port, route)
        permitted = []
        denial: EgressDenied | None = None
        for family, name in await self.look_up(origin.host, origin.port):
            try:
                self._judge(ip_address(name[0]), origin.host, origin.port, route)
            except EgressDenied as error:
                denial = denial or error
            else:
                permitted.append((family, name))
        if not permitted:
            raise denial or NameNotResolved(f"{origin.host} has no address", here=False)
        return permitted

    def judge_peer(self, origin: Origin, address: str) -> None:
        """Whether a connection made for an origin leads where it may: `address` is its peer, as ip:port."""
        host = address.rpartition(":")[0].strip("[]")
        self._judge(ip_address(host), origin.host, origin.port, is_route(origin.zone))

    def _judge(self, address: IpAddress, host: str, port: int, route: bool) -> None:
        address = unmapped(address)
        if _within(address, self._denied):
            raise EgressDenied(f"{address} is denied by egress.deny")
        if self._is_own(address, port):
            raise EgressDenied(f"{address} port {port} is holdfast itself")
        found = range_of(address)
        if found is None:
            return
        if not self._opens(found, address, host, route):
            raise EgressDenied(f"{address} is {found}; {found.opening.value}")
        for inner in found.carries(int(address)):
            try:
                self._judge(inner, host, port, route)
            except EgressDenied as error:
                raise EgressDenied(f"{address} is {found.what} that leads to {inner}: {error}") from None

    def _opens(self, found: Range, address: IpAddress, host: str, route: bool) -> bool:
        match found.opening:
            case Opening.NEVER:
                return False
            case Opening.LOOPBACK:
                return self._rules.allow_loopback or route
            case Opening.CIDR:
                return _within(address, self._allowed)
            case Opening.ALLOW:
                return route or _within(address, self._allowed) or _matches(host, self._allowed_names)

    def _is_own(self, address: IpAddress, port: int) -> bool:
        listening = [ip_address(host) for host, own_port in self.own if own_port == port]
        if any(unmapped(own) == address for own in listening):
            return True
        return any(own.is_unspecified for own in listening) and _is_of_this_machine(address)


def _is_of_this_machine(address: IpAddress) -> bool:
    """Whether the system takes it for its own: only such an address can be bound. In doubt it is."""
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((str(address), 0))
    except OSError as error:
        return error.errno not in _NOT_THIS_MACHINE
    return True


def _within(address: IpAddress, networks: Iterable[IpNetwork]) -> bool:
    return any(address in network for network in networks)


def _matches(host: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(host, pattern) for pattern in patterns)


def _literal(host: str) -> IpAddress | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _networks_and_names(entries: Sequence[str]) -> tuple[list[IpNetwork], list[str]]:
    names = names_among(entries)
    return [_unmapped_network(ip_network(entry)) for entry in entries if entry not in names], names


def _unmapped_network(network: IpNetwork) -> IpNetwork:
    """Addresses are judged unmapped, so a network of mapped ones has to be too."""
    if isinstance(network, IPv6Network) and network.prefixlen >= 96 and network.network_address.ipv4_mapped:
        return ip_network((network.network_address.ipv4_mapped, network.prefixlen - 96))
    return network
