"""The table of addresses that are not public."""

import ipaddress
from ipaddress import ip_address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.core.addresses import V4, V6, IpAddress, Range, range_of, unmapped
from tests.support.address_spellings import samples

ROWS = (*V4, *V6)
PUBLIC = [
    *("1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0"),
    *("168.63.129.15", "168.63.129.17", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0"),
    *("192.0.1.0", "192.0.3.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255"),
    *("2000::", "2001:200::", "2001:4860:4860::8888", "2001:db7::", "2001:db9::", "2003::1", "2606:4700::1"),
    *("2a00::1", "3ffe:ffff::", "3fff:1000::", "3fff:ffff:ffff::"),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_each_row_holds_its_first_middle_and_last_address(row: Range) -> None:
    for address in samples(row):
        found = range_of(address)
        assert found is not None
        assert found.network.subnet_of(row.network)  # type: ignore[arg-type]


def test_no_row_is_repeated() -> None:
    assert len({row.network for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("10.1.2.3", "a private address (10.0.0.0/8)"),
        ("100.100.100.200", "Alibaba Cloud's metadata address (100.100.100.200/32)"),
        ("100.100.100.201", "a carrier's shared address (100.64.0.0/10)"),
        ("169.254.169.254", "the link-local address of cloud metadata (169.254.169.254/32)"),
        ("192.0.0.192", "Oracle Cloud's metadata address (192.0.0.192/32)"),
        ("168.63.129.16", "Azure's platform address (168.63.129.16/32)"),
        ("255.255.255.255", "the broadcast address (255.255.255.255/32)"),
        ("::1", "a loopback address (::1/128)"),
        ("::2", "an IPv4-compatible address (::/96)"),
        ("2001:0:1::", "a Teredo address (2001::/32)"),
        ("2001:1::1", "an address of IETF protocols (2001::/23)"),
        ("fd00:ec2::254", "an address of Amazon's instance metadata and services (fd00:ec2::/32)"),
        ("fd20:ce::254", "Google Cloud's metadata address (fd20:ce::254/128)"),
        ("4000::1", "an address outside 2000::/3, where the public ones are (::/0)"),
        ("200::1", "an address outside 2000::/3, where the public ones are (::/0)"),
    ],
)
def test_the_row_with_the_longest_prefix_decides(address: str, what: str) -> None:
    assert str(range_of(ip_address(address))) == what


@pytest.mark.parametrize("address", PUBLIC)
def test_the_neighbours_of_each_range_are_public(address: str) -> None:
    assert range_of(ip_address(address)) is None


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
@example(ip_address("fec0::1"))
def test_addresses_that_the_standard_library_knows_to_be_private_are_not_public(address: IpAddress) -> None:
    address = unmapped(address)
    if not address.is_global or address.is_multicast or address.is_reserved:
        assert range_of(address) is not None
    if address.version == 6 and address not in ipaddress.ip_network("2000::/3"):
        assert range_of(address) is not None


@pytest.mark.parametrize(
    ("address", "inside"),
    [
        ("64:ff9b::a9fe:a9fe", ["169.254.169.254"]),
        ("::7f00:1", ["127.0.0.1"]),
        ("::ffff:0:10.0.0.1", ["10.0.0.1"]),
        ("2002:7f00:1::5", ["127.0.0.1"]),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", ["65.54.227.120", "192.0.2.45"]),
        ("64:ff9b:1::a9fe:a9fe", ["169.254.169.254"]),
        ("64:ff9b:1:a9fe:a9:fe00::", ["169.254.169.254", "254.169.254.0", "169.254.0.0"]),
        ("64:ff9b:1:aaa9:fe:a9fe::", ["170.169.254.169", "169.254.169.254", "254.169.254.0"]),
        ("64:ff9b:1:bbbb:a9:fea9:fe00::", ["187.187.169.254", "187.169.254.169", "169.254.169.254", "254.0.0.0"]),
        ("::1", []),
        ("fd00::10.0.0.1", []),
        ("10.0.0.1", []),
    ],
)
def test_ipv4_addresses_inside_ipv6_addresses(address: str, inside: list[str]) -> None:
    found = range_of(ip_address(address))
    assert found is not None
    assert [str(each) for each in found.carries(int(ip_address(address)))] == inside


@pytest.mark.parametrize(
    ("address", "dialled"),
    [
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1%1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("::10.0.0.1", "::a00:1"),
        ("10.0.0.1", "10.0.0.1"),
    ],
)
def test_an_address_is_judged_as_it_is_dialled(address: str, dialled: str) -> None:
    assert unmapped(ip_address(address)) == ip_address(dialled)
