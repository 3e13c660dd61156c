"""The Job's command on a real store: it ends when nothing waits any more, and never before."""

import os
import signal
import subprocess
from pathlib import Path

import yaml

from tests.deploy.manifests import KUBERNETES
from tests.support.harness import HOLDFAST, PATIENCE, Receiver, running, settings, until


def command() -> list[str]:
    job = yaml.safe_load((KUBERNETES / "orphan-drain/job.yaml").read_text())
    return [str(word) for word in job["spec"]["template"]["spec"]["containers"][0]["command"]]


def start_job(store: Path, **keys: object) -> "subprocess.Popen[bytes]":
    environment = settings(store, **keys)
    environment["PATH"] = f"{Path(HOLDFAST).parent}:{environment['PATH']}"
    with (store.parent / "job.log").open("ab") as log:
        return subprocess.Popen(command(), env=environment, stdout=log, stderr=log, start_new_session=True)


def finish(job: "subprocess.Popen[bytes]") -> None:
    if job.poll() is None:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait(PATIENCE)


def orphan(store: Path, receiver: Receiver) -> str:
    """A store in which one message waits for its retry."""
    receiver.answer = lambda request: 503
    with running(store, retry__base="2s") as gateway:
        id = str(gateway.post(f"{receiver.url}/x").json()["id"])
        until(lambda: gateway.message(id)["state"] == "retrying")
        gateway.stop()
    return id


def test_the_job_ends_when_waiting_messages_are_delivered(tmp_path: Path, receiver: Receiver) -> None:
    id = orphan(tmp_path / "store", receiver)
    receiver.answer = lambda request: 200
    job = start_job(tmp_path / "store")
    try:
        assert job.wait(PATIENCE) == 0, (tmp_path / "job.log").read_text()
    finally:
        finish(job)
    assert (receiver.requests[-1].id, receiver.requests[-1].status) == (id, 200)


def test_a_stopped_job_has_failed_and_nothing_is_lost(tmp_path: Path, receiver: Receiver) -> None:
    id = orphan(tmp_path / "store", receiver)
    job = start_job(tmp_path / "store", retry__base="1h")
    try:
        until(lambda: b'"ready"' in (tmp_path / "job.log").read_bytes())
        job.send_signal(signal.SIGTERM)
        assert job.wait(PATIENCE) == 1, (tmp_path / "job.log").read_text()
    finally:
        finish(job)
    with running(tmp_path / "store") as gateway:
        assert gateway.message(id)["state"] in ("retrying", "in_flight")


def test_a_gateway_that_does_not_start_fails_the_job_with_its_own_status(tmp_path: Path) -> None:
    job = start_job(tmp_path / "store", log__level="loud")
    try:
        assert job.wait(PATIENCE) == 2
    finally:
        finish(job)
