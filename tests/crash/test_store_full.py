"""A store of the smallest size: a dead host fills only its own share; in a full store deliveries make room."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.support.harness import PATIENCE, Gateway, Receiver, running, until

BODY = b"x" * 20_000
SETTINGS = {
    "store__max_size": "8MiB",
    "retry__base": "200ms",
    "retry__max_retries": "20",
    "circuit__min_attempts": "100000",
    "circuit__disable_after": "0",
}


@pytest.fixture
def others() -> "list[Receiver]":
    receivers = [Receiver() for _ in range(3)]
    yield receivers
    for receiver in receivers:
        receiver.close()


def fill(gateway: Gateway, receiver: Receiver) -> tuple[set[str], str]:
    """Post until it is refused; what was acknowledged, and why it ended."""
    acknowledged: set[str] = set()
    with httpx.Client(trust_env=False, verify=False, timeout=PATIENCE) as client:
        for _ in range(1_000):
            answer = client.post(f"http://{gateway.ingest}/{receiver.url}/hook", content=BODY)
            if answer.status_code != 202:
                assert answer.status_code == 507
                assert int(answer.headers["retry-after"]) > 0
                return acknowledged, answer.json()["type"].rpartition(":")[2]
            acknowledged.add(answer.json()["id"])
    raise AssertionError("never full")


def degraded(gateway: Gateway) -> list[str]:
    return list(gateway.get("/readyz").json()["degraded"])


def all_delivered(receiver: Receiver, ids: set[str]) -> None:
    receiver.wait_for(lambda requests: ids <= {request.id for request in requests if request.status == 200})


@pytest.mark.usefixtures("processes")
def test_a_dead_host_is_refused_alone(
    tmp_path: Path, receiver: Receiver, others: list[Receiver], measured: Callable[[str], None]
) -> None:
    _, let_go = receiver.hang()
    with running(tmp_path / "store", **SETTINGS) as gateway:
        held, why = fill(gateway, receiver)
        assert why == "host-share-used"
        assert degraded(gateway) == []
        fine = {gateway.post(f"{others[0].url}/hook", BODY).json()["id"] for _ in range(20)}
        all_delivered(others[0], fine)
        assert gateway.post(f"{receiver.url}/hook", BODY).status_code == 507
        measured(f"host_share 0.5 of 8 MiB took {len(held)} webhooks of 20 kB, counted with 24 kB each")
        assert len(held) == (4 << 20) // (20_000 + 4_096)
        gateway.kill()
    let_go.set()
    receiver.answer = lambda request: 200
    with running(tmp_path / "store", **SETTINGS) as gateway:
        all_delivered(receiver, held)
        assert until(lambda: gateway.post(f"{receiver.url}/hook", BODY).status_code == 202)


def test_a_full_store_delivers_and_recovers(tmp_path: Path, receiver: Receiver, others: list[Receiver]) -> None:
    healthy = receiver
    doors = [each.hang()[1] for each in others]
    _, let_go = healthy.hang()
    with running(tmp_path / "store", **SETTINGS, delivery__per_host=4) as gateway:
        waiting = [gateway.post(f"{healthy.url}/hook", BODY).json()["id"] for _ in range(40)]
        stuck, why = set[str](), ""
        for each in others:
            more, why = fill(gateway, each)
            stuck |= more
        assert why == "store-full"
        assert degraded(gateway) == ["store_full"]
        assert gateway.post(f"{healthy.url}/hook", BODY).status_code == 507
        let_go.set()
        all_delivered(healthy, set(waiting))
        for door in doors:
            door.set()
        until(lambda: degraded(gateway) == [])
        until(lambda: gateway.post(f"{healthy.url}/hook", BODY).status_code == 202)
        until(lambda: stuck <= {request.id for each in others for request in each.requests if request.status == 200})
        assert gateway.process.poll() is None


def test_operators_and_expiry_work_in_a_full_store(tmp_path: Path, others: list[Receiver]) -> None:
    for each in others:
        each.answer = lambda request: 500
    keys = {"circuit__probe_every": "1s", "retry__expire_after": "3s", "retry__max_retries": "0"}
    with running(tmp_path / "store", **(SETTINGS | keys)) as gateway:
        frozen = others[0].url.removeprefix("http://")
        assert gateway.call("POST", f"/v1/circuits/{frozen}/freeze").status_code == 200
        assert [fill(gateway, each)[1] for each in others][-1] == "store-full"
        # The frozen host's messages expire, the others' are dead by their only attempt: all of it in a full store.
        until(lambda: gateway.get("/status").json()["store"]["waiting"] == 0)
        full = gateway.get("/status").json()["store"]
        assert full["dead"] > 100
        others[1].answer = lambda request: 200
        host = others[1].url.removeprefix("http://")
        replayed = gateway.call("POST", "/v1/dead/replay", {"host": host}).json()["replayed"]
        others[1].wait_for(lambda requests: sum(request.status == 200 for request in requests) == replayed)
        dropped = gateway.call("POST", "/v1/dead/drop", {"host": frozen}).json()["dropped"]
        assert dropped > 10
        until(lambda: degraded(gateway) == [])
        assert gateway.post(f"{others[1].url}/hook", BODY).status_code == 202
