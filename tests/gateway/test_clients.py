"""Every form of naming a target, by real clients: the receiver gets what the app sent."""

import json
import os
import shutil
import subprocess

import pytest
import requests

from tests.support.harness import PATIENCE, Gateway, Received, Receiver

PATH = "/hooks/7/%C3%A4?x=1&y=%20&empty="
BODY = bytes(range(256)) * 5
HEADERS = {"content-type": "application/octet-stream", "x-team": "billing", "authorization": "Bearer for-the-receiver"}
STAYS_HERE = {"holdfast-target", "proxy-connection", "proxy-authorization", "connection", "keep-alive", "te"}


def check(received: Received, *, method: str = "POST", body: bytes = BODY, path: str = PATH) -> None:
    assert received.method == method
    assert received.path == path
    assert received.body == body
    for name, value in HEADERS.items():
        assert received.headers[name] == value
    assert received.headers["webhook-id"].startswith("msg_")
    assert not STAYS_HERE & set(received.headers)


def curl(*arguments: str, body: bytes | None = BODY) -> str:
    headers = [part for name, value in HEADERS.items() for part in ("-H", f"{name}: {value}")]
    data = ["--data-binary", "@-"] if body is not None else []
    command = ["curl", "-sS", "--fail-with-body", *headers, *data, *arguments]
    done = subprocess.run(command, input=body, capture_output=True, timeout=PATIENCE, check=True)
    return str(json.loads(done.stdout)["id"])


needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not on this machine")
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not on this machine")


@pytest.mark.usefixtures("processes")
@needs_curl
def test_curl_with_the_url_prefixed(gateway: Gateway, receiver: Receiver) -> None:
    id = curl(f"http://{gateway.ingest}/{receiver.url}{PATH}")
    received = receiver.wait_for_one()
    check(received)
    assert received.id == id


@needs_curl
def test_curl_with_a_collapsed_slash(gateway: Gateway, receiver: Receiver) -> None:
    curl(f"http://{gateway.ingest}/http:/127.0.0.1:{receiver.port}{PATH}")
    check(receiver.wait_for_one())


@needs_curl
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_curl_with_the_target_in_a_header(gateway: Gateway, receiver: Receiver, method: str) -> None:
    curl("-X", method, "-H", f"Holdfast-Target: {receiver.url}{PATH}", f"http://{gateway.ingest}/")
    check(receiver.wait_for_one(), method=method)


@pytest.mark.usefixtures("processes")
@needs_curl
def test_curl_through_http_proxy(gateway: Gateway, receiver: Receiver) -> None:
    curl("--noproxy", "", "-x", f"http://{gateway.ingest}", f"{receiver.url}{PATH}")
    received = receiver.wait_for_one()
    check(received)
    assert received.headers["host"] == f"127.0.0.1:{receiver.port}"


@needs_curl
def test_an_empty_body_stays_empty(gateway: Gateway, receiver: Receiver) -> None:
    curl("-X", "POST", f"http://{gateway.ingest}/{receiver.url}{PATH}", body=None)
    check(receiver.wait_for_one(), body=b"")


@pytest.mark.usefixtures("processes")
def test_requests_with_the_url_prefixed(gateway: Gateway, receiver: Receiver) -> None:
    answer = requests.post(
        f"http://{gateway.ingest}/{receiver.url}{PATH}", data=BODY, headers=HEADERS, timeout=PATIENCE
    )
    assert answer.status_code == 202
    assert answer.json()["state"] == "queued"
    assert answer.headers["holdfast-message-id"] == answer.json()["id"]
    check(receiver.wait_for_one())


def test_requests_through_http_proxy(gateway: Gateway, receiver: Receiver) -> None:
    with requests.Session() as session:
        session.trust_env = False
        session.proxies = {"http": f"http://{gateway.ingest}"}
        answer = session.post(f"{receiver.url}{PATH}", data=BODY, headers=HEADERS, timeout=PATIENCE)
    assert answer.status_code == 202
    check(receiver.wait_for_one())


@pytest.mark.usefixtures("processes")
def test_a_chunked_body_arrives_whole(gateway: Gateway, receiver: Receiver) -> None:
    pieces = (BODY[start : start + 100] for start in range(0, len(BODY), 100))
    url = f"http://{gateway.ingest}/{receiver.url}{PATH}"
    assert requests.post(url, data=pieces, headers=HEADERS, timeout=PATIENCE).status_code == 202
    check(receiver.wait_for_one())


@needs_node
def test_fetch_of_node(gateway: Gateway, receiver: Receiver) -> None:
    script = """
    const body = Buffer.from(Array.from({length: 1280}, (_, i) => i % 256));
    fetch(process.env.URL_TO_USE, {method: "POST", body, headers: JSON.parse(process.env.HEADERS_TO_USE)})
      .then(async (answer) => { console.log(answer.status); process.exit(answer.status === 202 ? 0 : 1); });
    """
    environment = os.environ | {
        "URL_TO_USE": f"http://{gateway.ingest}/{receiver.url}{PATH}",
        "HEADERS_TO_USE": json.dumps(HEADERS),
    }
    subprocess.run(["node", "-e", script], env=environment, timeout=PATIENCE, check=True)
    check(receiver.wait_for_one())
