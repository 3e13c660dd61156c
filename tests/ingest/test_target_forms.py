"""The four forms in which a request names its target."""

from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import Address, build
from holdfast.ingest.access import OwnAddress
from holdfast.ingest.refusals import (
    BAD_TARGET,
    DOT_SEGMENTS,
    NO_TARGET,
    NOT_PROXIED,
    TWO_TARGETS,
    UNKNOWN_ROUTE,
    Refused,
)
from holdfast.ingest.target_forms import TargetForms

TARGET = "https://api.example.com/hooks/7?x=1"


def naming(**ingest) -> TargetForms:
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
    return TargetForms(OwnAddress(Address("127.0.0.1", 8800), config.ingest.hosts), config.ingest, config.routes)


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
def test_a_prefixed_url_names_its_target(url):
    assert resolve(url) == TARGET


def test_a_prefixed_path_is_unchanged():
    assert resolve("/http:/h//a/../b?u=https://x//y?") == "http://h//a/../b?u=https://x//y?"


@pytest.mark.parametrize("url", ["/https:///x", "/ftp://example.com/", "/https://127.1/", "/https:/", "/https://a@b/"])
def test_a_bad_prefixed_target_is_refused_as_a_bad_target(url):
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
def test_a_route_gets_the_rest_of_path_and_query(url, target):
    assert resolve(url) == target


def test_the_result_names_the_route():
    assert naming().resolve(b"/to/billing/x", None).route == "billing"
    assert naming().resolve(b"/https://hooks.example.com/in/x", None).route is None


@pytest.mark.parametrize(
    "extra",
    ["/..", "/.", "/../x", "/./x", "/a/..", "/%2e%2e", "/.%2E/x", "/%2E./x", "/%2e", "/a%2f..%2fb", "/..%5Cb"],
)  # fmt: skip
def test_dot_segments_behind_a_route_are_refused(extra):
    assert refusal("/to/billing" + extra) is DOT_SEGMENTS


# Spellings of a dot that some receiver accepts, and what may stand before and after a dot segment.
DOTS = [
    ".", "%2e", "%2E", "%252e", "%25252E", "%%32%65", "%25%32%65", "%u002e", "%c0%ae", "%C0%2e", "%e0%80%ae",
    "%f0%80%80%ae", "%c0%25ae", "%ef%bc%8e", "%e2%80%a4", "%EF%B9%92", "%uff0e", "%ef%bc%852e", "%252525252525252e",
]  # fmt: skip
SLASHES = ["/", "%2f", "%5c", "%255C", "%252f", "%u2215", "%ef%bc%8f", "%c0%af", "%c1%9c", "%ef%bc%bc"]
BEHIND = [
    "", ";", ";a=b", "%3b", "%253Bx", "%09", "%20", "%00", "%00x", "%0a", "%0d%0ax", "%2520", "%c2%a0",
    "%e2%80%8b", "%7f", "%85", "%ff", "%3f", "%23x", "%ef%bc%9b", "%e3%80%80", ";%2e", "%ef%bb%bf",
]  # fmt: skip
BEFORE = ["", "%20", "%09", "%00", "%0a", "%2500", "%c2%a0", "%ef%bb%bf", "%ff"]


@pytest.mark.parametrize("dot", DOTS)
@pytest.mark.parametrize("count", [1, 2])
def test_every_spelling_of_a_dot_segment_is_refused(dot, count):
    dots = dot * count
    spellings = [f"/a{slash}{dots}{slash}x" for slash in SLASHES]
    spellings += [f"/{before}{dots}{behind}/x" for before in BEFORE for behind in BEHIND]
    spellings += [f"/x/{before}{dots}{behind}" for before in BEFORE for behind in BEHIND]
    at = naming()
    for extra in spellings:
        with pytest.raises(Refused) as caught:
            at.resolve(b"/to/billing" + extra.encode(), None)
        assert caught.value.refusal is DOT_SEGMENTS


def test_two_dots_in_one_character_are_refused():
    assert refusal("/to/billing/%e2%80%a5/x") is DOT_SEGMENTS


def test_a_path_encoded_too_often_is_refused():
    assert resolve("/to/billing/" + "%25" + "25" * 5 + "61").endswith("61")
    assert refusal("/to/billing/" + "%25" + "25" * 9 + "61") is DOT_SEGMENTS


@pytest.mark.parametrize(
    "extra",
    [
        "/file..txt", "/...", "/..a", "/a..", "/.a", "/a.", "/a;b=c", "/a;..", "/v1%2e2", "/v1%252e2", "/~",
        "/~user/.ssh", "/.well-known/x", "/a;v=1.2;w=..", "/%2e%2e%2e", "/..%2e", "/x%20y", "/%20", "/%00", "/;a",
        "//", "/", "/%", "/%zz", "/100%25", "/%E2%82%AC.txt", "/a%2fb", "/a%5cb", "/1.2.3", "/-.-", "/.%2ex",
        "/%c3%a9..", "/@.", "/..=",
    ],
)  # fmt: skip
def test_an_ordinary_path_is_unchanged(extra):
    assert resolve("/to/billing" + extra + "?..=.") == "https://hooks.example.com/in" + extra + "?..=."


