"""Status listener, control socket and commands of a real process."""

import json
import subprocess
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tests.support import fork_server
from tests.support.harness import PLAIN, Gateway, Receiver, running, settings, until

STATUS_FIELDS = {
    "version", "pid", "started_at", "ready", "degraded", "draining", "clock", "store", "queues", "in_flight",
    "oldest_waiting_at", "next_due_at", "earliest_expiry_at", "circuits", "totals",
}  # fmt: skip
MESSAGE_FIELDS = {
    "id", "state", "target", "host", "route", "method", "size", "accepted_at", "retry", "next_attempt_at",
    "dead_reason", "finished_at", "attempts",
}  # fmt: skip
ATTEMPT_FIELDS = {"number", "kind", "at", "duration", "address", "status", "error", "detail", "fault", "answer"}
CIRCUIT_FIELDS = {
    "host", "state", "since", "reason", "consecutive_failures", "window", "last_success_at", "first_attempt_at",
    "waiting", "dead", "next_probe_at", "limit",
}  # fmt: skip
UNKNOWN = "msg_" + "0" * 32


def holdfast(gateway: Gateway, *words: str) -> "subprocess.CompletedProcess[str]":
    return fork_server.run(*words, "--socket", str(gateway.control), env=settings(gateway.control.parent))


def deliver_one(gateway: Gateway, receiver: Receiver, path: str = "/secret/path") -> str:
    id = str(gateway.post(receiver.url + path).json()["id"])
    until(lambda: gateway.message(id)["state"] == "delivered")
    return id


def disable(gateway: Gateway, receiver: Receiver) -> str:
    """Trip the receiver's circuit (with circuit.min_attempts = 3); returns its key."""
    receiver.answer = lambda request: 500
    key = f"127.0.0.1:{receiver.port}"
    for number in range(4):
        gateway.post(f"{receiver.url}/{number}")
    until(lambda: gateway.get(f"/circuits/{key}").json().get("state") == "disabled")
    # The circuit is told of as it stands in memory; the outcome that tripped it may still be on its way to the disk.
    until(lambda: all(message["attempts"] for message in gateway.call("GET", "/v1/messages").json()["messages"]))
    return key


def test_probes_are_200_when_healthy(gateway: Gateway) -> None:
    assert gateway.get("/healthz").json() == {"status": "ok", "checks": {"store": "ok"}}
    for path in ("/readyz", "/readyz?strict"):
        answer = gateway.get(path)
        assert answer.status_code == 200
        assert answer.json()["degraded"] == []


@pytest.mark.usefixtures("processes")
def test_status_has_every_documented_field(gateway: Gateway, receiver: Receiver, tmp_path: Path) -> None:
    deliver_one(gateway, receiver)
    status = gateway.get("/status").json()
    assert set(status) == STATUS_FIELDS
    assert set(status["store"]) == {"path", "used_bytes", "reserved_bytes", "max_bytes", "waiting", "dead"}
    assert status["store"]["path"] == str(tmp_path / "store")
    assert set(status["clock"]) == {"offset", "off"}
    assert status["clock"]["off"] is False
    assert status["pid"] == gateway.process.pid
    assert status["queues"] == {"first": 0, "retry": 0}
    assert status["circuits"] == {"enabled": 1, "disabled": 0, "frozen": 0}
    assert status["totals"]["accepted"] == status["totals"]["delivered"] == 1
    assert gateway.call("GET", "/v1/status").json().keys() == status.keys()


def test_a_message_shows_its_target_only_on_the_control_socket(gateway: Gateway, receiver: Receiver) -> None:
    id = deliver_one(gateway, receiver, "/secret/path?token=t")
    outside = gateway.get(f"/messages/{id}")
    assert "secret" not in outside.text
    assert "token" not in outside.text
    message = outside.json()
    assert set(message) == MESSAGE_FIELDS
    assert set(message["attempts"][0]) == ATTEMPT_FIELDS
    assert message["attempts"][0]["status"] == 200
    inside = gateway.call("GET", f"/v1/messages/{id}").json()
    assert inside["target"] == f"{receiver.url}/secret/path?token=t"
    assert "secret" not in gateway.log.read_text()


