"""A server that accepts connections and never answers: replicas stop waiting for it, and find another server."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.harness import PATIENCE, Gateway, Receiver, running, until
from tests.support.postgres import OwnServer, Standby

FROZEN = "http://127.0.0.1:9/hook"


@contextmanager
def hanging(server: OwnServer) -> Iterator[None]:
    server.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.signal(signal.SIGCONT)


def is_ready(gateway: Gateway) -> bool:
    return gateway.get("/readyz").status_code == 200


def unwell(gateway: Gateway) -> list[str]:
    """What the metrics say of circuits that are not enabled."""
    response = gateway.get("/metrics")
    assert response.status_code == 200
    return [line for line in response.text.splitlines() if line.startswith("holdfast_circuit_waiting_messages{")]


def test_connections_to_a_hanging_server_are_dropped_and_the_last_known_figures_are_shown(
    own_postgres: OwnServer, tmp_path: Path, receiver: Receiver
) -> None:
    entered, let_go = receiver.hang()
    with running(tmp_path / "store", store__url=own_postgres.fresh_database(), drain__timeout="2s") as gateway:
        assert gateway.call("POST", "/v1/circuits/127.0.0.1:9/freeze").status_code == 200
        assert gateway.post(FROZEN).status_code == 202
        id = gateway.post(f"{receiver.url}/hook").json()["id"]
        assert entered.wait(PATIENCE)
        assert gateway.get("/status").json()["store"]["waiting"] == 2
        [told] = unwell(gateway)
        assert told.endswith("} 1.0")
        with hanging(own_postgres):
            # Whoever asks right now, too.
            assert gateway.get("/status").json()["store"]["waiting"] == 2
            assert gateway.post(FROZEN).status_code == 503
            until(lambda: not is_ready(gateway))
            assert gateway.get("/status").json()["store"]["waiting"] == 2
            assert unwell(gateway) == [told]
            assert gateway.get(f"/messages/{id}").status_code == 503
            assert gateway.call("POST", "/v1/dead/replay", {"reason": "exhausted"}).status_code == 503
            let_go.set()
            receiver.wait_for_one()
            until(lambda: gateway.get("/status").json()["in_flight"] == 0)
        until(lambda: is_ready(gateway))
        until(lambda: gateway.message(id)["state"] == "delivered")
        assert len(receiver.requests) == 1


def test_a_drain_ends_while_the_server_hangs(own_postgres: OwnServer, tmp_path: Path, receiver: Receiver) -> None:
    """With an attempt under way, whose outcome can't be written."""
    entered, let_go = receiver.hang()
    with running(tmp_path / "store", store__url=own_postgres.fresh_database(), drain__timeout="1s") as gateway:
        gateway.post(f"{receiver.url}/hook")
        assert entered.wait(PATIENCE)
        with hanging(own_postgres):
            assert gateway.stop() == 0
        let_go.set()


def test_the_new_primary_is_found_when_the_old_one_hangs(
    own_postgres: OwnServer, tmp_path: Path, receiver: Receiver
) -> None:
    url = urlsplit(own_postgres.fresh_database())
    standby = Standby(own_postgres)
    credentials, _, place = url.netloc.rpartition("@")
    both = url._replace(netloc=f"{credentials}@{place},127.0.0.1:{standby.port}").geturl()
    try:
        with running(tmp_path / "store", store__url=both) as gateway, hanging(own_postgres):
            standby.promote()
            until(lambda: gateway.post(f"{receiver.url}/hook").status_code == 202)
            id = receiver.wait_for_one().id
            until(lambda: gateway.message(id).get("state") == "delivered")
    finally:
        standby.close()
