"""The end of a run: drain.linger keeps accepting, `drain --wait` reports when nothing is due."""

import signal
import subprocess
import time
from pathlib import Path

from tests.support import fork_server
from tests.support.harness import PATIENCE, Gateway, Receiver, running, until


def drain_and_wait(gateway: Gateway) -> "subprocess.CompletedProcess[str]":
    return fork_server.run("drain", "--wait", "--socket", str(gateway.control))


def test_the_gateway_accepts_until_the_linger_is_over(tmp_path: Path, receiver: Receiver) -> None:
    with running(tmp_path / "store", drain__timeout="10m", drain__linger="10m") as gateway:
        gateway.process.send_signal(signal.SIGTERM)
        until(lambda: gateway.get("/readyz").status_code == 503)
        assert drain_and_wait(gateway).returncode == 0, "nothing is due"
        for number in range(3):
            assert gateway.post(f"{receiver.url}/{number}").status_code == 202
            receiver.wait_for(lambda requests, number=number: len(requests) == number + 1)
            assert drain_and_wait(gateway).returncode == 0
        assert gateway.process.poll() is None
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(PATIENCE) == -signal.SIGTERM


def test_the_gateway_exits_after_the_linger(tmp_path: Path) -> None:
    with running(tmp_path / "store", drain__linger="1s") as gateway:
        began = time.monotonic()
        assert gateway.stop() == 0
        assert time.monotonic() - began >= 1
        assert gateway.events()[-1]["event"] == "exit"


def test_webhooks_accepted_in_the_linger_are_delivered_before_the_exit(tmp_path: Path, receiver: Receiver) -> None:
    entered, let_go = receiver.hang()
    with running(tmp_path / "store", drain__timeout="10m", drain__linger="500ms") as gateway:
        first = gateway.post(f"{receiver.url}/slow").json()["id"]
        assert entered.wait(PATIENCE)
        gateway.process.send_signal(signal.SIGTERM)
        until(lambda: gateway.get("/readyz").status_code == 503)
        second = gateway.post(f"{receiver.url}/meanwhile").json()["id"]
        let_go.set()
        assert gateway.process.wait(PATIENCE) == 0
        assert gateway.events()[-1]["waiting"] == 0
    assert {request.id for request in receiver.requests} == {first, second}


def test_drain_wait_is_1_while_something_is_due_or_in_flight(tmp_path: Path, receiver: Receiver) -> None:
    entered, let_go = receiver.hang()
    with running(tmp_path / "store", drain__timeout="200ms") as gateway:
        id = gateway.post(f"{receiver.url}/slow").json()["id"]
        assert entered.wait(PATIENCE)
        late = drain_and_wait(gateway)
        assert (late.returncode, late.stdout) == (1, "")
        assert "1 attempt in flight" in late.stderr
        let_go.set()
        until(lambda: gateway.message(id)["state"] == "delivered")
        assert drain_and_wait(gateway).returncode == 0


def test_a_later_retry_does_not_delay_a_drain(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answer = lambda request: 500
    with running(tmp_path / "store", drain__timeout="10m") as gateway:
        gateway.post(f"{receiver.url}/x")
        until(lambda: gateway.get("/status").json()["queues"]["retry"] == 1)
        assert drain_and_wait(gateway).returncode == 0
        assert gateway.stop() == 0
        assert gateway.events()[-1]["waiting_by_host"] == {f"127.0.0.1:{receiver.port}": 1}
