"""Who may send requests, and which headers are forwarded: browsers, rebound names, the token."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.hostile import Caller, RawReceiver, accepted, raw_client, rest, say, statuses
from tests.support import fork_server
from tests.support.harness import PATIENCE, Gateway, Receiver, running, settings, until

Wire = tuple[RawReceiver, list[tuple[bytes, bytes]]]
TOKEN = "t0ken-of-the-app"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, processes: int) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("doors") / "store") as gateway:
        yield gateway


def post(gateway: Gateway, target: str, *fields: str, method: str = "POST", host: str | None = None) -> bytes:
    """One request as bytes, and all that is said to it."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host or gateway.ingest}", *fields, "Connection: close"]
    return say(gateway.ingest, "\r\n".join([*lines, "Content-Length: 2", "", "{}"]).encode())


# -- browsers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field",
    [
        "Origin: https://evil.test",
        "Origin: null",
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Site: same-site",
        "Sec-Fetch-Site: same-origin",
    ],
)
@pytest.mark.parametrize("form", ["/{}/hook", "{}/hook"])
def test_a_browsers_post_is_refused_and_nothing_is_stored(
    gateway: Gateway, receiver: Receiver, field: str, form: str
) -> None:
    """As a page can send it without asking first: a plain POST of text."""
    before = accepted(gateway)
    said = post(gateway, form.format(receiver.url), field, "Content-Type: text/plain")
    assert statuses(said) == [403]
    assert b"problem:browser" in said
    assert b"access-control-" not in said.lower()
    assert accepted(gateway) == before
    assert not receiver.requests


def test_a_cors_preflight_is_refused(gateway: Gateway, receiver: Receiver) -> None:
    before = accepted(gateway)
    wishes = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: holdfast-target")
    for fields in (("Origin: https://evil.test", *wishes), wishes):
        said = post(gateway, f"/{receiver.url}/hook", *fields, method="OPTIONS")
        assert statuses(said)[0] in (403, 405)
        assert b"access-control-" not in said.lower()
    assert accepted(gateway) == before


@pytest.mark.parametrize("fields", [("Sec-Fetch-Site: none",), ("Sec-Fetch-Mode: cors",), ("Referer: http://a.test/",)])
def test_requests_of_server_software_are_accepted(
    gateway: Gateway, receiver: Receiver, fields: tuple[str, ...]
) -> None:
    assert statuses(post(gateway, f"/{receiver.url}/hook", *fields)) == [202]
    receiver.wait_for_one()


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not on this machine")
def test_fetch_of_node_is_accepted(gateway: Gateway, receiver: Receiver) -> None:
    script = "fetch(process.env.TO, {method: 'POST', body: '{}'}).then((it) => process.exit(it.status === 202 ? 0 : 1))"
    environment = os.environ | {"TO": f"http://{gateway.ingest}/{receiver.url}/hook"}
    subprocess.run(["node", "-e", script], env=environment, timeout=PATIENCE, check=True)
    assert receiver.wait_for_one().headers["sec-fetch-mode"] == "cors"


@pytest.mark.parametrize("host", ["evil.test", "evil.test:{port}", "localhost.evil.test:{port}", "127.0.0.1.evil.test"])
def test_a_rebound_name_is_refused_at_both_listeners(gateway: Gateway, receiver: Receiver, host: str) -> None:
    before = accepted(gateway)
    name = host.format(port=gateway.ingest.rpartition(":")[2])
    said = post(gateway, f"/{receiver.url}/hook", host=name)
    assert statuses(said) == [403]
    assert b"problem:wrong-host" in said
    name = host.format(port=gateway.status.rpartition(":")[2])
    for path in ("/", "/status", "/metrics", "/healthz", "/circuits", "/page.json"):
        raw = f"GET {path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode()
        assert statuses(say(gateway.status, raw)) == [403]
    assert accepted(gateway) == before
    assert not receiver.requests


FROM_ELSEWHERE = {
    "an image": ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image"),
    "a page of another port": ("Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty"),
    "a frame": ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"),
    "another origin": ("Origin: https://evil.test",),
    "an origin that says the same name": ("Origin: http://{status}.evil.test",),
    "no origin at all": ("Origin: null",),
}
FROM_HERE = {
    "a program": (),
    "a typed address": ("Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"),
    "a link elsewhere": ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"),
    "the page itself": ("Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty"),
    "its own origin": ("Origin: http://{status}",),
}