def test_a_failed_message_shows_all_of_its_attempts(gateway: Gateway, receiver: Receiver) -> None:
    receiver.answer = lambda request: 503
    id = gateway.post(f"{receiver.url}/fails").json()["id"]
    message = until(lambda: (found := gateway.message(id))["state"] == "retrying" and found)
    assert message["retry"] == 0
    assert message["next_attempt_at"] is not None
    (attempt,) = message["attempts"]
    assert (attempt["kind"], attempt["status"], attempt["fault"]) == ("first", 503, "host")
    assert attempt["address"] == f"127.0.0.1:{receiver.port}"
    failed = [event for event in gateway.events() if event["event"] == "attempt_failed"]
    assert failed[0]["message"] == id
    assert failed[0]["next_attempt_at"] == message["next_attempt_at"]


def test_circuits_are_listed_in_pages(gateway: Gateway, receiver: Receiver) -> None:
    others = [Receiver() for _ in range(2)]
    for each in (receiver, *others):
        deliver_one(gateway, each)
    keys, after = [], ""
    while True:
        page = gateway.get(f"/circuits?limit=1&after={after}").json()
        keys += [circuit["host"] for circuit in page["circuits"]]
        assert all(set(circuit) == CIRCUIT_FIELDS for circuit in page["circuits"])
        if page["next"] is None:
            break
        after = page["next"]
    assert keys == sorted(f"127.0.0.1:{each.port}" for each in (receiver, *others))
    for each in others:
        each.close()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"/messages/{UNKNOWN}", 404),
        ("/messages/nonsense", 404),
        ("/circuits/unknown.example:443", 404),
        ("/nothing", 404),
        ("/circuits?state=open", 400),
        ("/circuits?limit=0", 400),
    ],
)
def test_an_unknown_path_is_a_problem_document(gateway: Gateway, path: str, status: int) -> None:
    answer = gateway.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"]


def test_the_status_listener_only_reads(gateway: Gateway) -> None:
    answer = httpx.post(f"http://{gateway.status}/circuits/x/unfreeze", **PLAIN)
    assert answer.status_code == 404
    assert httpx.delete(f"http://{gateway.status}/status", **PLAIN).status_code == 405


def test_the_status_listener_refuses_a_rebound_name(gateway: Gateway) -> None:
    rebound = httpx.get(f"http://{gateway.status}/status", headers={"host": "evil.example"}, **PLAIN)
    assert rebound.status_code == 403


def test_messages_are_listed_by_state_and_host(gateway: Gateway, receiver: Receiver) -> None:
    delivered = deliver_one(gateway, receiver)
    receiver.answer = lambda request: 500
    failing = gateway.post(f"{receiver.url}/fails").json()["id"]
    until(lambda: gateway.message(failing)["state"] == "retrying")

    def listed(query: str) -> list[str]:
        return [message["id"] for message in gateway.call("GET", f"/v1/messages?{query}").json()["messages"]]

    assert listed("") == [delivered, failing]
    assert listed("state=delivered") == [delivered]
    assert listed("state=retrying") == [failing]
    assert listed(f"host=127.0.0.1:{receiver.port}&state=retrying") == [failing]
    assert listed("limit=1") == [delivered]
    assert listed(f"limit=1&after={delivered}") == [failing]


def test_unfreezing_a_disabled_host_delivers_what_waited(tmp_path: Path, receiver: Receiver) -> None:
    with running(tmp_path / "store", circuit__min_attempts=3, retry__base="1h") as gateway:
        key = disable(gateway, receiver)
        held = gateway.post(f"{receiver.url}/held").json()["id"]
        until(lambda: gateway.message(held)["state"] == "held")
        receiver.answer = lambda request: 200
        done = holdfast(gateway, "unfreeze", key)
        assert done.returncode == 0, done.stderr
        until(lambda: gateway.message(held)["state"] == "delivered")


def test_unfreeze_with_replay_dead_replays_the_dead_messages(tmp_path: Path, receiver: Receiver) -> None:
    with running(
        tmp_path / "store", circuit__min_attempts=3, retry__max_retries=0, retry__expire_after="1h"
    ) as gateway:
        key = disable(gateway, receiver)
        dead = gateway.call("GET", "/v1/messages?state=dead").json()["messages"]
        assert [message["dead_reason"] for message in dead] == ["exhausted"] * 4
        receiver.answer = lambda request: 200
        done = holdfast(gateway, "unfreeze", key, "--replay-dead", "--json")
        assert json.loads(done.stdout)["replayed"] == 4
        for message in dead:
            until(lambda message=message: gateway.message(message["id"])["state"] == "delivered")
            assert [attempt["number"] for attempt in gateway.message(message["id"])["attempts"]] == [1, 2]


