"""docs/control-api.json against the real answers: each call is made, and its answer matches the description."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import jsonschema
import pytest

from tests.support.harness import PATIENCE, Gateway, Receiver, running, until

DESCRIPTION = json.loads((Path(__file__).parents[2] / "docs" / "control-api.json").read_text())
UNKNOWN = "msg_" + "0" * 32


def validate(document: object, schema: dict[str, Any]) -> None:
    whole = {**schema, "components": DESCRIPTION["components"]}
    jsonschema.Draft202012Validator(whole).validate(document)


def check(answer: httpx.Response, path: str, method: str) -> Any:
    """The answer is one that the description has for this call; returns its document."""
    described = DESCRIPTION["paths"][path][method.lower()]["responses"]
    assert str(answer.status_code) in described, f"{method} {path} answered {answer.status_code}: {answer.text}"
    ((kind, content),) = described[str(answer.status_code)]["content"].items()
    assert answer.headers["content-type"] == kind
    validate(answer.json(), content["schema"])
    return answer.json()


class Caller:
    """Calls by the paths of the description, and remembers which were made."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.made: set[tuple[str, str, int]] = set()

    def __call__(self, method: str, path: str, name: str = "", body: object = None, query: str = "") -> Any:
        filled = path.replace("{key}", quote(name, safe="")).replace("{id}", name) + query
        answer = self.gateway.call(method, filled, body)
        self.made.add((method.lower(), path, answer.status_code))
        return check(answer, path, method)


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    rules = {"circuit__min_attempts": 3, "retry__max_retries": 1, "retry__base": "1h"}
    with running(tmp_path_factory.mktemp("api") / "store", **rules) as gateway:
        yield Caller(gateway)


@contextmanager
def receiving(status: int) -> Iterator[Receiver]:
    receiver = Receiver()
    receiver.answer = lambda request: status
    try:
        yield receiver
    finally:
        receiver.close()


def send(call: Caller, receiver: Receiver, state: str, path: str = "/hook") -> str:
    id = str(call.gateway.post(receiver.url + path).json()["id"])
    until(lambda: call.gateway.message(id)["state"] == state)
    return id


def test_reading(call: Caller) -> None:
    with receiving(200) as receiver:
        delivered = send(call, receiver, "delivered")
        key = f"127.0.0.1:{receiver.port}"
        call("GET", "/v1/status")
        assert call("GET", "/v1/circuits", query="?limit=1")["circuits"]
        call("GET", "/v1/circuits", query="?state=closed")
        assert call("GET", "/v1/circuits/{key}", key)["state"] == "enabled"
        call("GET", "/v1/circuits/{key}", "nowhere.example:443")
        assert call("GET", "/v1/messages", query=f"?host={key}&state=delivered")["messages"][0]["id"] == delivered
        call("GET", "/v1/messages", query="?limit=none")
        call("GET", "/v1/messages", query="?host=nowhere.example")
        assert call("GET", "/v1/messages", query="?host=forgotten.example:443")["messages"] == []
        assert "delivered by attempt 1" in call("GET", "/v1/messages/{id}", delivered)["why"]
        call("GET", "/v1/messages/{id}", UNKNOWN)


@pytest.mark.parametrize("name", ["x" * 600, "\udcff", "host name", "h\u00e4st:443"])
def test_odd_names_and_times_are_refused(call: Caller, name: str) -> None:
    escaped = quote(name, safe="", errors="surrogatepass")
    for path in (f"/v1/circuits/{escaped}", f"/v1/messages?host={escaped}"):
        assert call.gateway.call("GET", path).status_code == 404
    if len(name) > 500:
        assert call.gateway.call("GET", f"/v1/circuits?after={name}").status_code == 404
    for path in ("/v1/dead/replay", "/v1/dead/drop", "/v1/messages/drop"):
        assert call.gateway.call("POST", path, {"host": name}).status_code == 404
    since = {"since": "0001-01-01T00:00:00Z", "until": "9999-12-31T23:59:59Z"}
    assert call.gateway.call("POST", "/v1/dead/drop", since).status_code == 200
    assert call.gateway.get("/healthz").status_code == 200


