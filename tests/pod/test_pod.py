"""App and sidecar as in a pod: two users, one loopback, probes by the pod's address, and an end by two signals."""

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.pod.pod import APP, OPERATORS, POD_ADDRESS, SIDECAR, Pod, Sidecar, new_pod, waiting_by_host
from tests.support.harness import PATIENCE, PLAIN, Receiver, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes as other users")

RULES: dict[str, Any] = {"retry__base": "1h", "circuit__min_attempts": 0, "drain__timeout": "20s"}


@pytest.fixture
def pod() -> Iterator[Pod]:
    with new_pod() as pod:
        yield pod


@pytest.fixture
def failing() -> Iterator[Receiver]:
    receiver = Receiver()
    receiver.answer = lambda request: 503
    yield receiver
    receiver.close()


def key_of(receiver: Receiver) -> str:
    return f"127.0.0.1:{receiver.port}"


def terminate(sidecar: Sidecar, grace: float = PATIENCE) -> int:
    """As a kubelet ends a container: asked first, and killed after the grace period, so many seconds later."""
    sidecar.process.send_signal(signal.SIGTERM)
    try:
        return sidecar.process.wait(grace)
    except subprocess.TimeoutExpired:
        sidecar.kill()
        return sidecar.process.wait(PATIENCE)


def deliver_all(sidecar: Sidecar, ids: list[str]) -> None:
    for id in ids:
        sidecar.call("POST", f"/v1/messages/{id}/retry")
    until(lambda: sidecar.get("/status").json()["store"]["waiting"] == 0)


def test_only_the_sidecar_and_operators_have_access(pod: Pod) -> None:
    sidecar = pod.start_sidecar(**RULES)
    assert process_user(sidecar.process.pid) == SIDECAR
    assert pod.knock(APP) == "PermissionError"
    assert pod.knock(APP, [OPERATORS]) == "HTTP/1.1 200 OK"
    assert not pod.may_read_volume(APP)
    assert pod.may_read_volume(SIDECAR)
    assert terminate(sidecar) == 0


def process_user(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def test_probes_use_the_pod_s_address(pod: Pod, receiver: Receiver) -> None:
    sidecar = pod.start_sidecar(**RULES)
    assert [sidecar.probe(path) for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 200]
    assert sidecar.probe("/status") == 404, "only what probes and scrapers need"
    foreign = {"host": f"{POD_ADDRESS}:8801"}
    assert httpx.get(f"http://{sidecar.status}/readyz", headers=foreign, **PLAIN).status_code == 403
    entered, let_go = receiver.hang()
    pod.run_app(sidecar, f"{receiver.url}/slow")
    assert entered.wait(PATIENCE)
    sidecar.process.send_signal(signal.SIGTERM)
    until(lambda: sidecar.probe("/readyz") == 503)
    assert sidecar.probe("/healthz") == 200, "not to be restarted while it drains"
    let_go.set()
    assert sidecar.process.wait(PATIENCE) == 0


def test_the_messages_of_the_last_line_wait_and_are_delivered_after_the_restart(
    pod: Pod, receiver: Receiver, failing: Receiver
) -> None:
    sidecar = pod.start_sidecar(**RULES)
    delivered = pod.run_app(sidecar, *[f"{receiver.url}/{number}" for number in range(5)])
    kept = pod.run_app(sidecar, *[f"{failing.url}/{number}" for number in range(7)])
    assert terminate(sidecar) == 0
    said = sidecar.events()[-1]
    assert (said["event"], said["waiting"], said["waiting_by_host"]) == ("exit", 7, {key_of(failing): 7})
    failing.answer = lambda request: 200
    again = pod.start_sidecar(**RULES)
    assert waiting_by_host(again) == said["waiting_by_host"]
    deliver_all(again, kept)
    assert terminate(again) == 0
    assert again.events()[-1]["waiting"] == 0
    assert Counter(request.id for request in receiver.requests) == Counter(delivered)
    assert Counter(request.id for request in failing.requests if request.status == 200) == Counter(kept)


def test_a_kill_after_the_grace_period_loses_nothing(pod: Pod, receiver: Receiver, failing: Receiver) -> None:
    """A drain that was given more time than the pod: what it had under way is due again, what waited still does."""
    entered, let_go = receiver.hang()
    sidecar = pod.start_sidecar(**(RULES | {"drain__timeout": "10m"}))
    kept = pod.run_app(sidecar, *[f"{failing.url}/{number}" for number in range(3)])
    until(lambda: waiting_by_host(sidecar).get(key_of(failing)) == 3)
    cut_off = pod.run_app(sidecar, f"{receiver.url}/slow")
    assert entered.wait(PATIENCE)
    assert terminate(sidecar, grace=1) == -signal.SIGKILL
    let_go.set()
    receiver.answer = failing.answer = lambda request: 200
    again = pod.start_sidecar(**RULES)
    deliver_all(again, kept)
    assert terminate(again) == 0
    assert again.events()[-1]["waiting"] == 0
    assert Counter(request.id for request in failing.requests if request.status == 200) == Counter(kept)
    assert {request.id for request in receiver.requests} == set(cut_off)
