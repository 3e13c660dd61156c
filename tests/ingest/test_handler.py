"""Ingest behind a real server: what is stored, and what is answered."""

import httpx
import pytest
import trio

from holdfast.core.errors import CommitFailed, StoreFull
from holdfast.core.message import id_text
from holdfast.http.request_response import Request
from holdfast.ingest import handler
from tests.ingest.gateway import NOW, gateway
from tests.support.harness import PLAIN

TARGET = "https://api.example.com/hooks/7?x=1"
ROUTES = {"hooks": {"url": "https://api.example.com/hooks"}}
PROXY = {"proxy_hosts": ["api.example.com"], "upgrade_to_https": ["api.example.com"]}


@pytest.mark.parametrize(
    ("url", "headers", "route"),
    [
        ("/https://api.example.com/hooks/7?x=1", (), None),
        ("/https:/api.example.com/hooks/7?x=1", (), None),
        ("/to/hooks/7?x=1", (), "hooks"),
        ("/", [("Holdfast-Target", TARGET)], None),
        ("http://api.example.com/hooks/7?x=1", (), None),
        ("http://127.0.0.1:{port}/https://api.example.com/hooks/7?x=1", (), None),
    ],
)
async def test_all_four_forms_store_the_same_message(url, headers, route):
    async with gateway({"routes": ROUTES, "ingest": PROXY}) as running:
        answer = await running.post(url.format(port=running.port), [*headers, ("Content-Type", "text/plain")], b"hello")
    message = running.message
    assert answer.status == 202
    assert answer.json == {"id": id_text(message.id), "target": TARGET, "state": "queued"}
    assert answer.header("holdfast-message-id") == id_text(message.id)
    assert answer.header("content-type") == "application/json"
    assert answer.header("holdfast-duplicate") is None
    assert (message.lane, message.host) == ("api.example.com:443", "api.example.com:443")
    assert (message.scheme, message.authority, message.path) == ("https", "api.example.com", b"/hooks/7?x=1")
    assert (message.method, message.body, message.route) == ("POST", b"hello", route)
    assert message.headers == ((b"content-type", b"text/plain"),)
    assert (message.accepted_at, message.born) == (NOW, NOW)
    assert running.refusals == []


async def test_httpx_sends_by_prefix_and_in_proxy_form():
    async with gateway({"ingest": PROXY}) as running:
        here = f"http://127.0.0.1:{running.port}"
        async with httpx.AsyncClient(**PLAIN) as client:
            prefixed = await client.post(f"{here}/{TARGET}", json={"a": 1})
        async with httpx.AsyncClient(**PLAIN, proxy=here) as client:
            proxied = await client.post("http://api.example.com/hooks/7?x=1", json={"a": 1})
    assert prefixed.json()["target"] == proxied.json()["target"] == TARGET
    one, other = running.messages
    assert one.body == other.body
    assert one.headers == other.headers


async def test_a_header_may_name_an_international_host():
    async with gateway() as running:
        answer = await running.post("/", [("Holdfast-Target", "https://éxample.com/")])
    assert answer.json["target"] == "https://xn--xample-9ua.com/"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("body", [b"", bytes(range(256)) * 8, b"\r\n\r\nPOST / HTTP/1.1\r\n\r\n"])
async def test_method_and_body_are_kept(method, body):
    async with gateway() as running:
        answer = await running.post("/" + TARGET, body=body, method=method)
    assert answer.status == 202
    assert (running.message.method, running.message.body) == (method, body)