def look(gateway: Gateway, path: str, fields: tuple[str, ...]) -> bytes:
    lines = [f"GET {path} HTTP/1.1", f"Host: {gateway.status}", *fields, "Connection: close", "", ""]
    return say(gateway.status, "\r\n".join(lines).format(status=gateway.status).encode())


@pytest.mark.parametrize("path", ["/", "/status", "/circuits", "/metrics"])
def test_the_status_listener_does_not_answer_pages_of_other_sites(gateway: Gateway, path: str) -> None:
    for name, fields in FROM_ELSEWHERE.items():
        said = look(gateway, path, fields)
        assert (name, statuses(said)) == (name, [403])
        assert b"problem:cross-site" in said
    for name, fields in FROM_HERE.items():
        said = look(gateway, path, fields)
        assert (name, statuses(said)) == (name, [200])
        assert b"cross-origin-resource-policy: same-origin\r\n" in said
        assert b"x-content-type-options: nosniff\r\n" in said
        assert b"access-control-" not in said.lower()


# -- the token --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, processes: int) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "token").write_text(TOKEN + "\n")
    with running(folder / "store", ingest__token_file=folder / "token") as gateway:
        yield gateway


@pytest.mark.parametrize(
    "fields",
    [
        (),
        ("Holdfast-Token: wrong",),
        (f"Holdfast-Token: {TOKEN}x",),
        (f"Holdfast-Token: {TOKEN[:-1]}",),
        (f"Authorization: Bearer {TOKEN}",),
        ("Holdfast-Token: wrong", f"Holdfast-Token: {TOKEN}"),
    ],
)
def test_without_the_token_nothing_is_stored(guarded: Gateway, receiver: Receiver, fields: tuple[str, ...]) -> None:
    before = accepted(guarded)
    for target in (f"/{receiver.url}/hook", f"{receiver.url}/hook"):
        said = post(guarded, target, *fields)
        assert statuses(said) == [403]
        assert b"problem:wrong-token" in said
        assert TOKEN.encode() not in said
    assert accepted(guarded) == before


@pytest.mark.parametrize(
    ("target", "field"),
    [
        ("/{}/hook", f"Holdfast-Token: {TOKEN}"),
        ("{}/hook", f"Holdfast-Token: {TOKEN}"),
        ("{}/hook", f"Proxy-Authorization: Bearer {TOKEN}"),
    ],
)
def test_the_token_opens_and_is_never_forwarded(guarded: Gateway, receiver: Receiver, target: str, field: str) -> None:
    assert statuses(post(guarded, target.format(receiver.url), field, "Authorization: Bearer for-them")) == [202]
    received = receiver.wait_for_one()
    assert received.headers["authorization"] == "Bearer for-them"
    assert TOKEN not in json.dumps(dict(received.headers))


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:8800"])
def test_beyond_loopback_a_token_is_needed(tmp_path: Path, address: str) -> None:
    environment = settings(tmp_path / "store", listen__ingest=address)
    done = fork_server.run("run", env=environment)
    assert done.returncode == 2
    assert "listen.ingest" in done.stderr and "ingest.token_file" in done.stderr
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(("address", "is_told"), [("0.0.0.0:0", True), ("127.0.0.1:0", False), ("localhost:0", False)])
def test_a_status_listener_beyond_loopback_is_logged(tmp_path: Path, address: str, is_told: bool) -> None:
    """A probe listener is meant for other machines."""
    with running(tmp_path / "store", listen__status=address, listen__probe="0.0.0.0:0") as gateway:
        told = [event for event in gateway.events() if event["event"] == "status_exposed"]
        assert [(event["level"], event["status"]) for event in told] == [("warning", address)] * is_told


# -- headers on the wire ----------------------------------------------------------------------------------------------


