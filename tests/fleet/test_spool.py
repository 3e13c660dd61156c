"""store.spool with real processes: webhooks that arrive during an outage are acknowledged, and delivered after it."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import fork_server
from tests.support.harness import PATIENCE, Gateway, Receiver, running, settings, until
from tests.support.postgres import OwnServer


@pytest.fixture
def database(own_postgres: OwnServer) -> str:
    return own_postgres.fresh_database()


def keys(database: str, **more: object) -> dict[str, object]:
    return {"store__url": database, "store__spool": "true", **more}


def post(gateway: Gateway, target: str) -> str:
    answer = gateway.post(target)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def away(gateway: Gateway) -> None:
    until(lambda: gateway.get("/readyz").json()["degraded"] == ["store_away"])


def told(gateway: Gateway, name: str) -> list[dict[str, Any]]:
    return [event for event in gateway.events() if event["event"] == name]


def test_webhooks_are_spooled_during_an_outage_and_delivered_afterwards(
    tmp_path: Path, own_postgres: OwnServer, database: str, receiver: Receiver
) -> None:
    with running(tmp_path / "store", **keys(database, delivery__per_host=1)) as gateway:
        first = post(gateway, f"{receiver.url}/before")
        receiver.wait_for_one()
        own_postgres.stop("immediate")
        spooled = [post(gateway, f"{receiver.url}/{number}") for number in range(20)]
        away(gateway)
        assert gateway.get("/readyz").status_code == 200
        assert gateway.get("/readyz?strict").status_code == 503
        store = gateway.get("/status").json()["store"]
        assert (store["spool"], store["spooling_since"] is None) == (20, False)
        assert "holdfast_spooled_messages 20.0" in gateway.get("/metrics").text
        assert gateway.get("/status").json()["totals"]["accepted"] == 21
        own_postgres.start()
        receiver.wait_for(lambda requests: len(requests) == 21)
        assert [request.id for request in receiver.requests] == [first, *spooled]
        until(lambda: gateway.get("/status").json()["store"]["spool"] == 0)
        assert gateway.get("/status").json()["totals"]["accepted"] == 21
        assert gateway.get("/readyz").json() == {"ready": True, "draining": False, "degraded": []}
        assert len(told(gateway, "spooling_began")) == 1
        assert [event["messages"] for event in told(gateway, "spool_moved")] == [20]
        assert gateway.stop() == 0
        assert gateway.events()[-1]["spooled"] == 0


def test_messages_spooled_by_a_killed_replica_are_delivered_after_its_next_start(
    tmp_path: Path, own_postgres: OwnServer, database: str, receiver: Receiver
) -> None:
    own_postgres.stop()
    with running(tmp_path / "store", **keys(database)) as gateway:
        away(gateway)
        ids = [post(gateway, f"{receiver.url}/{number}") for number in range(10)]
        gateway.kill()
    own_postgres.start()
    with running(tmp_path / "store", **keys(database)) as gateway:
        receiver.wait_for(lambda requests: len(requests) == 10)
        until(lambda: gateway.get("/status").json()["store"]["waiting"] == 0)
        assert [event["messages"] for event in told(gateway, "spool_found")] == [10]
        assert gateway.stop() == 0
    assert Counter(request.id for request in receiver.requests) == Counter(ids)


def test_an_exit_reports_the_spooled_messages_and_handoff_moves_them(
    tmp_path: Path, own_postgres: OwnServer, database: str, receiver: Receiver
) -> None:
    own_postgres.stop()
    with running(tmp_path / "store", **keys(database, drain__timeout="1s")) as gateway:
        away(gateway)
        ids = [post(gateway, f"{receiver.url}/{number}") for number in range(5)]
        assert gateway.stop() == 0
        assert gateway.events()[-1]["spooled"] == 5
    own_postgres.start()
    done = fork_server.run("handoff", env=settings(tmp_path / "store", **keys(database)))
    assert (done.returncode, done.stderr) == (0, "")
    with running(tmp_path / "another", store__url=database) as gateway:
        receiver.wait_for(lambda requests: len(requests) == 5)
        assert gateway.stop() == 0
    assert Counter(request.id for request in receiver.requests) == Counter(ids)


def test_an_exit_waits_for_spooled_messages_if_the_database_comes_back(
    tmp_path: Path, own_postgres: OwnServer, database: str, receiver: Receiver
) -> None:
    own_postgres.stop()
    with running(tmp_path / "store", **keys(database, drain__timeout="25s")) as gateway:
        away(gateway)
        for number in range(5):
            post(gateway, f"{receiver.url}/{number}")
        gateway.process.terminate()
        until(lambda: told(gateway, "draining"))
        own_postgres.start()
        assert gateway.process.wait(PATIENCE) == 0
        assert gateway.events()[-1]["spooled"] == 0
