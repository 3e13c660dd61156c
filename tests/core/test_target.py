"""The grammar of targets: every odd spelling, every canonical form, and random bytes."""

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import build
from holdfast.config.hosts import ascii_name
from holdfast.core import target as grammar
from holdfast.core.target import BadTarget, Target, lane_of, matches_host


def parse_target(url: bytes | str) -> Target:
    return grammar.parse_target(url, ascii_name)


ODD_HOSTS = [
    "0x7f.1", "0x7f000001", "0X7F.1", "2130706433", "127.1", "0", "0177.0.0.1", "1.2.3.4.5", "127.0.0.1.",
    "127.0.0", "1.2.3.256", "01.2.3.4", "example.123", "example.0x", "example.0xff", "00000000177.0.0.1",
    "127。0。0。1", "１２７.0.0.1", "127.0.0.１", "①②⑦.0.0.1", "127.0.0．1", "é。com", "ｅxample.com",
    "127.0.0.1..", "2130706433.", "[::1].", "example.com。", "example.com..", "exa…mple.com", "é․com",
    "example.com.", ".example.com", "example..com", ".", "-a.example", "a-.example", "a" * 64 + ".example",
    "exa mple.com", "exa\tmple.com", "example.com\\", "example.com\\@evil.test", "ex%61mple.com", "%31", "a,b", "a!b",
    "[::1", "::1", "[::1]x", "[fe80::1%25eth0]", "[fe80::1%eth0]", "[127.0.0.1]", "[v1.fe80::a]", "[::1%25lo]",
    "[::ffff:127.1]", "[::ffff:0x7f.0.0.1]", "[::ffff:0177.0.0.1]", "[1::2::3]", "[12345::]", "[：：1]", "[::１]",
    "[example.com]", "[]", "[:::1]",
    "℀é.example", "xn--é.example", "\u00ad.example", "é" * 300, ".".join(["abc"] * 64), "",
    ".".join(["é" * 20] * 10), "é" + "\u00ad" * 300,
    "xn--a.example", "xn--.example", "xn--abc-.example", "xn--99999.example", "xn--zzzzzzzzz99999.example",
    "xn--xn--a--gua.example", "xn--straSSe-.example", "xn--é.example", "ｘn--n3h.example",
    "\u0301a.example", "a\u200cb.example", "a\u200db.example", "\u200d.example", "אa.example", "1ⅷ.example",
    "\u212a.example", "𝟏𝟐𝟕.0.0.1", "example.１", "localhost。", "ﾛ" * 64 + ".example", "\U000e0001.example",
]  # fmt: skip

BAD_URLS = [
    "ftp://example.com/", "HTTPSX://example.com/", "//example.com/", "example.com", "https:/example.com", "https:///x",
    "javascript:alert(1)", "", "https://", "https://?x=1",
    "https://user@example.com/", "https://user:secret@example.com/", "https://@example.com/", "https://a@b@example.com/",
    "https://example.com:0/", "https://example.com:/", "https://example.com:65536/", "https://example.com:080/",
    "https://example.com:999999/", "https://example.com:80:80/", "https://example.com:x/", "https://example.com:-1/",
    "https://example.com:+80/", "https://example.com: 80/", "https://example.com:00/",
    "https://example.com:0x50/", "https://example.com:8_0/", "https://[::1]:65536/", "https://:443/",
    "https://example.com:１/", "https://[::1]:/", "https://example.com#/", "https://example.com/#fragment",
    "https://example.com/a b", "https://example.com/a\r\nHost: evil", "https://example.com/\x00", "https://example.com/\x7f",
    "https://example.com/a\\b", "https://example.com/?q=\\", "https://example.com/é", "https://example.com/?é",
    " https://example.com/", "https://example.com/ ",
]  # fmt: skip


@pytest.mark.parametrize("url", [f"https://{host}/x" for host in ODD_HOSTS] + BAD_URLS)
def test_refused(url):
    for spelling in (url, url.encode("utf-8")):
        with pytest.raises(BadTarget):
            parse_target(spelling)


