"""Which addresses may be dialled."""

import socket
from ipaddress import ip_address
from typing import Any

import pytest

from holdfast.config import build
from holdfast.core.errors import EgressDenied, NameNotResolved
from holdfast.delivery.egress import ROUTE_ZONE, Guard
from holdfast.http.transport import Origin


def guard(**rules: Any) -> Guard:
    return Guard(build({"egress": rules}).egress)


def permits(it: Guard, host: str, port: int = 443, *, route: bool = False) -> bool:
    try:
        it.judge_literal(host, port, route)
    except EgressDenied:
        return False
    return True


PUBLIC = ["93.184.216.34", "1.1.1.1", "168.63.129.17", "172.32.0.1", "192.0.3.1", "2606:4700::1111", "2a00::1"]
PRIVATE_V4 = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.127.255.255",
    "168.63.129.16",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
]
PRIVATE_V6 = [
    "::",
    "::127.0.0.1",
    "64:ff9b::10.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd12::1",
    "fec0::1",
    "ff02::1",
]
LOOPBACK = ["127.0.0.1", "127.255.0.1", "::1", "::ffff:127.0.0.1"]
LINK_LOCAL = ["169.254.169.254", "fe80::1", "fe80::1%eth0", "::ffff:169.254.169.254"]
MAPPED = ["::ffff:10.0.0.1", "::ffff:192.168.0.1", "::ffff:0.0.0.0"]


@pytest.mark.parametrize("address", PUBLIC)
def test_the_public_internet_may_be_dialled(address: str) -> None:
    assert permits(guard(), address)


def test_a_mapped_public_address_is_public() -> None:
    assert permits(guard(), "::ffff:1.1.1.1")


@pytest.mark.parametrize("address", [*PRIVATE_V4, *PRIVATE_V6, *LOOPBACK, *LINK_LOCAL, *MAPPED])
def test_everything_else_may_not(address: str) -> None:
    assert not permits(guard(), address)


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3"])
def test_allow_opens_a_cidr_on_top_of_the_public_internet(address: str) -> None:
    it = guard(allow=["10.1.0.0/16"])
    assert permits(it, address)
    assert permits(it, "1.1.1.1")
    assert not permits(it, "10.2.0.1")


def test_allow_opens_a_cidr_of_v6() -> None:
    it = guard(allow=["fd12::/16"])
    assert permits(it, "fd12::1")
    assert not permits(it, "fd13::1")


@pytest.mark.parametrize("address", ["10.1.2.3", "fd12::1"])
async def test_allow_opens_a_host_pattern_whatever_private_address_it_has(address: str) -> None:
    it = guard(allow=["*.internal"])
    it._judge(ip_address(address), "db.internal", 443, False)
    with pytest.raises(EgressDenied):
        it._judge(ip_address(address), "db.example.com", 443, False)


@pytest.mark.parametrize("route", [False, True])
def test_deny_wins(route: bool) -> None:
    it = guard(allow=["10.0.0.0/8", "*.example.com"], deny=["10.1.0.0/16", "evil.example.com", "1.1.1.0/24"])
    assert permits(it, "10.2.0.1", route=route)
    assert not permits(it, "10.1.0.1", route=route)
    assert not permits(it, "::ffff:10.1.0.1", route=route)
    assert not permits(it, "1.1.1.1", route=route)
    assert permits(it, "good.example.com", route=route)
    assert not permits(it, "evil.example.com", route=route)


@pytest.mark.parametrize(
    ("ports", "port", "permitted"),
    [
        ([443, 80], 443, True),
        ([443, 80], 80, True),
        ([443, 80], 8080, False),
        ([443, 80], 22, False),
        ([8080], 443, False),
        (["*"], 22, True),
    ],
)
def test_only_allowed_ports_may_be_dialled(ports: list[Any], port: int, permitted: bool) -> None:
    assert permits(guard(allow_ports=ports), "1.1.1.1", port) is permitted
    assert permits(guard(allow_ports=ports), "example.com", port) is permitted


@pytest.mark.parametrize("address", LOOPBACK)
def test_allow_loopback_opens_loopback_and_nothing_else(address: str) -> None:
    it = guard(allow_loopback=True)
    assert permits(it, address)
    assert not any(permits(it, other) for other in [*PRIVATE_V4, *PRIVATE_V6, *LINK_LOCAL, *MAPPED])