def test_a_message_is_retried_and_dropped(call: Caller) -> None:
    with receiving(500) as receiver:
        waiting = send(call, receiver, "retrying")
        why = call("GET", "/v1/messages/{id}", waiting)["why"]
        assert "retry 1 of 1" in why
        receiver.answer = lambda request: 200
        assert call("POST", "/v1/messages/{id}/retry", waiting)["result"] == "due"
        until(lambda: call.gateway.message(waiting)["state"] == "delivered")
        call("POST", "/v1/messages/{id}/retry", waiting)
        call("DELETE", "/v1/messages/{id}", waiting)
        receiver.answer = lambda request: 500
        dropped = send(call, receiver, "retrying")
        assert call("DELETE", "/v1/messages/{id}", dropped) == {"dropped": 1}
        call("GET", "/v1/messages/{id}", dropped)
        call("POST", "/v1/messages/{id}/retry", UNKNOWN)
        call("DELETE", "/v1/messages/{id}", UNKNOWN)


def test_a_message_in_flight_is_left_alone(call: Caller) -> None:
    with receiving(200) as receiver:
        entered, let_go = receiver.hang()
        id = call.gateway.post(f"{receiver.url}/hang").json()["id"]
        assert entered.wait(PATIENCE)
        assert call("GET", "/v1/messages/{id}", id)["state"] == "in_flight"
        assert "in-flight" in call("POST", "/v1/messages/{id}/retry", id)["type"]
        assert "in-flight" in call("DELETE", "/v1/messages/{id}", id)["type"]
        let_go.set()
        until(lambda: call.gateway.message(id)["state"] == "delivered")


def test_a_circuit_is_frozen_unfrozen_and_probed(call: Caller) -> None:
    with receiving(500) as receiver:
        key = f"127.0.0.1:{receiver.port}"
        for number in range(4):
            call.gateway.post(f"{receiver.url}/{number}")
        until(lambda: call.gateway.get(f"/circuits/{key}").json()["state"] == "disabled")
        held = send(call, receiver, "held")
        assert "failure rate" in call("GET", "/v1/messages/{id}", held)["why"]
        seen = len(receiver.requests)
        assert call("POST", "/v1/circuits/{key}/probe", key)["probing"] is True
        receiver.wait_for(lambda requests: len(requests) == seen + 1)
        frozen = call("POST", "/v1/circuits/{key}/freeze", key)
        assert frozen["circuit"]["reason"] == "operator"
        assert frozen["messages_expire_from"] is not None
        assert "only an operator" in call("GET", "/v1/messages/{id}", held)["why"]
        call("POST", "/v1/circuits/{key}/probe", key)
        assert call("POST", "/v1/circuits/{key}/freeze", key)["changed"] is False
        receiver.answer = lambda request: 200
        assert call("POST", "/v1/circuits/{key}/unfreeze", key)["changed"] is True
        until(lambda: call.gateway.message(held)["state"] == "delivered")
        call("POST", "/v1/circuits/{key}/unfreeze", key, {"replay_dead": "yes"})
        for action in ("unfreeze", "probe", "freeze"):
            call("POST", f"/v1/circuits/{{key}}/{action}", "nowhere")


def test_a_host_not_yet_seen_can_be_frozen_before_it_gets_anything(call: Caller) -> None:
    with receiving(200) as receiver:
        key = f"127.0.0.1:{receiver.port}"
        assert call("POST", "/v1/circuits/{key}/freeze", key)["changed"] is True
        held = send(call, receiver, "held")
        assert not receiver.requests
        call("POST", "/v1/circuits/{key}/unfreeze", key)
        until(lambda: call.gateway.message(held)["state"] == "delivered")


