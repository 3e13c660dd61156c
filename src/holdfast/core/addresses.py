"""Which IP addresses are not the public internet: one table.

`ipaddress.is_global` is wrong for several of them, and does not know the addresses that clouds use for metadata. The
row with the longest prefix decides. A mapped address (::ffff:10.0.0.1) is judged as the address it maps, so it has no
row. IPv6 outside 2000::/3 is not public in any case: no address there was ever assigned.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import NamedTuple

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network


class OpenedBy(Enum):
    """The setting that lets an address be dialled that is not public."""

    ALLOW = "egress.allow opens it"
    CIDR = "only a CIDR in egress.allow opens it"
    LOOPBACK = "egress.allow_loopback opens it"
    NEVER = "nothing opens it"


class Range(NamedTuple):
    """`carries` returns the IPv4 addresses inside one of these: a translator or tunnel sends packets on to them."""

    network: IpNetwork
    what: str
    opening: OpenedBy
    carries: Callable[[int], Sequence[IPv4Address]]

    def __str__(self) -> str:
        return f"{self.what} ({self.network})"


def _nothing(number: int) -> Sequence[IPv4Address]:
    return ()


def _in_the_last_bits(number: int) -> Sequence[IPv4Address]:
    return (_lowest_32(number),)


def _by_6to4(number: int) -> Sequence[IPv4Address]:
    return (_lowest_32(number >> 80),)


def _by_teredo(number: int) -> Sequence[IPv4Address]:
    """The server, and the client, whose bits are inverted."""
    return _lowest_32(number >> 64), _lowest_32(~number)


def _by_local_nat64(number: int) -> Sequence[IPv4Address]:
    """The length of a site's prefix is unknown, so the address is read by all layouts of RFC 6052.

    The layouts of 48, 56 and 64 bits skip bits 64 to 71. A layout that gives 0.x.x.x is dropped if another does not.
    """
    without_gap = number >> 64 << 56 | number & (1 << 56) - 1
    layouts = [_lowest_32(without_gap >> shift) for shift in (40, 32, 24)] + [_lowest_32(number)]
    return [address for address in layouts if int(address) >> 24] or layouts[-1:]


def _lowest_32(number: int) -> IPv4Address:
    return IPv4Address(number & 0xFFFFFFFF)


def _row(
    network: str,
    what: str,
    opening: OpenedBy = OpenedBy.ALLOW,
    carries: Callable[[int], Sequence[IPv4Address]] = _nothing,
) -> Range:
    return Range(ip_network(network), what, opening, carries)


# A connection to "no address" goes to loopback, so neither a wide CIDR nor a route may open it.
V4 = (
    _row("0.0.0.0/8", "an address of this network, which leads to this machine", OpenedBy.NEVER),
    _row("10.0.0.0/8", "a private address"),
    _row("100.64.0.0/10", "a carrier's shared address"),
    _row("100.100.100.200/32", "Alibaba Cloud's metadata address", OpenedBy.CIDR),
    _row("127.0.0.0/8", "a loopback address", OpenedBy.LOOPBACK),
    _row("168.63.129.16/32", "Azure's platform address", OpenedBy.CIDR),
    _row("169.254.0.0/16", "a link-local address", OpenedBy.CIDR),
    _row("169.254.169.254/32", "the link-local address of cloud metadata", OpenedBy.CIDR),
    _row("172.16.0.0/12", "a private address"),
    _row("192.0.0.0/24", "an address of IETF protocols"),
    _row("192.0.0.192/32", "Oracle Cloud's metadata address", OpenedBy.CIDR),
    _row("192.0.2.0/24", "a documentation address"),
    _row("192.31.196.0/24", "an AS112 address"),
    _row("192.52.193.0/24", "a multicast tunnel (AMT) address"),
    _row("192.88.99.0/24", "a 6to4 relay address"),
    _row("192.168.0.0/16", "a private address"),
    _row("192.175.48.0/24", "an AS112 address"),
    _row("198.18.0.0/15", "a benchmark address"),
    _row("198.51.100.0/24", "a documentation address"),
    _row("203.0.113.0/24", "a documentation address"),
    _row("224.0.0.0/4", "a multicast address"),
    _row("240.0.0.0/4", "a reserved address"),
    _row("255.255.255.255/32", "the broadcast address"),
)
V6 = (
    _row("::/128", "the unspecified address, which leads to this machine", OpenedBy.NEVER),
    _row("::1/128", "a loopback address", OpenedBy.LOOPBACK),
    _row("::/96", "an IPv4-compatible address", carries=_in_the_last_bits),
    _row("::ffff:0:0:0/96", "an IPv4-translated address", carries=_in_the_last_bits),
    _row("64:ff9b::/96", "a NAT64 address", carries=_in_the_last_bits),
    _row("64:ff9b:1::/48", "a local NAT64 address", carries=_by_local_nat64),
    _row("100::/64", "a discard address"),
    _row("100:0:0:1::/64", "a dummy address"),
    _row("2001::/23", "an address of IETF protocols"),
    _row("2001::/32", "a Teredo address", carries=_by_teredo),
    _row("2001:2::/48", "a benchmark address"),
    _row("2001:10::/28", "an ORCHID address"),
    _row("2001:20::/28", "an ORCHID address"),
    _row("2001:db8::/32", "a documentation address"),
    _row("2002::/16", "a 6to4 address", carries=_by_6to4),
    _row("2620:4f:8000::/48", "an AS112 address"),
    _row("3fff::/20", "a documentation address"),
    _row("5f00::/16", "a segment routing (SRv6) address"),
    _row("fc00::/7", "a private (unique local) address"),
    _row("fd00:42::42/128", "Scaleway's metadata address", OpenedBy.CIDR),
    _row("fd00:ec2::/32", "an address of Amazon's instance metadata and services", OpenedBy.CIDR),
    _row("fd20:ce::254/128", "Google Cloud's metadata address", OpenedBy.CIDR),
    _row("fe80::/10", "a link-local address", OpenedBy.CIDR),
    _row("fec0::/10", "a site-local address"),
    _row("ff00::/8", "a multicast address"),
)
GLOBAL_V6 = IPv6Network("2000::/3")
NOT_GLOBAL_V6 = _row("::/0", "an address outside 2000::/3, where the public ones are")

_BY_VERSION = {
    version: sorted(rows, key=lambda row: row.network.prefixlen, reverse=True) for version, rows in ((4, V4), (6, V6))
}


def range_of(address: IpAddress) -> Range | None:
    """The row of an unmapped address; None for the public internet."""
    for row in _BY_VERSION[address.version]:
        if address in row.network:
            return row
    return NOT_GLOBAL_V6 if address.version == 6 and address not in GLOBAL_V6 else None


def unmapped(address: IpAddress) -> IpAddress:
    """An address as it is dialled: IPv4 if it is a mapped one, and without its zone."""
    if isinstance(address, IPv4Address):
        return address
    return address.ipv4_mapped or IPv6Address(int(address))
