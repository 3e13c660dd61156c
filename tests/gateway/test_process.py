"""The process: ready line, signals, drain, exit statuses, one process for each store, and its cost when idle."""

import os
import re
import signal
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import fork_server
from tests.support.harness import PATIENCE, Gateway, Receiver, running, settings, until


def run(store: Path, **keys: object) -> "subprocess.CompletedProcess[str]":
    """A gateway that is expected to give up by itself."""
    return fork_server.run("run", env=settings(store, **keys))


def test_the_ready_line_has_addresses_and_the_absolute_store_path(gateway: Gateway, tmp_path: Path) -> None:
    line = gateway.out[0]
    assert str(tmp_path / "store") in line
    assert re.search(r"ingest http://127\.0\.0\.1:\d+, status http://127\.0\.0\.1:\d+", line)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_0(gateway: Gateway, number: signal.Signals) -> None:
    gateway.process.send_signal(number)
    assert gateway.process.wait(PATIENCE) == 0
    assert [event["event"] for event in gateway.events()][-2:] == ["draining", "exit"]


def test_the_control_socket_is_private_and_gone_after_exit(gateway: Gateway) -> None:
    mode = gateway.control.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    assert stat.S_IMODE(gateway.control.parent.stat().st_mode) == 0o700
    gateway.stop()
    assert not gateway.control.exists()


@pytest.mark.usefixtures("processes")
def test_drain_finishes_what_is_under_way_and_accepts_meanwhile(gateway: Gateway, receiver: Receiver) -> None:
    entered, let_go = receiver.hang()
    first = gateway.post(f"{receiver.url}/slow").json()["id"]
    assert entered.wait(PATIENCE)
    gateway.process.send_signal(signal.SIGTERM)
    until(lambda: gateway.get("/readyz").status_code == 503)
    assert gateway.get("/healthz").status_code == 200
    second = gateway.post(f"{receiver.url}/meanwhile").json()["id"]
    let_go.set()
    assert gateway.process.wait(PATIENCE) == 0
    assert {request.id for request in receiver.requests} == {first, second}
    assert gateway.events()[-1]["waiting"] == 0


@pytest.mark.usefixtures("processes")
def test_a_drain_ends_at_its_timeout_and_what_was_under_way_is_due_at_the_next_start(
    tmp_path: Path, receiver: Receiver
) -> None:
    entered, let_go = receiver.hang()
    with running(tmp_path / "store", drain__timeout="200ms") as gateway:
        id = gateway.post(f"{receiver.url}/hang").json()["id"]
        assert entered.wait(PATIENCE)
        assert gateway.stop() == 0
        last = gateway.events()[-1]
        assert last["waiting"] == 1
        assert last["waiting_by_host"] == {f"127.0.0.1:{receiver.port}": 1}
    let_go.set()
    receiver.answer = lambda request: 200
    with running(tmp_path / "store") as gateway:
        until(lambda: gateway.message(id)["state"] == "delivered")
        message = gateway.message(id)
    assert [attempt["error"] for attempt in message["attempts"]] == ["interrupted", None]
    assert message["attempts"][0]["fault"] == "here"
    assert message["retry"] == 0


@pytest.mark.usefixtures("processes")
def test_a_second_signal_ends_it_at_once(tmp_path: Path, receiver: Receiver) -> None:
    entered, let_go = receiver.hang()
    with running(tmp_path / "store", drain__timeout="10m") as gateway:
        gateway.post(f"{receiver.url}/hang")
        assert entered.wait(PATIENCE)
        gateway.process.send_signal(signal.SIGTERM)
        until(lambda: gateway.events()[-1]["event"] == "draining")
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(PATIENCE) == -signal.SIGTERM
    let_go.set()


def test_a_second_start_on_the_same_store_exits_3_and_names_the_first(gateway: Gateway, tmp_path: Path) -> None:
    second = run(tmp_path / "store")
    assert second.returncode == 3
    assert str(gateway.process.pid) in second.stderr
    assert gateway.get("/healthz").status_code == 200


def test_a_store_that_can_not_be_written_exits_3(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    done = run(in_the_way / "store")
    assert done.returncode == 3
    assert str(in_the_way) in done.stderr


def test_faults_of_the_config_exit_2_and_are_all_listed(tmp_path: Path) -> None:
    done = run(tmp_path / "store", delivery__per_host="none", retry__base="soon", store__spool="true")
    assert done.returncode == 2
    for expected in ("delivery.per_host", "retry.base", "store.spool", "store.url"):
        assert expected in done.stderr
    assert not (tmp_path / "store").exists()


@pytest.mark.usefixtures("processes")
def test_an_address_in_use_is_one_line_of_output(gateway: Gateway, tmp_path: Path) -> None:
    done = run(tmp_path / "other", listen__ingest=gateway.ingest)
    assert done.returncode == 1
    assert f"can't listen on {gateway.ingest}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_stale_control_socket_is_replaced(tmp_path: Path) -> None:
    with running(tmp_path / "store") as gateway:
        gateway.kill()
        assert gateway.control.exists()
    with running(tmp_path / "store") as gateway:
        assert gateway.call("GET", "/v1/status").status_code == 200


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> dict[str, int]:
    text = Path(f"/proc/{pid}/status").read_text()
    return {name: int(size) for name, size in re.findall(r"(VmRSS|RssAnon|RssFile):\s+(\d+) kB", text)}


@pytest.mark.usefixtures("processes")
def test_a_crash_writes_no_core_file(tmp_path: Path) -> None:
    """Whatever limit it was started with."""
    script = tmp_path / "with-cores"
    script.write_text(f'#!/bin/sh\nulimit -S -c "$(ulimit -H -c)"\ncd {tmp_path}\nexec "{fork_server.HOLDFAST}" "$@"\n')
    script.chmod(0o700)
    with fork_server.executing(str(script)), running(tmp_path / "store") as gateway:
        for pid in reversed(gateway.pids):
            limits = Path(f"/proc/{pid}/limits").read_text()
            assert re.search(r"^Max core file size +0 ", limits, re.MULTILINE)
            os.kill(pid, signal.SIGSEGV)
        assert gateway.process.wait(PATIENCE) == -signal.SIGSEGV
    assert not list(tmp_path.glob("core*"))


@pytest.mark.usefixtures("executed")
def test_idle_it_takes_little_memory_and_no_cpu(gateway: Gateway, measured: Callable[[str], None]) -> None:
    gateway.get("/healthz")
    pid = gateway.process.pid
    before = cpu_seconds(pid)
    threading.Event().wait(10)
    used = cpu_seconds(pid) - before
    rss = memory(pid)
    measured(f"idle over 10 s: {used * 1000:.0f} ms of CPU; in kB {rss}")
    assert rss["VmRSS"] < 48 * 1024
    assert used < 0.05