def test_dead_messages_are_replayed_and_dropped_in_bulk(tmp_path: Path) -> None:
    rules = {"retry__max_retries": 0, "circuit__min_attempts": 0}
    with receiving(500) as receiver, running(tmp_path / "store", **rules) as gateway:
        call = Caller(gateway)
        ids = [send(call, receiver, "dead", f"/{number}") for number in range(3)]
        binary = str(gateway.post(f"{receiver.url}/binary", b"\xff\x00").json()["id"])
        until(lambda: gateway.message(binary)["state"] == "dead")
        answer = gateway.call("GET", "/v1/dead/export?reason=exhausted")
        lines = [json.loads(line) for line in answer.text.splitlines()]
        for line in lines:
            validate(line, {"$ref": "#/components/schemas/DeadMessage"})
        assert [line["id"] for line in lines] == [*ids, binary]
        assert lines[-1]["body_base64"] == "/wA="
        assert call("POST", "/v1/dead/drop", body={"until": lines[0]["finished_at"]})["dropped"] == 0
        assert call("POST", "/v1/dead/drop", body={"reason": "expired"})["dropped"] == 0
        assert call("POST", "/v1/dead/drop", body={"limit": 1}) == {"dropped": 1, "done": False}
        call("POST", "/v1/dead/drop", body={"hots": "misspelled"})
        call("POST", "/v1/dead/replay", body={"since": "yesterday"})
        call("POST", "/v1/dead/replay", body={"host": "nowhere"})
        receiver.answer = lambda request: 200
        assert call("POST", "/v1/dead/replay", body={"host": "127.0.0.1"}) == {"replayed": 3, "done": True}
        for id in (*ids[1:], binary):
            until(lambda id=id: gateway.message(id)["state"] == "delivered")
        assert call("POST", "/v1/messages/drop", body={"state": "queued"}) == {"dropped": 0, "done": True}
        call("POST", "/v1/messages/drop", body={"state": "delivered"})
        assert gateway.call("GET", "/v1/dead/export?reason=bad").status_code == 400


def test_waiting_messages_are_dropped_in_bulk_and_not_sent(call: Caller) -> None:
    with receiving(200) as receiver, receiving(200) as other:
        key = f"127.0.0.1:{receiver.port}"
        for each in (receiver, other):
            call("POST", "/v1/circuits/{key}/freeze", f"127.0.0.1:{each.port}")
        dropped = [send(call, receiver, "held") for _ in range(3)]
        kept = send(call, other, "held")
        assert call("POST", "/v1/messages/drop", body={"host": key, "state": "held"})["dropped"] == 3
        for each in (receiver, other):
            call("POST", "/v1/circuits/{key}/unfreeze", f"127.0.0.1:{each.port}")
        until(lambda: call.gateway.message(kept)["state"] == "delivered")
        assert all(call.gateway.get(f"/messages/{id}").status_code == 404 for id in dropped)
        assert not receiver.requests


def test_events_come_live(call: Caller) -> None:
    transport = httpx.HTTPTransport(uds=str(call.gateway.control))
    with receiving(500) as receiver, httpx.Client(transport=transport, timeout=PATIENCE) as client:
        with client.stream("GET", "http://holdfast/v1/events") as stream:
            assert stream.headers["content-type"] == "application/jsonl"
            id = call.gateway.post(f"{receiver.url}/event").json()["id"]
            seen = []
            for line in stream.iter_lines():
                event = json.loads(line)
                validate(event, {"$ref": "#/components/schemas/Event"})
                if event.get("message") == id:
                    seen.append(event["event"])
                if seen == ["accepted", "attempt_failed"]:
                    break
            assert "/event" not in line


def test_draining_without_exiting(call: Caller) -> None:
    assert call("POST", "/v1/drain", body={"wait": True}) == {"draining": True, "quiet": True, "in_flight": 0}
    assert call.gateway.get("/readyz").status_code == 503
    with receiving(200) as receiver:
        send(call, receiver, "delivered")
    assert call("POST", "/v1/drain", body={"cancel": True})["draining"] is False
    assert call.gateway.get("/readyz").status_code == 200
    call("POST", "/v1/drain", body={"cancel": 1})


def test_reloading(call: Caller) -> None:
    assert call("POST", "/v1/reload") == {"changed": [], "needs_restart": []}
    call("POST", "/v1/reload", body={"now": True})


def test_the_description_is_valid_openapi() -> None:
    for schema in DESCRIPTION["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    assert DESCRIPTION["openapi"].startswith("3.1")