@pytest.fixture
def wire() -> Iterator[Wire]:
    """A receiver that keeps what it got as it was sent."""
    got: list[tuple[bytes, bytes]] = []

    def script(caller: Caller) -> None:
        while (request := caller.request())[0]:
            got.append(request)
            caller.say(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    receiver = RawReceiver(script)
    yield receiver, got
    receiver.close()


def sent_on(gateway: Gateway, wire: Wire, raw: bytes) -> tuple[str, bytes]:
    """The head and the body that arrive when these bytes, with the target filled in, are sent."""
    receiver, got = wire
    said = say(gateway.ingest, raw.replace(b"TARGET", receiver.url.encode()).replace(b"HERE", gateway.ingest.encode()))
    assert statuses(said)[-1] == 202, said
    (id,) = {line.split(b": ")[1].decode() for line in said.split(b"\r\n") if line.startswith(b"holdfast-message-id")}
    until(lambda: gateway.message(id)["state"] == "delivered")
    (head, body) = got[-1]
    return head.decode("latin-1"), body


def names(head: str) -> list[str]:
    return [line.partition(":")[0] for line in head.split("\r\n")[1:] if line]


def test_hop_by_hop_headers_are_not_forwarded(gateway: Gateway, wire: Wire) -> None:
    raw = (
        b"POST /TARGET/hook HTTP/1.1\r\nHost: HERE\r\nX-First: 1\r\n"
        b"Connection: close, X-Named ,x-OTHER\r\nX-Named: a\r\nX-Other: b\r\nConnection: X-Third\r\nX-Third: c\r\n"
        b"Keep-Alive: timeout=5\r\nTE: trailers\r\nTrailer: X-Sum\r\nUpgrade: h2c\r\n"
        b"Proxy-Authorization: Basic eDp5\r\nProxy-Connection: keep-alive\r\nProxy-Anything: x\r\n"
        b"Holdfast-Delay: 0s\r\nHoldfast-Token: x\r\nHoldfast-Anything: y\r\nHOLDFAST-Loud: z\r\n"
        b"Transfer-Encoding: chunked\r\nX-Last: \xe9\r\n\r\n"
        b"2;ext=1\r\n{}\r\n0\r\nX-Sum: 1\r\nHost: evil.test\r\nContent-Length: 99\r\nAuthorization: x\r\n\r\n"
    )
    head, body = sent_on(gateway, wire, raw)
    assert body == b"{}"
    assert names(head) == ["host", "x-first", "x-last", "webhook-id", "user-agent", "content-length"]
    assert head.startswith("POST /hook HTTP/1.1\r\n")
    assert f"host: 127.0.0.1:{wire[0].port}\r\n" in head
    assert "x-last: \xe9\r\n" in head
    assert "content-length: 2\r\n" in head


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        (b"", None),
        (b"Webhook-Id: mine-1\r\n", "mine-1"),
        (b"Webhook-Id: mine-1\r\nwebhook-id: mine-2\r\n", None),
        (b"Webhook-Id: mine-1\r\nwebhook-id: mine-1\r\n", None),
        (b"Webhook-Id: a b\r\n", None),
        (b"Webhook-Id:\r\n", None),
        (b"Webhook-Id: " + b"x" * 256 + b"\r\n", None),
        (b"Connection: webhook-id\r\nWebhook-Id: mine-1\r\n", None),
    ],
)
def test_exactly_one_webhook_id_arrives(gateway: Gateway, wire: Wire, fields: bytes, kept: str | None) -> None:
    raw = b"POST /TARGET/ HTTP/1.1\r\nHost: HERE\r\nConnection: close\r\n" + fields + b"Content-Length: 2\r\n\r\n{}"
    head, _ = sent_on(gateway, wire, raw)
    (id,) = [line.partition(": ")[2] for line in head.split("\r\n") if line.startswith("webhook-id")]
    assert id == kept if kept else id.startswith("msg_")


def test_expect_is_answered_by_the_gateway(gateway: Gateway, wire: Wire) -> None:
    """The client waits for leave before it sends the body; the receiver hears nothing of that."""
    receiver, got = wire
    head = f"POST /{receiver.url}/ HTTP/1.1\r\nHost: {gateway.ingest}\r\nConnection: close\r\nContent-Length: 2\r\n"
    with raw_client(gateway.ingest) as sock:
        sock.sendall(head.encode() + b"Expect: 100-continue\r\n\r\n")
        assert sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"{}")
        assert statuses(rest(sock)) == [202]
    with raw_client(gateway.ingest) as sock:
        sock.sendall(head.encode() + b"Origin: http://evil.test\r\nExpect: 100-continue\r\n\r\n")
        assert statuses(rest(sock)) == [403]
    until(lambda: got)
    assert "expect" not in names(got[0][0].decode())


def test_in_absolute_form_the_host_header_is_ignored(gateway: Gateway, wire: Wire) -> None:
    raw = b"POST TARGET/hook HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    head, _ = sent_on(gateway, wire, raw)
    assert f"host: 127.0.0.1:{wire[0].port}\r\n" in head
    assert "evil.test" not in head