@pytest.mark.parametrize(
    ("url", "scheme", "host", "port", "authority", "path"),
    [
        ("https://api.example.com/hooks/7?x=1", "https", "api.example.com", 443, "api.example.com", b"/hooks/7?x=1"),
        ("HTTPS://API.Example.COM/A", "https", "api.example.com", 443, "api.example.com", b"/A"),
        ("http://example.com", "http", "example.com", 80, "example.com", b"/"),
        ("http://example.com?", "http", "example.com", 80, "example.com", b"/?"),
        ("http://example.com?x", "http", "example.com", 80, "example.com", b"/?x"),
        ("http://example.com/?", "http", "example.com", 80, "example.com", b"/?"),
        ("https://example.com:443/", "https", "example.com", 443, "example.com", b"/"),
        ("http://example.com:443/", "http", "example.com", 443, "example.com:443", b"/"),
        ("http://example.com:80/", "http", "example.com", 80, "example.com", b"/"),
        ("https://example.com:80/", "https", "example.com", 80, "example.com:80", b"/"),
        ("https://203.0.113.7:8443/", "https", "203.0.113.7", 8443, "203.0.113.7:8443", b"/"),
        ("https://[2001:DB8:0:0::1]/", "https", "2001:db8::1", 443, "[2001:db8::1]", b"/"),
        ("https://[::ffff:127.0.0.1]:8443/", "https", "127.0.0.1", 8443, "127.0.0.1:8443", b"/"),
        ("https://[0:0:0:0:0:FFFF:CB00:7107]/", "https", "203.0.113.7", 443, "203.0.113.7", b"/"),
        ("https://[::127.0.0.1]/", "https", "::7f00:1", 443, "[::7f00:1]", b"/"),
        ("https://[2001:0DB8::0:0:1]:443/", "https", "2001:db8::1", 443, "[2001:db8::1]", b"/"),
        ("https://my_service/", "https", "my_service", 443, "my_service", b"/"),
        ("https://1.2.3.com/", "https", "1.2.3.com", 443, "1.2.3.com", b"/"),
        ("https://0x7f.example/", "https", "0x7f.example", 443, "0x7f.example", b"/"),
        ("https://éxample.com/", "https", "xn--xample-9ua.com", 443, "xn--xample-9ua.com", b"/"),
        ("https://Éxample.com/", "https", "xn--xample-9ua.com", 443, "xn--xample-9ua.com", b"/"),
        ("https://XN--XAMPLE-9UA.com/", "https", "xn--xample-9ua.com", 443, "xn--xample-9ua.com", b"/"),
        ("https://h/a//b/../%2e%2E/;p=1|{}^`\"<>?a=b&&c==%zz?/@:", "https", "h", 443, "h",
         b"/a//b/../%2e%2E/;p=1|{}^`\"<>?a=b&&c==%zz?/@:"),
    ],
)  # fmt: skip
def test_accepted(url, scheme, host, port, authority, path):
    target = parse_target(url)
    assert target == (scheme, host, port, authority, path)
    assert parse_target(url.encode("utf-8")) == target


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ("straße.example", "xn--strae-oqa.example"),
        ("STRASSE.example", "strasse.example"),
        ("faß.de", "xn--fa-hia.de"),
        ("βόλος.example", "xn--nxasmm1c.example"),
        ("ΒΌΛΟΣ.example", "xn--nxasmq6b.example"),
        ("نامه\u200cای.example", "xn--mgba3gch31f060k.example"),
        ("क्\u200dष.example", "xn--11b2ezcw70k.example"),
        ("Bücher.example", "xn--bcher-kva.example"),
        ("bu\u0308cher.example", "xn--bcher-kva.example"),
        ("ｂücher.example", "xn--bcher-kva.example"),
        ("日本語.jp", "xn--wgv71a119e.jp"),
        ("☃.example", "xn--n3h.example"),
        ("גדבא.example", "xn--4dbbce.example"),
    ],
)
def test_international_names_are_read_as_browsers_read_them(name, spelled):
    """UTS 46, non-transitional: ß, final sigma and joiners are letters of their own."""
    assert parse_target(f"https://{name}/").host == spelled
    assert parse_target(f"https://{spelled}/").host == spelled


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://example.com/", "example.com:443"),
        ("http://example.com/", "example.com:80"),
        ("https://[::2]:8443/", "[::2]:8443"),
    ],
)
def test_host_key_always_has_the_port(url, key):
    assert parse_target(url).host_key == key


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("https://user:secret@example.com/", "Authorization"),
        ("https://example.com./", "ends with a dot"),
        ("https://127.1/", "four decimal numbers"),
        ("https://127。0。0。1/", "stand for plain ASCII"),
        ("https://[fe80::1%25eth0]/", "zone id"),
        ("https://xn--a.example/", "not a valid international name"),
        ("https://" + ".".join(["abc"] * 64) + "/", "longer than 253 characters"),
        ("ftp://example.com/", "http:// or https://"),
        ("https://example.com/#a", "fragment"),
    ],
)
def test_a_refusal_says_what_to_change(url, advice):
    with pytest.raises(BadTarget) as caught:
        parse_target(url)
    assert advice in str(caught.value)
    assert "secret" not in str(caught.value) + caught.value.secret_free


