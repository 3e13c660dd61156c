"""A restart keeps retry numbers, due times and circuits."""

from pathlib import Path

import pytest

from tests.support.harness import Receiver, running, until

SLOW_RETRIES = {"retry__base": "1h"}


@pytest.mark.usefixtures("processes")
def test_retry_number_due_time_and_counters_survive(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answer = lambda request: 503
    with running(tmp_path / "store", **SLOW_RETRIES) as gateway:
        ids = [gateway.post(f"{receiver.url}/{number}").json()["id"] for number in range(5)]
        until(lambda: all(gateway.message(id)["state"] == "retrying" for id in ids))
        messages = [gateway.message(id) for id in ids]
        circuit = gateway.get(f"/circuits/127.0.0.1:{receiver.port}").json()
        assert gateway.stop() == 0
    with running(tmp_path / "store", **SLOW_RETRIES) as gateway:
        assert [gateway.message(id) for id in ids] == messages
        again = gateway.get(f"/circuits/127.0.0.1:{receiver.port}").json()
    assert len(receiver.requests) == 5
    assert all(message["retry"] == 0 for message in messages)
    for name in ("state", "since", "consecutive_failures", "window", "last_success_at", "first_attempt_at", "waiting"):
        assert again[name] == circuit[name]


@pytest.mark.usefixtures("processes")
def test_retries_continue_after_a_kill_with_their_number(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answer = lambda request: 500
    with running(tmp_path / "store", retry__base="100ms") as gateway:
        id = gateway.post(f"{receiver.url}/flaky").json()["id"]
        receiver.wait_for(lambda requests: len(requests) >= 3)
        until(lambda: len(gateway.message(id)["attempts"]) >= 3)
        gateway.kill()
    receiver.answer = lambda request: 200
    with running(tmp_path / "store", retry__base="100ms") as gateway:
        until(lambda: gateway.message(id)["state"] == "delivered")
        message = gateway.message(id)
    assert [attempt["number"] for attempt in message["attempts"]] == list(range(1, len(message["attempts"]) + 1))
    assert [attempt["kind"] for attempt in message["attempts"]][:3] == ["first", "retry", "retry"]
    assert message["attempts"][-1]["status"] == 200
    assert {request.id for request in receiver.requests} == {id}


def test_a_disabled_circuit_is_still_disabled_after_a_restart(tmp_path: Path, receiver: Receiver) -> None:
    rules = {"circuit__min_attempts": 3, "retry__base": "1h"}
    receiver.answer = lambda request: 500
    key = f"127.0.0.1:{receiver.port}"
    with running(tmp_path / "store", **rules) as gateway:
        for number in range(4):
            gateway.post(f"{receiver.url}/{number}")
        until(lambda: gateway.get(f"/circuits/{key}").json()["state"] == "disabled")
        waiting = gateway.post(f"{receiver.url}/waits").json()["id"]
        # What is on its way from memory to the disk may be seen in both places for a moment.
        until(lambda: gateway.get(f"/circuits/{key}").json()["waiting"] == 5)
        before = gateway.get(f"/circuits/{key}").json()
        assert before["reason"] == "failure_rate"
        gateway.kill()
    seen = len(receiver.requests)
    receiver.answer = lambda request: 200
    with running(tmp_path / "store", **rules) as gateway:
        after = gateway.get(f"/circuits/{key}").json()
        assert after["state"] == "disabled"
        assert after["next_probe_at"] == before["next_probe_at"]
        assert gateway.message(waiting)["state"] == "held"
        answer = gateway.call("POST", f"/v1/circuits/{key}/unfreeze").json()
        assert answer["changed"] is True
        until(lambda: gateway.message(waiting)["state"] == "delivered")
        assert gateway.call("POST", f"/v1/circuits/{key}/unfreeze").json()["changed"] is False
    assert len(receiver.requests) == seen + 1