@pytest.mark.parametrize("address", ["10.0.0.1", "fd12::1", "127.0.0.1", "::1"])
def test_a_route_is_exempt_from_the_private_address_and_port_rules(address: str) -> None:
    assert permits(guard(), address, 9999, route=True)
    assert not permits(guard(), address, 9999)


@pytest.mark.parametrize("address", LINK_LOCAL)
@pytest.mark.parametrize(
    "rules", [{}, {"allow_loopback": True}, {"allow": ["*.internal"]}, {"allow": ["169.254.1.0/24"]}]
)
def test_link_local_addresses_are_open_to_no_route_no_switch_and_no_pattern(
    address: str, rules: dict[str, Any]
) -> None:
    assert not permits(guard(**rules), address, route=True)
    with pytest.raises(EgressDenied):
        guard(**rules)._judge(ip_address(address), "metadata.internal", 443, True)


@pytest.mark.parametrize("address", LINK_LOCAL)
def test_link_local_addresses_open_by_a_cidr_in_allow(address: str) -> None:
    assert permits(guard(allow=["169.254.0.0/16", "fe80::/10"]), address)


@pytest.mark.parametrize("own", [("127.0.0.1", 8800), ("0.0.0.0", 8800), ("::", 8800)])
def test_holdfast_itself_is_never_a_target(own: tuple[str, int]) -> None:
    it = guard(allow_loopback=True, allow_ports=["*"])
    it.own.add(own)
    assert not permits(it, "127.0.0.1", 8800)
    assert not permits(it, "127.0.0.1", 8800, route=True)
    assert not permits(it, "::ffff:127.0.0.1", 8800)
    assert permits(it, "127.0.0.1", 8801)
    assert permits(it, "1.1.1.1", 8800)


def test_a_refusal_says_what_would_open_the_way() -> None:
    for host, port, hint in (
        ("10.0.0.1", 443, "egress.allow"),
        ("127.0.0.1", 443, "egress.allow_loopback"),
        ("1.1.1.1", 22, "egress.allow_ports"),
        ("169.254.169.254", 443, "CIDR"),
    ):
        with pytest.raises(EgressDenied, match=hint):
            guard().judge_literal(host, port, False)


# -- resolving ---------------------------------------------------------------------------------------------------------


async def test_a_literal_is_resolved_to_itself() -> None:
    it = guard()
    assert await it.resolve(Origin("https", "1.1.1.1", 443)) == [(socket.AF_INET, ("1.1.1.1", 443))]
    assert await it.resolve(Origin("https", "2606:4700::1111", 443)) == [(socket.AF_INET6, ("2606:4700::1111", 443))]


@pytest.mark.parametrize("host", ["10.0.0.1", "::1", "169.254.169.254", "localhost"])
async def test_what_may_not_be_dialled_is_not_resolved(host: str) -> None:
    with pytest.raises(EgressDenied):
        await guard().resolve(Origin("https", host, 443))


async def test_localhost_is_loopback_whatever_its_name() -> None:
    addresses = await guard(allow_loopback=True).resolve(Origin("http", "localhost", 80))
    assert addresses
    assert {address[0] for _, address in addresses} <= {"127.0.0.1", "::1"}


async def test_the_exemption_of_a_route_holds_in_its_zone_only() -> None:
    assert await guard().resolve(Origin("http", "localhost", 9999, ROUTE_ZONE))
    with pytest.raises(EgressDenied):
        await guard().resolve(Origin("http", "localhost", 9999))


async def test_a_denied_name_is_refused_before_it_is_looked_up() -> None:
    with pytest.raises(EgressDenied, match=r"egress\.deny"):
        await guard(deny=["*.example.com"]).resolve(Origin("https", "a.example.com", 443))


@pytest.mark.parametrize("host", ["a..b", "x" * 70 + ".test"])
async def test_what_is_no_host_name_does_not_resolve_and_that_is_the_hosts_fault(host: str) -> None:
    with pytest.raises(NameNotResolved) as refused:
        await guard().resolve(Origin("https", host, 443))
    assert not refused.value.here