def test_commands_show_the_real_gateway(gateway: Gateway, receiver: Receiver) -> None:
    id = deliver_one(gateway, receiver)
    key = f"127.0.0.1:{receiver.port}"
    for words, expected in (
        (("status",), "delivered"),
        (("circuits",), key),
        (("messages", "list"), id),
        (("messages", "show", id), "/secret/path"),
        (("status", "--json"), '"totals"'),
    ):
        done = holdfast(gateway, *words)
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout


@pytest.mark.parametrize(
    "words", [("messages", "show", UNKNOWN), ("unfreeze", "unknown.example"), ("circuits", "nowhere")]
)
def test_commands_with_an_unknown_name_exit_1_with_one_line(gateway: Gateway, words: tuple[str, ...]) -> None:
    done = holdfast(gateway, *words)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_host_without_port_matches_its_only_circuit_else_candidates(gateway: Gateway, receiver: Receiver) -> None:
    deliver_one(gateway, receiver)
    key = f"127.0.0.1:{receiver.port}"
    assert gateway.call("GET", "/v1/circuits/127.0.0.1").json()["host"] == key
    other = Receiver()
    deliver_one(gateway, other)
    answer = gateway.call("GET", "/v1/circuits/127.0.0.1")
    assert answer.status_code == 404
    assert set(answer.json()["candidates"]) == {key, f"127.0.0.1:{other.port}"}
    other.close()


def test_send_and_health_through_the_real_gateway(gateway: Gateway, receiver: Receiver) -> None:
    sent = fork_server.run("send", f"{receiver.url}/sent", "-d", '{"a": 1}', "--to", gateway.ingest)
    received = receiver.wait_for_one()
    assert received.id in sent.stdout
    assert received.headers["content-type"] == "application/json"
    assert fork_server.run("health", "--status", gateway.status).returncode == 0


@pytest.mark.usefixtures("processes")
def test_a_full_store_refuses_with_507_and_recovers(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answer = lambda request: 500
    rules = {"store__max_size": "8MiB", "store__host_share": "1.0", "retry__base": "2s", "circuit__min_attempts": 0}
    with running(tmp_path / "store", **rules) as gateway:
        refused = None
        for _ in range(400):
            answer = gateway.post(f"{receiver.url}/big", b"x" * 60_000)
            if answer.status_code != 202:
                refused = answer
                break
        assert refused is not None
        assert refused.status_code == 507
        assert refused.headers["retry-after"]
        assert gateway.get("/readyz").status_code == 200
        assert gateway.get("/readyz").json()["degraded"] == ["store_full"]
        assert gateway.get("/readyz?strict").status_code == 503
        receiver.answer = lambda request: 200
        until(lambda: gateway.post(f"{receiver.url}/again", b"x" * 60_000).status_code == 202)


@pytest.mark.usefixtures("processes")
def test_one_host_can_not_fill_the_store(tmp_path: Path, receiver: Receiver) -> None:
    dead_end = Receiver()
    dead_end.answer = lambda request: 500
    with running(tmp_path / "store", store__max_size="16MiB", store__host_share="0.1") as gateway:
        statuses = [gateway.post(f"{dead_end.url}/big", b"x" * 60_000).status_code for _ in range(40)]
        assert statuses[0] == 202
        assert statuses[-1] == 507
        assert gateway.post(f"{receiver.url}/other").status_code == 202
        receiver.wait_for_one()
    dead_end.close()


def test_a_url_as_circuit_shows_its_path_only_on_the_control_socket(tmp_path: Path, receiver: Receiver) -> None:
    with running(tmp_path / "store", circuit__scope="url") as gateway:
        for path in ("/secret/one", "/secret/two", "/secret/three"):
            deliver_one(gateway, receiver, path)
        keys, after = [], ""
        while True:
            page = gateway.get(f"/circuits?limit=1&after={quote(after)}")
            assert "secret" not in page.text
            keys += [circuit["host"] for circuit in page.json()["circuits"]]
            if page.json()["next"] is None:
                break
            after = page.json()["next"]
        assert len(set(keys)) == 3
        assert gateway.get(f"/circuits/{quote(keys[0], safe='')}").json()["host"] == keys[0]
        inside = gateway.call("GET", "/v1/circuits").json()["circuits"]
        assert f"{receiver.url}/secret/one" in {circuit["host"] for circuit in inside}
        assert "secret" not in gateway.log.read_text()