async def test_a_chunked_body_is_kept_whole():
    raw = (
        b"POST /https://h.test/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    )
    async with gateway() as running:
        assert (await running.send(raw)).status == 202
    assert (running.message.body, running.message.headers) == (b"abcde", ())


async def test_headers_are_forwarded_or_not():
    headers = [
        ("Authorization", "Bearer receiver"),
        ("Cookie", "a=1"),
        ("Holdfast-Delay", "0s"),
        ("Proxy-Authorization", "Bearer x"),
        ("Keep-Alive", "5"),
        ("Connection", "X-Hop"),
        ("X-Hop", "1"),
        ("Idempotency-Key", "k"),
        ("Cookie", "b=2"),
        ("webhook-id", "evt_7"),
    ]
    async with gateway() as running:
        await running.post("/" + TARGET, headers)
    assert running.message.headers == (
        (b"authorization", b"Bearer receiver"),
        (b"cookie", b"a=1"),
        (b"idempotency-key", b"k"),
        (b"cookie", b"b=2"),
        (b"webhook-id", b"evt_7"),
    )


async def test_a_routes_headers_replace_the_apps():
    routes = {"billing": {"url": "https://h.test/in", "headers": {"X-Team": "billing"}}}
    async with gateway({"routes": routes}) as running:
        await running.post("/to/billing", [("x-team", "app"), ("x-a", "1")])
        await running.post("/https://h.test/in", [("x-team", "app")])
    by_route, by_prefix = running.messages
    assert by_route.headers == ((b"x-a", b"1"), (b"x-team", b"billing"))
    assert by_prefix.headers == ((b"x-team", b"app"),)


async def test_a_lane_may_be_a_url():
    async with gateway({"circuit": {"url_hosts": ["api.example.com"]}}) as running:
        await running.post("/" + TARGET)
    assert (running.message.lane, running.message.host) == (
        "https://api.example.com/hooks/7",
        "api.example.com:443",
    )


@pytest.mark.parametrize("status", [200, 201, 202, 204])
async def test_the_response_has_the_configured_status(status):
    async with gateway({"ingest": {"ack_status": status}}) as running:
        for duplicate in (None, "true"):
            answer = await running.post("/" + TARGET, [("Idempotency-Key", "k")])
            assert answer.status == status
            assert answer.header("holdfast-message-id") == id_text(running.message.id)
            assert answer.header("holdfast-duplicate") == duplicate
            if status == 204:
                assert (answer.body, answer.header("content-length")) == (b"", None)
                assert answer.header("content-type") is None
            else:
                assert answer.json["id"] == id_text(running.message.id)
                assert answer.header("content-length") == str(len(answer.body))


async def test_a_target_with_quotes_is_escaped_in_the_answer():
    async with gateway() as running:
        answer = await running.post('/https://h.test/"a"?{"b":1}')
    assert answer.json["target"] == 'https://h.test/"a"?{"b":1}'
    assert running.message.path == b'/"a"?{"b":1}'


async def test_a_repeated_key_is_a_duplicate_or_a_conflict():
    async with gateway() as running:
        key = [("Idempotency-Key", "k-1")]
        first = await running.post("/" + TARGET, key, b"one")
        again = await running.post("/", [*key, ("Holdfast-Target", TARGET)], b"one")
        other_body = await running.post("/" + TARGET, key, b"two")
        other_target = await running.post("/" + TARGET + "1", key, b"one")
        other_method = await running.post("/" + TARGET, key, b"one", method="PUT")
    assert first.header("holdfast-duplicate") is None
    assert (again.status, again.header("holdfast-duplicate"), again.body) == (202, "true", first.body)
    assert (other_body.status, other_body.slug) == (422, "idempotency-key-reused")
    assert (other_target.status, other_method.status) == (202, 202)
    assert len(running.messages) == 3


async def test_a_key_counts_for_one_route_only():
    """An unsigned webhook to the same URL must not make that of a signed route a duplicate."""
    sign = {"scheme": "standard-webhooks", "secret_env": "SECRET"}
    routes = {"signed": {"url": "https://h.test/in", "sign": sign}, "plain": {"url": "https://h.test/in"}}
    ways = ("/https://h.test/in", "/to/signed", "/to/plain")
    async with gateway({"routes": routes}) as running:
        key = [("Idempotency-Key", "k-1")]
        first = [await running.post(way, key) for way in ways]
        again = [await running.post(way, key) for way in ways]
        with_header = await running.post("/to/signed", [*key, ("Holdfast-Target", "https://h.test/in")])
        assert (await running.post("/to/signed", key, b"another")).slug == "idempotency-key-reused"
    assert [answer.header("holdfast-duplicate") for answer in first] == [None] * 3
    assert [answer.header("holdfast-duplicate") for answer in again] == ["true"] * 3
    assert [answer.body for answer in again] == [answer.body for answer in first]
    assert with_header.body == first[1].body
    assert [(message.route, message.signed) for message in running.messages] == [
        (None, False),
        ("signed", True),
        ("plain", False),
    ]


async def test_a_delay_moves_the_first_attempt():
    async with gateway() as running:
        await running.post("/" + TARGET, [("Holdfast-Delay", "30s")])
    assert (running.message.accepted_at, running.message.born) == (NOW, NOW + 30_000)
    assert running.message.headers == ()


async def test_ids_grow_in_the_order_of_acceptance():
    # Calls the handler directly, all in one pass of the scheduler: a pause after minting would change the order.
    async with gateway() as running:
        request = Request("POST", f"/{TARGET}".encode(), [], b"", ("127.0.0.1", running.port))
        for answer in [running.ingest(request) for _ in range(24)]:
            await answer
    ids = [message.id for message in running.messages]
    assert len(set(ids)) == 24
    assert ids == sorted(ids)


REFUSED = [
    ("/", [], 400, "no-target"),
    ("/hooks", [], 400, "no-target"),
    ("/ftp://h.test/", [], 400, "bad-target"),
    ("/https://u:p@h.test/", [], 400, "bad-target"),
    ("/https://0x7f.1/", [], 400, "bad-target"),
    ("/", [("Holdfast-Target", "https://127。0。0。1/")], 400, "bad-target"),
    ("/https://h.test/", [("Holdfast-Target", "https://i.test/")], 400, "two-targets"),
    ("/to/billing/%2e%2e/x", [], 400, "dot-segments"),
    ("/" + TARGET, [("Idempotency-Key", "k" * 256)], 400, "bad-idempotency-key"),
    ("/" + TARGET, [("Idempotency-Key", "")], 400, "bad-idempotency-key"),
    ("/" + TARGET, [("Idempotency-Key", "a"), ("Idempotency-Key", "b")], 400, "bad-idempotency-key"),
    ("/http://127.0.0.1/", [], 403, "egress-denied"),
    ("/http://[::1]/", [], 403, "egress-denied"),
    ("/https://h.test:22/", [], 403, "egress-denied"),
    ("/" + TARGET, [("Origin", "https://evil.test")], 403, "browser"),
    ("/" + TARGET, [("Sec-Fetch-Site", "cross-site")], 403, "browser"),
    ("http://api.example.com/", [], 403, "not-proxied"),
    ("/to/other", [], 404, "unknown-route"),
    ("/" + TARGET, [("Holdfast-Delay", "soon")], 422, "bad-delay"),
    ("/" + TARGET, [("Holdfast-Delay", "31d")], 422, "bad-delay"),
]


@pytest.mark.parametrize(("url", "headers", "status", "slug"), REFUSED)
async def test_refusals_are_problems_and_store_nothing(url, headers, status, slug):
    async with gateway({"routes": {"billing": {"url": "https://h.test/in"}}}) as running:
        answer = await running.post(url, headers)
    assert (answer.status, answer.slug) == (status, slug)
    assert running.messages == []
    assert running.refusals == [slug]


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "CONNECT"])
async def test_other_methods_get_405(method):
    async with gateway() as running:
        answer = await running.post("h.test:443" if method == "CONNECT" else "/" + TARGET, method=method, body=b"")
    assert (answer.status, answer.header("allow")) == (405, "POST, PUT, PATCH, DELETE")
    assert running.refusals == ["wrong-method"]
    assert method != "CONNECT" or "upgrade_to_https" in answer.json["detail"]


