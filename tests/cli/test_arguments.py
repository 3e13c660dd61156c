"""Addresses as people write them."""

import pytest

from holdfast.cli.arguments import format_address, parse_address


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:8801", ("127.0.0.1", 8801)),
        ("0.0.0.0:1", ("127.0.0.1", 1)),
        ("[::]:1", ("::1", 1)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
        ("localhost:65535", ("localhost", 65535)),
        (":8801", ("127.0.0.1", 8801)),
    ],
)
def test_parse_address(address: str, expected: tuple[str, int]) -> None:
    assert parse_address(address) == expected


@pytest.mark.parametrize("address", ["", "8801", "a:", "a:0", "a:65536", "a:1x", "::1:80", "a/b:80", "a b:80", "a@b:1"])
def test_text_that_is_not_an_address(address: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        parse_address(address)


def test_format_address() -> None:
    assert [format_address("a", 1), format_address("::1", 2)] == ["a:1", "[::1]:2"]
