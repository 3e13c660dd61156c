"""Invalid requests are refused clearly, in the same way with every store, and do no harm."""

from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest

from tests.support.harness import PLAIN, Gateway, running

NAMES = ["%00", "a%00b", "%01", "%7f", "%0a", "%ff", "%ed%a0%80", "%c3%a9", "x%20y", "x" * 401, "x" * 4_000]
TEXTS = ["\0", "a\0b", "\ud800", "\n", "é", "x" * 401, ["x"], {"x": 1}, 7, True]


@pytest.fixture(scope="module", params=["embedded", "postgres"])
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    store = tmp_path_factory.mktemp("asked") / "store"
    if request.param == "embedded":
        with running(store) as gateway:
            yield gateway
        return
    postgres = request.getfixturevalue("postgres")
    database = postgres.lend()
    with running(store, store__url=database) as gateway:
        yield gateway
    postgres.take_back(database)


def is_well(gateway: Gateway) -> bool:
    log = gateway.log.read_text()
    return gateway.get("/readyz").status_code == 200 and "Traceback" not in log and "store_failed" not in log


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:9])
def test_unknown_and_invalid_names_are_refused(asked: Gateway, name: str) -> None:
    reads = [f"circuits/{name}", f"messages/{name}", f"circuits?after={name}", f"circuits?state={name}"]
    answers = [asked.get(f"/{path}") for path in reads]
    reads += [f"messages?{key}={name}" for key in ("host", "after", "state", "limit")]
    reads += [f"dead/export?{key}={name}" for key in ("host", "since", "until", "reason", name)]
    answers += [asked.call("GET", f"/v1/{path}") for path in reads]
    answers += [asked.call("POST", f"/v1/circuits/{name}/{act}") for act in ("freeze", "unfreeze", "probe")]
    answers += [asked.call("POST", f"/v1/messages/{name}/retry"), asked.call("DELETE", f"/v1/messages/{name}")]
    assert {answer.status_code for answer in answers} <= {400, 404}
    assert all(answer.headers["content-type"] == "application/problem+json" for answer in answers)
    assert is_well(asked)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text)[:9])
def test_invalid_filters_are_refused(asked: Gateway, text: object) -> None:
    calls = [("messages/drop", key) for key in ("host", "before", "state", "limit")]
    calls += [(f"dead/{act}", key) for act in ("replay", "drop") for key in ("host", "since", "until", "reason", "x")]
    answers = {
        (path, key): asked.call("POST", f"/v1/{path}", {key: text})
        for path, key in calls
        if (key, text) != ("limit", 7)
    }
    assert {answer.status_code for answer in answers.values()} <= {400, 404}, answers
    assert is_well(asked)


@pytest.mark.parametrize("body", [b"[" * 990, b"[" * 50_000, b'{"host":' * 6_000, b"\xff", b"{", b"9" * 5_000, b"NaN"])
def test_a_body_that_is_not_an_object_is_refused(asked: Gateway, body: bytes) -> None:
    transport = httpx.HTTPTransport(uds=str(asked.control), verify=False)
    with httpx.Client(transport=transport) as client:
        answers = [client.post(f"http://holdfast/v1/{path}", content=body) for path in ("dead/drop", "reload", "drain")]
        assert {answer.status_code for answer in answers} == {400}
        assert client.request("GET", "http://holdfast/v1/status", content=body).status_code == 200
    assert is_well(asked)


@pytest.mark.parametrize("path", ["/status", "/circuits", "/healthz", "/metrics", "/"])
def test_read_only_listeners_refuse_bodies(asked: Gateway, path: str) -> None:
    for body in (b"[" * 990, b"no JSON", b'{"limit": 0}'):
        assert httpx.request("GET", f"http://{asked.status}{path}", content=body, **PLAIN).status_code == 413
    assert is_well(asked)


def test_a_very_long_key_is_unknown_to_every_store(asked: Gateway) -> None:
    longest = quote("https://" + "h" * 385 + "/x", safe="")
    assert asked.get(f"/circuits/{longest}").status_code == 404
    assert is_well(asked)