async def test_a_host_that_is_not_this_sidecar_is_refused():
    async with gateway() as running:
        answer = await running.post("/" + TARGET, host="rebound.evil.test")
    assert (answer.status, answer.slug, running.messages) == (403, "wrong-host", [])


async def test_host_is_ignored_in_absolute_form():
    async with gateway({"ingest": {"proxy_hosts": ["*"]}}) as running:
        answer = await running.post("http://api.example.com/a", host="other.test")
    assert answer.json["target"] == "http://api.example.com/a"


async def test_a_request_needs_the_token_if_one_is_set():
    async with gateway({"ingest": {"proxy_hosts": ["*"]}}, token=b"s3cret") as running:
        none = await running.post("/" + TARGET)
        wrong = await running.post("/" + TARGET, [("Holdfast-Token", "guess")])
        right = await running.post("/" + TARGET, [("Holdfast-Token", "s3cret")], host="any.test")
        proxied = await running.post("http://h.test/", [("Proxy-Authorization", "Bearer s3cret")])
    assert (none.slug, wrong.slug) == ("wrong-token", "wrong-token")
    assert (none.status, right.status, proxied.status) == (403, 202, 202)
    assert [message.headers for message in running.messages] == [(), ()]


async def test_the_gate_refuses_before_the_body_is_read():
    async with gateway() as running:
        head = f"POST /{TARGET} HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\nContent-Length: 100\r\n\r\n"
        with trio.fail_after(30):
            async with await trio.open_tcp_stream("127.0.0.1", running.port) as stream:
                await stream.send_all(head.encode())
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 403 ")