ORDINARY = st.text(alphabet="abcXYZ019-_~!$&'()*+,=:@", min_size=1, max_size=6)
NAMES = st.tuples(
    st.sampled_from(["", ".", "..", "...", "%2e", "%20", ";"]),
    ORDINARY,
    st.sampled_from(["", ".", "..", ";v=1.2", "%2E"]),
).map("".join)  # fmt: skip


@given(st.lists(NAMES, max_size=5))
def test_ordinary_names_are_unchanged(names):
    extra = "".join("/" + name for name in names)
    assert resolve("/to/billing" + extra) == "https://hooks.example.com/in" + extra


@pytest.mark.parametrize("url", ["/to/other", "/to/", "/to//billing", "/to/Billing", "/to/../billing", "/to/?x"])
def test_an_unknown_route_is_refused(url):
    assert refusal(url) is UNKNOWN_ROUTE


def test_a_header_names_the_target():
    assert resolve("/", TARGET) == TARGET


@pytest.mark.parametrize("url", ["/?x=1", "/?", "/other", "//"])
def test_with_the_header_the_url_must_be_empty(url):
    assert refusal(url, TARGET) is NO_TARGET


@pytest.mark.parametrize("url", ["/", "/hooks/7", "/to", "/?x=1", "/api.example.com/hooks", "http://127.0.0.1:8800/"])
def test_a_url_without_a_target_is_refused(url):
    assert refusal(url) is NO_TARGET


def test_a_refusal_without_a_target_shows_the_four_forms():
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
def test_two_different_targets_are_refused(url, header):
    assert refusal(url, header, proxy_hosts=["*"]) is TWO_TARGETS


def test_the_same_target_in_two_forms_is_accepted():
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
def test_the_proxy_form_names_its_target(url, ingest, target):
    assert resolve(url, **ingest) == target


@pytest.mark.parametrize(
    "ingest", [{}, {"proxy_hosts": ["other.test"]}, {"upgrade_to_https": ["*"]}, {"proxy_hosts": ["*.api.example.com"]}]
)  # fmt: skip
def test_the_proxy_form_is_for_listed_hosts_only(ingest):
    assert refusal("http://api.example.com/", **ingest) is NOT_PROXIED


@pytest.mark.parametrize(
    "authority", ["127.0.0.1:8800", "localhost:8800", "LOCALHOST:8800", "[::1]:8800", "gate.test:8800"]
)
def test_an_absolute_url_of_this_sidecar_is_read_as_origin_form(authority):
    assert resolve(f"http://{authority}/https://api.example.com/hooks/7?x=1", hosts=["gate.test"]) == TARGET
    assert resolve(f"http://{authority}/", TARGET, hosts=["gate.test"]) == TARGET


def test_only_the_proxy_form_is_upgraded_to_https():
    assert resolve("/http://h.test/", upgrade_to_https=["*"], proxy_hosts=["*"]) == "http://h.test/"


PIECES = st.lists(
    st.sampled_from(["/", ".", "..", "%2e", "%2E", "%2f", "%5c", "a", "?", "&", "//", ":", "@", "https://", "#", "é"])
    | st.sampled_from(["%25", "%09", "%00", ";", "%3b", "%c0%ae", "%ff"]),
    max_size=10,
).map("".join)  # fmt: skip


@given(PIECES)
def test_no_path_behind_a_route_leaves_it(extra):
    try:
        target = naming().resolve(b"/to/billing" + extra.encode(), None).target
    except Refused:
        return
    assert target.authority == "hooks.example.com"
    path = target.path.partition(b"?")[0].lower()
    assert path.startswith(b"/in")
    for _ in range(6):
        segments = path.replace(b"\\", b"/").split(b"/")
        readings = {segment.strip(b"\t\0 \xff") for segment in segments} | {
            each.partition(b";")[0] for each in segments
        }
        assert not {b".", b"..", b"\xc0\xae", b"\xc0\xae\xc0\xae"} & readings
        path = unquote_to_bytes(path)


@given(st.binary(max_size=48), st.none() | st.binary(max_size=48))
def test_random_bytes_never_crash(url, header):
    for before in (b"", b"/", b"/to/", b"/https:/", b"http://"):
        try:
            naming(proxy_hosts=["*"]).resolve(before + url, header)
        except Refused as refused:
            assert refused.status in (400, 404)
