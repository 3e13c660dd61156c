"""The four ways to name a target."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import Address, build
from holdfast.ingest.naming import Naming
from holdfast.ingest.refusals import (
    BAD_TARGET,
    DOT_SEGMENTS,
    NO_TARGET,
    NOT_PROXIED,
    TWO_TARGETS,
    UNKNOWN_ROUTE,
    Refused,
)
from holdfast.ingest.sidecar import Sidecar

TARGET = "https://api.example.com/hooks/7?x=1"


def naming(**ingest) -> Naming:
    config = build(
        {
            "ingest": ingest,
            "routes": {
                "billing": {"url": "https://hooks.example.com/in"},
                "slash": {"url": "https://hooks.example.com/in/"},
                "bare": {"url": "https://hooks.example.com"},
                "query": {"url": "https://hooks.example.com/in?k=1"},
                "mark": {"url": "https://hooks.example.com/in?"},
            },
        }
    )
    return Naming(Sidecar(Address("127.0.0.1", 8800), config.ingest.hosts), config.ingest, config.routes)


def resolve(url: str, header: str | None = None, **ingest) -> str:
    named = naming(**ingest).resolve(url.encode(), None if header is None else header.encode())
    return named.target.url


def refusal(url: str, header: str | None = None, **ingest):
    with pytest.raises(Refused) as caught:
        resolve(url, header, **ingest)
    return caught.value.refusal


@pytest.mark.parametrize(
    "url",
    [
        "/https://api.example.com/hooks/7?x=1",
        "/https:/api.example.com/hooks/7?x=1",
        "/HTTPS://api.example.com/hooks/7?x=1",
        "/Https:/API.example.com:443/hooks/7?x=1",
    ],
)
def test_prefix(url):
    assert resolve(url) == TARGET


def test_a_prefixed_path_is_unchanged():
    assert resolve("/http:/h//a/../b?u=https://x//y?") == "http://h//a/../b?u=https://x//y?"


@pytest.mark.parametrize("url", ["/https:///x", "/ftp://example.com/", "/https://127.1/", "/https:/", "/https://a@b/"])
def test_a_bad_prefixed_target_is_told_as_such(url):
    assert refusal(url) is BAD_TARGET


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("/to/billing", "https://hooks.example.com/in"),
        ("/to/billing/", "https://hooks.example.com/in/"),
        ("/to/billing/extra/path?x=1", "https://hooks.example.com/in/extra/path?x=1"),
        ("/to/billing?x=1", "https://hooks.example.com/in?x=1"),
        ("/to/billing?", "https://hooks.example.com/in?"),
        ("/to/billing//extra", "https://hooks.example.com/in//extra"),
        ("/to/billing/a?../b", "https://hooks.example.com/in/a?../b"),
        ("/to/billing/.well-known/a..b/...", "https://hooks.example.com/in/.well-known/a..b/..."),
        ("/to/slash", "https://hooks.example.com/in/"),
        ("/to/slash/extra", "https://hooks.example.com/in/extra"),
        ("/to/bare", "https://hooks.example.com/"),
        ("/to/bare/extra", "https://hooks.example.com/extra"),
        ("/to/bare?x=1", "https://hooks.example.com/?x=1"),
        ("/to/query", "https://hooks.example.com/in?k=1"),
        ("/to/query/extra", "https://hooks.example.com/in/extra?k=1"),
        ("/to/query/extra?x=1", "https://hooks.example.com/in/extra?k=1&x=1"),
        ("/to/query?", "https://hooks.example.com/in?k=1"),
        ("/to/mark", "https://hooks.example.com/in?"),
        ("/to/mark?x=1", "https://hooks.example.com/in?x=1"),
    ],
)
def test_route(url, target):
    assert resolve(url) == target


def test_a_route_is_named_in_the_result_and_only_there():
    assert naming().resolve(b"/to/billing/x", None).route == "billing"
    assert naming().resolve(b"/https://hooks.example.com/in/x", None).route is None


@pytest.mark.parametrize(
    "extra",
    ["/..", "/.", "/../x", "/./x", "/a/..", "/%2e%2e", "/.%2E/x", "/%2E./x", "/%2e", "/a%2f..%2fb", "/..%5Cb"],
)  # fmt: skip
def test_dot_segments_behind_a_route(extra):
    assert refusal("/to/billing" + extra) is DOT_SEGMENTS


@pytest.mark.parametrize("url", ["/to/other", "/to/", "/to//billing", "/to/Billing", "/to/../billing", "/to/?x"])
def test_unknown_route(url):
    assert refusal(url) is UNKNOWN_ROUTE


def test_header():
    assert resolve("/", TARGET) == TARGET


@pytest.mark.parametrize("url", ["/?x=1", "/?", "/other", "//"])
def test_with_the_header_nothing_else_is_in_the_url(url):
    assert refusal(url, TARGET) is NO_TARGET


@pytest.mark.parametrize("url", ["/", "/hooks/7", "/to", "/?x=1", "/api.example.com/hooks", "http://127.0.0.1:8800/"])
def test_no_target(url):
    assert refusal(url) is NO_TARGET


def test_without_a_target_the_four_ways_are_shown():
    with pytest.raises(Refused) as caught:
        resolve("/")
    for way in ("127.0.0.1:8800/https://", "/to/", "Holdfast-Target:", "http_proxy="):
        assert way in caught.value.detail


@pytest.mark.parametrize(
    ("url", "header"),
    [
        ("/https://api.example.com/hooks/7", "https://api.example.com/hooks/8"),
        ("/https://api.example.com/hooks/7", "http://api.example.com/hooks/7"),
        ("/to/billing", "https://hooks.example.com/other"),
        ("http://api.example.com/", "https://api.example.com/"),
    ],
)
def test_two_different_targets(url, header):
    assert refusal(url, header, proxy_hosts=["*"]) is TWO_TARGETS


def test_the_same_target_twice_is_one():
    assert resolve("/https:/API.example.com/hooks/7?x=1", TARGET) == TARGET
    named = naming().resolve(b"/to/billing", b"https://hooks.example.com/in")
    assert named.route == "billing"


@pytest.mark.parametrize(
    ("url", "ingest", "target"),
    [
        ("http://api.example.com/a?b", {"proxy_hosts": ["*"]}, "http://api.example.com/a?b"),
        ("http://api.example.com", {"proxy_hosts": ["*.example.com"]}, "http://api.example.com/"),
        ("https://api.example.com/a", {"proxy_hosts": ["api.example.com"]}, "https://api.example.com/a"),
        ("http://api.example.com/a", {"proxy_hosts": ["*"], "upgrade_to_https": ["*.example.com"]}, "https://api.example.com/a"),
        ("http://api.example.com:80/a", {"proxy_hosts": ["*"], "upgrade_to_https": ["*"]}, "https://api.example.com/a"),
        ("http://api.example.com:8080/a", {"proxy_hosts": ["*"], "upgrade_to_https": ["*"]}, "https://api.example.com:8080/a"),
        ("http://other.test/a", {"proxy_hosts": ["*"], "upgrade_to_https": ["*.example.com"]}, "http://other.test/a"),
        ("http://localhost/a", {"proxy_hosts": ["*"]}, "http://localhost/a"),
        ("http://127.0.0.1:8801/a", {"proxy_hosts": ["*"]}, "http://127.0.0.1:8801/a"),
        ("https://127.0.0.1:8800/a", {"proxy_hosts": ["*"]}, "https://127.0.0.1:8800/a"),
    ],
)  # fmt: skip
def test_proxy(url, ingest, target):
    assert resolve(url, **ingest) == target


@pytest.mark.parametrize(
    "ingest", [{}, {"proxy_hosts": ["other.test"]}, {"upgrade_to_https": ["*"]}, {"proxy_hosts": ["*.api.example.com"]}]
)  # fmt: skip
def test_proxy_only_for_listed_hosts(ingest):
    assert refusal("http://api.example.com/", **ingest) is NOT_PROXIED


@pytest.mark.parametrize(
    "authority", ["127.0.0.1:8800", "localhost:8800", "LOCALHOST:8800", "[::1]:8800", "gate.test:8800"]
)
def test_an_absolute_url_of_this_sidecar_is_taken_as_origin_form(authority):
    assert resolve(f"http://{authority}/https://api.example.com/hooks/7?x=1", hosts=["gate.test"]) == TARGET
    assert resolve(f"http://{authority}/", TARGET, hosts=["gate.test"]) == TARGET


def test_upgrading_is_for_the_proxy_form_alone():
    assert resolve("/http://h.test/", upgrade_to_https=["*"], proxy_hosts=["*"]) == "http://h.test/"


PIECES = st.lists(
    st.sampled_from(["/", ".", "..", "%2e", "%2E", "%2f", "%5c", "a", "?", "&", "//", ":", "@", "https://", "#", "é"]),
    max_size=10,
).map("".join)  # fmt: skip


@given(PIECES)
def test_nothing_behind_a_route_leaves_it(extra):
    try:
        target = naming().resolve(b"/to/billing" + extra.encode(), None).target
    except Refused:
        return
    assert target.authority == "hooks.example.com"
    path = target.path.partition(b"?")[0].lower()
    assert path.startswith(b"/in")
    decoded = path.replace(b"%2e", b".").replace(b"%2f", b"/").replace(b"%5c", b"/")
    assert not {b".", b".."} & set(decoded.split(b"/"))


@given(st.binary(max_size=48), st.none() | st.binary(max_size=48))
def test_random_bytes_never_crash(url, header):
    for before in (b"", b"/", b"/to/", b"/https:/", b"http://"):
        try:
            naming(proxy_hosts=["*"]).resolve(before + url, header)
        except Refused as refused:
            assert refused.status in (400, 404)
