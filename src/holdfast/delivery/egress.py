"""The egress rules: which addresses may be dialled, so that webhooks can't reach into holdfast's own network.

A name is resolved once, each of its addresses is judged, and only permitted ones are dialled. The peer is judged again
when the connection is open. Denied addresses of a name are left out and the others are used.

- `deny` wins over everything. A name in `deny` matches only that spelling. Other names may resolve to the same address,
  so only a network closes it.
- Addresses outside the public internet (core/addresses.py) are open only by `allow`, by `allow_loopback`, or for
  messages of a route to that very host.
- Link-local addresses, and others where clouds serve metadata, are open only by a CIDR in `allow`.
- If an address embeds another one, as in NAT64, both must be open.
- holdfast's own listeners are never a target, by any name or address of this machine.
"""

import errno
import socket
from collections.abc import Sequence
from ipaddress import IPv6Network, ip_address, ip_network

from holdfast.config import EgressSettings
from holdfast.config.hosts import names_among
from holdfast.core.addresses import IpAddress, IpNetwork, OpenedBy, Range, range_of, unmapped
from holdfast.core.errors import EgressDenied, NameNotResolved
from holdfast.core.target import matches_host
from holdfast.delivery.resolver import GetAddrInfo, Resolver
from holdfast.http.dial import Address, Origin

ROUTE_ZONE = "route"
"""Prefix of the zones of connections that a route's exemption opened. Other messages to the same host never use them.
"""

_NOT_THIS_MACHINE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def is_route(zone: str) -> bool:
    """Whether connections of a zone have a route's exemption."""
    return zone.startswith(ROUTE_ZONE)


class HostList:
    """Networks, addresses and host patterns, as listed in `egress.allow`, `egress.deny` and `delivery.no_proxy`."""

    def __init__(self, entries: Sequence[str]) -> None:
        self._patterns = names_among(entries)
        self._networks = [_unmapped_network(ip_network(entry)) for entry in entries if entry not in self._patterns]

    def has_name(self, host: str) -> bool:
        return matches_host(host, self._patterns)

    def has_address(self, address: IpAddress) -> bool:
        """`address` is unmapped."""
        return any(address in network for network in self._networks)


class Guard:
    """Applies the egress rules. `own` holds the addresses that holdfast itself listens on."""

    def __init__(self, rules: EgressSettings, getaddrinfo: GetAddrInfo = socket.getaddrinfo) -> None:
        self.look_up = Resolver(getaddrinfo).look_up
        """Resolves a name without judging its addresses: for hosts that the operator configured."""
        self.own: set[tuple[str, int]] = set()
        self.configure(rules)

    def configure(self, rules: EgressSettings) -> None:
        self._rules = rules
        self._allowed, self._denied = HostList(rules.allow), HostList(rules.deny)

    def judge_literal(self, host: str, port: int, route: bool) -> None:
        """Judge a target before it is resolved: its port, its name, and its address if the name is one."""
        if self._denied.has_name(host):
            raise EgressDenied(f"{host} is denied by egress.deny")
        if not route and self._rules.allow_ports is not None and port not in self._rules.allow_ports:
            allowed = ", ".join(str(allowed) for allowed in self._rules.allow_ports)
            raise EgressDenied(f"port {port} is not in egress.allow_ports ({allowed})")
        try:
            address = ip_address(host)
        except ValueError:
            return
        self._judge(address, host, port, route)

    async def resolve(self, origin: Origin) -> Sequence[Address]:
        """Returns the addresses of an origin that may be dialled."""
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
        """Judge an open connection by its peer's address, as ip:port."""
        host = address.rpartition(":")[0].strip("[]")
        self._judge(ip_address(host), origin.host, origin.port, is_route(origin.zone))

    def _judge(self, address: IpAddress, host: str, port: int, route: bool) -> None:
        address = unmapped(address)
        if self._denied.has_address(address):
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
            case OpenedBy.NEVER:
                return False
            case OpenedBy.LOOPBACK:
                return self._rules.allow_loopback or route
            case OpenedBy.CIDR:
                return self._allowed.has_address(address)
            case OpenedBy.ALLOW:
                return route or self._allowed.has_address(address) or self._allowed.has_name(host)

    def _is_own(self, address: IpAddress, port: int) -> bool:
        listening = [ip_address(host) for host, own_port in self.own if own_port == port]
        if any(unmapped(own) == address for own in listening):
            return True
        return any(own.is_unspecified for own in listening) and _is_of_this_machine(address)


def _is_of_this_machine(address: IpAddress) -> bool:
    """Whether an address belongs to this machine: only such an address can be bound. In doubt it does."""
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((str(address), 0))
    except OSError as error:
        return error.errno not in _NOT_THIS_MACHINE
    return True


def _unmapped_network(network: IpNetwork) -> IpNetwork:
    """Addresses are judged unmapped, so networks have to be unmapped too."""
    if isinstance(network, IPv6Network) and network.prefixlen >= 96 and network.network_address.ipv4_mapped:
        return ip_network((network.network_address.ipv4_mapped, network.prefixlen - 96))
    return network
