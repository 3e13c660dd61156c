"""Without file descriptors: no spinning, nothing lost, no failure counted against a host, and recovery when some are
free.
"""

import http.client
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.harness import PATIENCE, Gateway, Receiver, running, until

LEFT = 4
"""Descriptors that the gateway may still open."""
CLIENTS = 12
WATCHED_SECONDS = 2.0
"""How long the use of CPU is counted for; nothing is waited for by it."""


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def open_descriptors(gateway: Gateway) -> int:
    return len(list(Path(f"/proc/{gateway.process.pid}/fd").iterdir()))


@contextmanager
def few_descriptors(gateway: Gateway, left: int) -> Iterator[None]:
    """The process can open only so many more."""
    pid = gateway.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_descriptors(gateway) + left, before[1]))
    yield
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@contextmanager
def connected(gateway: Gateway, number: int) -> Iterator[list[http.client.HTTPConnection]]:
    """Clients whose connections stand; how many of them the gateway has taken is its affair."""
    clients = [http.client.HTTPConnection(gateway.ingest, timeout=PATIENCE) for _ in range(number)]
    for client in clients:
        client.connect()
    yield clients
    for client in clients:
        client.close()


def post(client: http.client.HTTPConnection, target: str) -> str:
    client.request("POST", f"/{target}", b"{}")
    answer = client.getresponse()
    answer.read()
    assert answer.status == 202
    return str(answer.headers["holdfast-message-id"])


def refused_accepts(gateway: Gateway) -> int:
    return sum("could not accept" in str(event.get("message")) for event in gateway.events())


def attempts_that_failed(gateway: Gateway) -> list[dict[str, object]]:
    return [event for event in gateway.events() if event["event"] == "attempt_failed"]


def test_connections_wait_without_spinning_until_descriptors_are_free(
    tmp_path: Path, receiver: Receiver, measured: Callable[[str], None]
) -> None:
    # A delivery that finds no descriptor either is tried again soon.
    with running(tmp_path / "store", retry__base="1s") as gateway:
        gateway.post(f"{receiver.url}/warm")
        receiver.wait_for_one()
        pid = gateway.process.pid
        with few_descriptors(gateway, LEFT), connected(gateway, CLIENTS) as clients:
            until(lambda: refused_accepts(gateway) >= 2)
            began, before, refused = time.monotonic(), cpu_seconds(pid), refused_accepts(gateway)
            threading.Event().wait(WATCHED_SECONDS)
            used, refused = cpu_seconds(pid) - before, refused_accepts(gateway) - refused
            passed = time.monotonic() - began
            measured(f"{passed:.1f} s out of descriptors: {used * 1000:.0f} ms of CPU, {refused} accepts refused")
            assert used < passed / 2
            # The first are in; each that leaves lets the next one in, until all were served.
            ids = []
            for client in clients:
                ids.append(post(client, f"{receiver.url}/hook"))
                client.close()
            assert gateway.get("/readyz").status_code == 200
            assert gateway.call("GET", "/v1/status").json()["ready"] is True
        receiver.wait_for(lambda requests: set(ids) <= {request.id for request in requests})
        assert gateway.stop() == 0
    assert len(set(ids)) == CLIENTS


@pytest.mark.parametrize(("name", "error"), [("127.0.0.1", "connect"), ("localhost", "dns")])
def test_attempts_without_a_descriptor_are_local_failures(
    tmp_path: Path, receiver: Receiver, name: str, error: str
) -> None:
    """Neither for a socket nor for the files that a look-up reads."""
    other = Receiver()
    with running(tmp_path / "store", retry__base="1s", circuit__disable_after=1) as gateway:
        with connected(gateway, 1) as (client,):
            post(client, f"http://127.0.0.1:{receiver.port}/warm")
            receiver.wait_for_one()
            with few_descriptors(gateway, 0):
                ids = [post(client, f"http://{name}:{other.port}/{number}") for number in range(3)]
                until(lambda: len(attempts_that_failed(gateway)) >= 3)
                kept = post(client, f"http://127.0.0.1:{receiver.port}/kept-alive")
                receiver.wait_for(lambda requests: kept in {request.id for request in requests})
        other.wait_for(lambda requests: {request.id for request in requests} == set(ids))
        until(lambda: all(gateway.message(id)["state"] == "delivered" for id in ids))
        circuit = gateway.get(f"/circuits/{name}:{other.port}").json()
        attempts = [attempt for id in ids for attempt in gateway.message(id)["attempts"]]
    other.close()
    failed = [attempt for attempt in attempts if attempt["status"] is None]
    assert {(attempt["error"], attempt["fault"]) for attempt in failed} == {(error, "here")}
    assert (circuit["state"], circuit["window"]["failures"]) == ("enabled", 0)
    assert len(other.requests) == 3