def test_a_refusal_never_repeats_the_path():
    with pytest.raises(BadTarget) as caught:
        parse_target("https://127.1/services/T0/secret")
    assert "127.1" in str(caught.value) and "127.1" not in caught.value.secret_free
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("circuit", "lane"),
    [
        ({}, "api.example.com:443"),
        ({"scope": "url"}, "https://api.example.com/hooks/7"),
        ({"url_hosts": ["*.example.com"]}, "https://api.example.com/hooks/7"),
        ({"url_hosts": ["example.com"]}, "api.example.com:443"),
    ],
)
def test_lane(circuit, lane):
    config = build({"circuit": circuit})
    assert lane_of(parse_target("https://api.example.com/hooks/7?x=1?y"), config.circuit) == lane


@pytest.mark.parametrize(
    ("host", "patterns", "matches"),
    [
        ("api.example.com", ["*"], True),
        ("api.example.com", ["*.example.com"], True),
        ("a.b.example.com", ["*.example.com"], True),
        ("example.com", ["*.example.com"], False),
        ("evilexample.com", ["*.example.com"], False),
        ("example.com", ["other.test", "example.com"], True),
        ("api.example.com", ["example.com"], False),
        ("::1", ["::1"], True),
        ("example.com", [], False),
    ],
)
def test_host_patterns(host, patterns, matches):
    assert matches_host(host, patterns) is matches


def _is_odd(host: str) -> bool:
    """Whether the C library, which reads all the odd spellings, sees an address where we see a name or another one."""
    try:
        address = socket.inet_aton(host)
    except OSError:
        return False
    return str(ipaddress.IPv4Address(address)) != host


@pytest.mark.parametrize("host", ["127.1", "0x7f.1", "0", "0177.0.0.1"])
def test_the_oracle_knows_odd_spellings(host):
    assert _is_odd(host)


HOSTILE = st.text(alphabet="0123456789abcdefxXén.．。１２٣-_[]:%@\\#/?& \t\r\n\x00℀ßKאς\u200c\u200d\u0301", max_size=24)
PUNYCODE = st.text(alphabet="abcdefxyz0189-", max_size=12).map("xn--{}.example".format)
NUMBERS = st.lists(
    st.sampled_from(["0", "1", "127", "0x7f", "0177", "256", "4294967295", "０", "0x", "a"]), min_size=1, max_size=6
).map(".".join)  # fmt: skip


@given(st.one_of(HOSTILE, NUMBERS, PUNYCODE, st.text(max_size=24)), st.sampled_from(["", ":80", ":443", "/x", "?y"]))
def test_an_accepted_host_is_never_an_odd_spelling(host, rest):
    try:
        target = parse_target(f"https://{host}{rest}")
    except BadTarget:
        return
    assert target.host.isascii()
    assert not _is_odd(target.host)
    assert parse_target(target.url) == target


@given(st.binary(max_size=64), st.sampled_from([b"", b"http://", b"https://", b"https://h", b"https://h/"]))
def test_random_bytes_never_crash(data, before):
    try:
        target = parse_target(before + data)
    except BadTarget:
        return
    assert all(0x21 <= byte <= 0x7E for byte in target.path)
    assert target.path.startswith(b"/")
