"""Which addresses may be dialled."""

import re
import socket
from ipaddress import ip_address
from typing import Any

import pytest

from holdfast.config import build
from holdfast.core.addresses import V4, V6, Range
from holdfast.core.errors import EgressDenied
from holdfast.delivery.egress import ROUTE_ZONE, Guard, is_route
from holdfast.http.dial import Origin
from tests.support.address_spellings import plain, samples


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
def test_other_addresses_may_not_be_dialled(address: str) -> None:
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
def test_a_host_pattern_in_allow_opens_any_private_address_of_the_host(address: str) -> None:
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


@pytest.mark.parametrize("own", [("127.0.0.1", 8800), ("0.0.0.0", 8800), ("::", 8800), ("::ffff:127.0.0.1", 8800)])
def test_holdfast_itself_is_never_a_target(own: tuple[str, int]) -> None:
    it = guard(allow_loopback=True, allow_ports=["*"], allow=["0.0.0.0/0", "::/0"])
    it.own.add(own)
    for host in ("127.0.0.1", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::127.0.0.1", "0.0.0.0", "::"):
        assert not permits(it, host, 8800)
        assert not permits(it, host, 8800, route=True)
    assert permits(it, "127.0.0.1", 8801)
    assert permits(it, "1.1.1.1", 8800)


def address_of_this_machine() -> str:
    """The address of this machine on its network, or loopback. Nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.3"
        return str(probe.getsockname()[0])


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::"])
def test_a_listener_on_all_addresses_is_known_by_any_address_of_this_machine(wildcard: str) -> None:
    it = guard(allow_loopback=True, allow_ports=["*"], allow=["0.0.0.0/0", "::/0"])
    assert permits(it, address_of_this_machine(), 8800)
    it.own.add((wildcard, 8800))
    for host in (address_of_this_machine(), "127.0.0.3", "::1"):
        assert not permits(it, host, 8800)
        assert not permits(it, host, 8800, route=True)
        assert permits(it, host, 8801)
    assert permits(it, "10.255.255.254", 8800)


def test_a_link_local_address_counts_as_this_machines() -> None:
    it = guard(allow_ports=["*"], allow=["fe80::/10"])
    assert permits(it, "fe80::1", 8800)
    it.own.add(("::", 8800))
    assert not permits(it, "fe80::1", 8800)


def test_a_refusal_names_the_setting_that_would_allow_it() -> None:
    for host, port, hint in (
        ("10.1.2.3", 443, "10.1.2.3 is a private address (10.0.0.0/8); egress.allow opens it"),
        ("::ffff:10.1.2.3", 443, "10.1.2.3 is a private address (10.0.0.0/8); egress.allow opens it"),
        ("127.0.0.1", 443, "127.0.0.1 is a loopback address (127.0.0.0/8); egress.allow_loopback opens it"),
        ("1.1.1.1", 22, "port 22 is not in egress.allow_ports (443, 80)"),
        ("fe80::1", 443, "fe80::1 is a link-local address (fe80::/10); only a CIDR in egress.allow opens it"),
    ):
        with pytest.raises(EgressDenied, match=f"^{re.escape(hint)}$"):
            guard().judge_literal(host, port, False)


# -- addresses that rules do not open ----------------------------------------------------------------------------------

METADATA = ["100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254", "fd00:42::42"]
WIDE = ["0.0.0.0/0", "::/0"]


@pytest.mark.parametrize("row", [*V4, *V6], ids=str)
def test_no_address_of_the_table_may_be_dialled(row: Range) -> None:
    for address in samples(row):
        assert not permits(guard(), str(address))


@pytest.mark.parametrize("address", ["0.0.0.0", "0.0.0.1", "::", "::ffff:0.0.0.0"])
def test_nothing_opens_the_addresses_that_lead_to_this_machine_without_naming_it(address: str) -> None:
    assert not permits(guard(allow=WIDE, allow_loopback=True), address, route=True)


@pytest.mark.parametrize("address", METADATA)
def test_metadata_outside_link_local_is_open_to_no_route_and_no_pattern(address: str) -> None:
    with pytest.raises(EgressDenied):
        guard(allow=["*.internal"])._judge(ip_address(address), "metadata.internal", 443, True)
    assert permits(guard(allow=[address]), address)


@pytest.mark.parametrize("address", LOOPBACK)
@pytest.mark.parametrize("entry", ["127.0.0.1", "127.0.0.0/8", "::1", "::ffff:127.0.0.1", *WIDE])
def test_allow_does_not_open_loopback(address: str, entry: str) -> None:
    assert not permits(guard(allow=[entry]), address)


@pytest.mark.parametrize(
    ("entry", "address", "other"),
    [
        ("10.0.0.7", "10.0.0.7", "10.0.0.8"),
        ("::ffff:10.0.0.7", "10.0.0.7", "10.0.0.8"),
        ("::ffff:10.0.0.0/120", "10.0.0.7", "10.0.1.7"),
        ("fd12::7", "fd12::7", "fd12::8"),
    ],
)
def test_a_single_or_a_mapped_address_in_allow_and_deny_is_that_address(entry: str, address: str, other: str) -> None:
    assert permits(guard(allow=[entry]), address)
    assert not permits(guard(allow=[entry]), other)
    it = guard(allow=["10.0.0.0/8", "fd12::/16"], deny=[entry])
    assert permits(it, other)
    assert not permits(it, address)


def test_deny_wins_in_any_case_and_for_subdomains() -> None:
    it = guard(deny=["Evil.Example.COM", "*.Sub.example.com", "1.1.1.1"])
    assert not permits(it, "evil.example.com")
    assert not permits(it, "a.b.sub.example.com", route=True)
    assert not permits(it, "1.1.1.1", route=True)
    assert not permits(it, "::ffff:1.1.1.1", route=True)
    assert permits(it, "sub.example.com")
    assert permits(it, "notevil.example.com")


# -- addresses inside addresses ----------------------------------------------------------------------------------------

TUNNELS = ["64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "::/96", "2001::/32", "::ffff:0:0:0/96"]


def tunnelled(address: str) -> list[str]:
    """The IPv6 addresses that embed this IPv4 address, except mapped ones."""
    return [host[1:-1] for host in plain(ip_address(address))[4:]]


@pytest.mark.parametrize("address", ["169.254.169.254", "10.0.0.1", "127.0.0.1", "0.0.0.0", "100.100.100.200"])
def test_an_open_translator_does_not_open_the_address_behind_it(address: str) -> None:
    for host in tunnelled(address):
        assert not permits(guard(allow=TUNNELS), host)


@pytest.mark.parametrize("host", tunnelled("169.254.169.254"))
def test_a_pattern_opens_no_more_behind_a_translator_than_in_front_of_it(host: str) -> None:
    with pytest.raises(EgressDenied, match="metadata"):
        guard(allow=["*.internal"])._judge(ip_address(host), "db.internal", 443, False)


@pytest.mark.parametrize("host", ["64:ff9b::1.1.1.1", "64:ff9b:1::1.1.1.1", "2002:101:101::", "::1.1.1.1"])
def test_an_open_translator_reaches_the_public_internet(host: str) -> None:
    assert permits(guard(allow=TUNNELS), host)
    assert not permits(guard(), host)
    assert not permits(guard(allow=TUNNELS, deny=["1.1.1.0/24"]), host)


@pytest.mark.parametrize("host", ["64:ff9b::10.0.0.1", "64:ff9b:1::10.0.0.1", "2002:a00:1::", "::10.0.0.1"])
def test_the_translator_and_the_address_behind_it_can_both_be_opened(host: str) -> None:
    assert permits(guard(allow=[*TUNNELS, "10.0.0.0/8"]), host)
    assert not permits(guard(allow=["10.0.0.0/8"]), host)


@pytest.mark.parametrize("opened", [["10.0.0.1"], ["10.0.0.2"], ["10.0.0.1", "10.0.0.2"]])
def test_a_teredo_address_carries_a_server_and_a_client(opened: list[str]) -> None:
    server_and_client = "2001:0:a00:1::f5ff:fffd"
    assert permits(guard(allow=[*TUNNELS, *opened]), server_and_client) is (len(opened) == 2)


def test_a_route_has_its_exemption_behind_a_translator_too_but_not_for_metadata() -> None:
    assert permits(guard(), "64:ff9b::10.0.0.1", route=True)
    assert not permits(guard(), "64:ff9b::169.254.169.254", route=True)


def test_a_refusal_names_the_address_behind_a_translator() -> None:
    with pytest.raises(EgressDenied) as denied:
        guard(allow=["64:ff9b::/96"]).judge_literal("64:ff9b::10.0.0.1", 443, False)
    assert str(denied.value) == (
        "64:ff9b::a00:1 is a NAT64 address that leads to 10.0.0.1: "
        "10.0.0.1 is a private address (10.0.0.0/8); egress.allow opens it"
    )


# -- the peer ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", [ROUTE_ZONE, f"{ROUTE_ZONE} 5f3a"])
def test_the_zones_of_a_route_are_exempt(zone: str) -> None:
    assert is_route(zone)
    assert not is_route("")
    guard().judge_peer(Origin("http", "db.internal", 9999, zone), "10.0.0.1:9999")


@pytest.mark.parametrize(
    "peer", ["127.0.0.1:443", "[::1]:443", "[::ffff:127.0.0.1]:443", "[fe80::1%eth0]:443", "10.0.0.1:443"]
)
def test_a_peer_is_judged_again(peer: str) -> None:
    with pytest.raises(EgressDenied):
        guard().judge_peer(Origin("https", "api.example.com", 443), peer)


@pytest.mark.parametrize("peer", ["1.1.1.1:443", "[2606:4700::1111]:443", "[::ffff:1.1.1.1]:443"])
def test_a_public_peer_is_permitted(peer: str) -> None:
    guard().judge_peer(Origin("https", "api.example.com", 443), peer)


def test_a_peer_that_is_holdfast_itself_is_refused_even_to_a_route() -> None:
    it = guard(allow_loopback=True, allow_ports=["*"])
    it.own.add(("0.0.0.0", 8800))
    with pytest.raises(EgressDenied, match="holdfast itself"):
        it.judge_peer(Origin("http", "api.example.com", 8800, ROUTE_ZONE), "127.0.0.1:8800")
