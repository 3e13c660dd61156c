"""Operators may ask any replica: the owner of a host carries the action out, and its answer comes back."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

import pytest

from tests.fleet.pair import Pair, key, told, two
from tests.fleet.replicas import Database
from tests.support.harness import PATIENCE, Receiver, running, until

UNKNOWN = "msg_" + "0" * 32
RULES = {
    "delivery__per_host": 1,
    "retry__base": "1h",
    "retry__max_retries": 1,
    "circuit__disable_after": 3,
    "circuit__probe_every": "1h",
}


@pytest.fixture
def pair(tmp_path: Path, database: str) -> Iterator[Pair]:
    with two(tmp_path, database, **RULES) as pair:
        yield pair


def test_freeze_and_unfreeze_work_for_a_host_of_another_replica(pair: Pair) -> None:
    assert pair.act(pair.other, "unfreeze").status_code == 404
    frozen = pair.act(pair.other, "freeze").json()
    assert (frozen["changed"], frozen["circuit"]["state"]) == (True, "frozen")
    ids = pair.post(pair.other, 5)
    until(lambda: pair.there.get(f"/circuits/{key(pair.other)}").json()["waiting"] == 5)
    assert pair.states(*ids) == {"held"}
    assert pair.act(pair.other, "freeze").json()["changed"] is False
    assert pair.act(pair.other, "probe").status_code == 409
    assert not pair.other.requests
    assert pair.act(pair.other, "unfreeze").json()["circuit"]["state"] == "enabled"
    pair.other.wait_for(lambda requests: [request.id for request in requests] == ids)
    # What was told before its shard came for good is told once more.
    states = [state for state, _ in groupby(event["after"] for event in told(pair.there, "circuit_changed"))]
    assert states == ["frozen", "enabled"]
    assert not told(pair.here, "circuit_changed")


def test_a_replica_without_shards_gets_answers_without_notifications(
    tmp_path: Path, database: str, receiver: Receiver
) -> None:
    with (
        running(tmp_path / "deliver", None, "--role", "deliver", store__url=database),
        running(tmp_path / "ingest", None, "--role", "ingest", store__url=database) as ingest,
    ):
        until(Database(database).is_shared_out)
        act = f"/v1/circuits/{key(receiver)}"
        until(lambda: ingest.call("POST", f"{act}/freeze").is_success)
        id = ingest.post(f"{receiver.url}/hook").json()["id"]
        until(lambda: ingest.message(id)["state"] == "held")
        assert ingest.call("POST", f"{act}/unfreeze").json()["circuit"]["state"] == "enabled"
        receiver.wait_for(lambda requests: [request.id for request in requests] == [id])
        assert ingest.call("POST", f"{act}/probe").status_code == 409


def test_a_probe_of_another_replica_s_host_is_sent_now(pair: Pair) -> None:
    pair.other.answer = lambda request: 500
    assert pair.act(pair.other, "probe").status_code == 404
    pair.post(pair.other, 3)
    until(lambda: pair.here.get(f"/circuits/{key(pair.other)}").json().get("state") == "disabled")
    pair.other.answer = lambda request: 200
    assert pair.act(pair.other, "probe").json()["probing"]
    until(lambda: pair.here.get(f"/circuits/{key(pair.other)}").json()["state"] == "enabled")
    assert len(pair.other.requests) == 3 + 1
    assert pair.act(pair.other, "probe").json()["type"] == "urn:holdfast:problem:not-disabled"


def test_single_messages_are_retried_and_dropped(pair: Pair) -> None:
    entered, let_go = pair.other.hang()
    [delivered] = pair.post(pair.other)
    assert entered.wait(PATIENCE)
    for method, path in (("POST", f"messages/{delivered}/retry"), ("DELETE", f"messages/{delivered}")):
        refusal = pair.ask(method, path)
        assert (refusal.status_code, refusal.json()["type"]) == (409, "urn:holdfast:problem:in-flight")
    let_go.set()
    until(lambda: pair.states(delivered) == {"delivered"})
    pair.act(pair.other, "freeze")
    dropped, retried = pair.post(pair.other, 2)
    for id, status, type in ((delivered, 409, "delivered"), (UNKNOWN, 404, "unknown-message")):
        for method, path in (("POST", f"messages/{id}/retry"), ("DELETE", f"messages/{id}")):
            refusal = pair.ask(method, path)
            assert (refusal.status_code, refusal.json()["type"]) == (status, f"urn:holdfast:problem:{type}")
    assert pair.ask("DELETE", f"messages/{dropped}").json() == {"dropped": 1}
    pair.other.answer = lambda request: 503
    pair.act(pair.other, "unfreeze")
    until(lambda: pair.states(retried) == {"retrying"})
    pair.other.answer = lambda request: 200
    assert pair.ask("POST", f"messages/{retried}/retry").json()["result"] == "due"
    until(lambda: pair.states(retried) == {"delivered"})
    assert [request.id for request in pair.other.requests] == [delivered, retried, retried]


def test_bulk_actions_reach_the_hosts_of_all_owners(pair: Pair) -> None:
    receivers = (pair.own, pair.other)
    for receiver in receivers:
        assert pair.act(receiver, "freeze").json()["changed"]
    ids = [id for receiver in receivers for id in pair.post(receiver, 5)]
    until(lambda: pair.here.get("/status").json()["store"]["waiting"] == 10)
    assert pair.ask("POST", "messages/drop", {"limit": 7}).json() == {"dropped": 7, "done": False}
    assert pair.ask("POST", "messages/drop", {"state": "held"}).json() == {"dropped": 3, "done": True}
    assert {pair.here.get(f"/messages/{id}").status_code for id in ids} == {404}
    for receiver in receivers:
        receiver.answer = lambda request: 500
        pair.act(receiver, "unfreeze")
    dead = [id for receiver in receivers for id in pair.post(receiver)]
    until(lambda: pair.states(*dead) == {"retrying"})
    for id in dead:
        assert pair.ask("POST", f"messages/{id}/retry").json()["result"] == "due"
    until(lambda: pair.states(*dead) == {"dead"})
    for receiver in receivers:
        receiver.answer = lambda request: 200
    assert pair.ask("POST", "dead/replay").json() == {"replayed": 2, "done": True}
    until(lambda: pair.states(*dead) == {"delivered"})


def test_if_an_owner_dies_the_next_owner_carries_the_action_out(pair: Pair) -> None:
    pid = pair.there.process.pid
    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as operator:
        asked = operator.submit(pair.act, pair.other, "freeze")
        until(lambda: pair.database.ask("SELECT 1 FROM requests"))
        pair.there.kill()
        refusal = asked.result(PATIENCE)
    assert (refusal.status_code, refusal.json()["type"]) == (503, "urn:holdfast:problem:no-answer")
    assert pair.database.ask("SELECT 1 FROM requests") == []
    assert pair.here.get(f"/circuits/{key(pair.other)}").status_code == 404
    until(lambda: pair.database.owner(key(pair.other)) == pair.here.process.pid)
    until(lambda: pair.act(pair.other, "freeze").status_code == 200)
    assert pair.here.get(f"/circuits/{key(pair.other)}").json()["state"] == "frozen"