async def test_a_denied_target_is_refused_unless_a_route_names_it():
    async with gateway({"routes": {"inside": {"url": "http://10.0.0.7:9000/in"}}}) as running:
        denied = await running.post("/http://10.0.0.7:9000/in")
        by_route = await running.post("/to/inside")
        still_denied = await running.post("/http://10.0.0.7:9000/in")
    assert denied.json["detail"] == "10.0.0.7 is a private address; open it in egress.allow."
    assert (denied.status, by_route.status, still_denied.status) == (403, 202, 403)


@pytest.mark.parametrize(
    ("failure", "status", "slug", "word"),
    [
        (StoreFull("no space is left"), 507, "store-full", "no space is left"),
        (CommitFailed("the disk failed"), 503, "store-failed", "Idempotency-Key"),
    ],
)
async def test_a_store_that_fails_gets_503_or_507(failure, status, slug, word):
    async with gateway() as running:
        running.engine.fail_next.append(failure)
        answer = await running.post("/" + TARGET)
    assert (answer.status, answer.slug) == (status, slug)
    assert int(answer.header("retry-after")) > 0
    assert word in answer.json["detail"]
    assert (running.messages, running.refusals) == ([], [slug])


async def test_a_host_over_its_share_of_the_store_gets_507():
    async with gateway({"store": {"max_size": "8MiB", "host_share": 0.001}}) as running:
        taken = await running.post("/" + TARGET)
        refused = await running.post("/" + TARGET, body=b"x" * 4096)
        other_host = await running.post("/https://other.test/")
    assert (taken.status, refused.status, other_host.status) == (202, 507, 202)
    assert refused.slug == "host-share-used"
    assert int(refused.header("retry-after")) > 0
    assert "store.host_share" in refused.json["detail"]


async def test_a_cached_target_header_does_not_affect_other_requests():
    async with gateway() as running:
        for target in (TARGET, "https://other.test/", TARGET):
            answer = await running.post("/", [("Holdfast-Target", target)])
            assert answer.json["target"] == target
        assert (await running.post("/")).slug == "no-target"


@pytest.mark.parametrize("url", ["https://h.test/{}", "https://h.test/{}" + "x" * 2000])
async def test_the_cache_of_targets_is_bounded(monkeypatch, url):
    monkeypatch.setattr(handler, "MAX_DESTINATIONS", 2)
    judged = []
    async with gateway(judge=lambda host, port, route: judged.append(host)) as running:
        for number in (0, 0, 1, 2, 0):
            answer = await running.post("/" + url.format(number))
            assert answer.json["target"] == url.format(number)
    remembered = len(url) < 1000
    assert len(judged) == (4 if remembered else 5)
