"""A new config is applied by SIGHUP or by command, without dropping a connection or an attempt."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from holdfast.config import build
from holdfast.config.keys import NEEDS_RESTART
from holdfast.process.reload import changed, merge
from tests.gateway.hostile import Caller, raw_receiver
from tests.support import fork_server
from tests.support.harness import PATIENCE, PLAIN, Gateway, Receiver, running, until

ROUTE = '[routes.billing]\nurl = "{url}/in"\n'


@contextmanager
def configured(tmp_path: Path, text: str = "") -> Iterator[tuple[Gateway, Path]]:
    file = tmp_path / "holdfast.toml"
    file.write_text(text)
    with running(tmp_path / "store", config=file) as gateway:
        yield gateway, file


@pytest.mark.usefixtures("processes")
def test_a_new_route_works_after_a_reload_and_the_connection_stays(tmp_path: Path, receiver: Receiver) -> None:
    with configured(tmp_path) as (gateway, file), httpx.Client(**PLAIN) as client:
        url = f"http://{gateway.ingest}/to/billing/x"
        assert client.post(url, content=b"1").status_code == 404
        file.write_text(ROUTE.format(url=receiver.url))
        answer = gateway.call("POST", "/v1/reload")
        assert answer.json() == {"changed": ["routes.billing"], "needs_restart": []}
        assert client.post(url, content=b"2").status_code == 202
        assert receiver.wait_for_one().path == "/in/x"


@pytest.mark.usefixtures("processes")
def test_sighup_reloads(tmp_path: Path, receiver: Receiver) -> None:
    with configured(tmp_path) as (gateway, file):
        file.write_text(ROUTE.format(url=receiver.url) + "[log]\nlevel = 'debug'\n")
        gateway.process.send_signal(signal.SIGHUP)
        told = until(lambda: [event for event in gateway.events() if event["event"] == "reloaded"])
        assert told[0]["changed"] == ["log.level", "routes.billing"]


@pytest.mark.usefixtures("processes")
def test_a_bad_file_keeps_the_old_config_and_says_why(tmp_path: Path, receiver: Receiver) -> None:
    with configured(tmp_path, ROUTE.format(url=receiver.url)) as (gateway, file):
        file.write_text("[retry]\nbase = 'soon'\n[routes.billing]\nurl = 'ftp://x'\n")
        answer = gateway.call("POST", "/v1/reload")
        assert answer.status_code == 422
        assert len(answer.json()["faults"]) == 2
        gateway.process.send_signal(signal.SIGHUP)
        until(lambda: sum(event["event"] == "reload_refused" for event in gateway.events()) == 2)
        assert httpx.post(f"http://{gateway.ingest}/to/billing", **PLAIN).status_code == 202
        receiver.wait_for_one()


def test_a_pipe_as_a_named_file_is_refused_at_once(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("let-me-in-0123456789")
    with configured(tmp_path, f'[ingest]\ntoken_file = "{token}"\n') as (gateway, _):
        token.unlink()
        os.mkfifo(token)
        answer = gateway.call("POST", "/v1/reload")
        assert answer.status_code == 422
        assert "not a regular file" in answer.json()["detail"]
        assert gateway.get("/healthz").status_code == 200


def test_a_config_that_was_a_pipe_stays_as_it_was_read(tmp_path: Path, receiver: Receiver) -> None:
    file = tmp_path / "holdfast.toml"
    os.mkfifo(file)
    writer = threading.Thread(target=file.write_text, args=(ROUTE.format(url=receiver.url),))
    writer.start()
    with running(tmp_path / "store", config=file) as gateway:
        writer.join()
        answer = gateway.call("POST", "/v1/reload")
        assert answer.status_code == 422
        assert "it is a pipe, which can be read only once" in answer.json()["detail"]
        assert httpx.post(f"http://{gateway.ingest}/to/billing", **PLAIN).status_code == 202
        receiver.wait_for_one()


@pytest.mark.parametrize("other", ["a pipe", "a device"])
def test_an_endless_file_as_config_is_refused_at_once(tmp_path: Path, receiver: Receiver, other: str) -> None:
    with configured(tmp_path, ROUTE.format(url=receiver.url)) as (gateway, file):
        file.unlink()
        if other == "a pipe":
            os.mkfifo(file)
        else:
            file.symlink_to("/dev/zero")
        gateway.process.send_signal(signal.SIGHUP)
        until(lambda: any(event["event"] == "reload_refused" for event in gateway.events()))
        assert httpx.post(f"http://{gateway.ingest}/to/billing", **PLAIN).status_code == 202
        receiver.wait_for_one()


def test_keys_that_need_a_restart_are_reported_and_not_applied(tmp_path: Path) -> None:
    with configured(tmp_path) as (gateway, file):
        file.write_text("[delivery]\nmax_answer = '1KiB'\nper_host = 3\n")
        answer = gateway.call("POST", "/v1/reload").json()
        assert answer == {"changed": ["delivery.per_host"], "needs_restart": ["delivery.max_answer"]}


@pytest.mark.usefixtures("processes")
def test_an_attempt_in_flight_continues_through_a_reload(tmp_path: Path, receiver: Receiver) -> None:
    entered, let_go = receiver.hang()
    with configured(tmp_path) as (gateway, file):
        id = gateway.post(f"{receiver.url}/slow").json()["id"]
        assert entered.wait(PATIENCE)
        file.write_text("[delivery]\nfirst_attempts = 16\nper_host = 1\n")
        assert gateway.call("POST", "/v1/reload").status_code == 200
        let_go.set()
        until(lambda: gateway.message(id)["state"] == "delivered")
        assert len(gateway.message(id)["attempts"]) == 1
        assert gateway.get(f"/circuits/127.0.0.1:{receiver.port}").json()["limit"] == 1


def test_a_reload_of_per_host_sets_how_many_connections_are_kept(tmp_path: Path) -> None:
    """Four at once, twice: the second four go over the connections of the first four."""
    gathered = threading.Barrier(4, timeout=PATIENCE)

    def script(caller: Caller) -> None:
        while request := caller.request()[0]:
            if request.startswith(b"POST /together"):
                gathered.wait()
            caller.say(b"HTTP/1.1 204 Taken\r\n\r\n")

    with configured(tmp_path, "[delivery]\nper_host = 1\n") as (gateway, file), raw_receiver(script) as receiver:
        file.write_text("[delivery]\nper_host = 4\n")
        assert gateway.call("POST", "/v1/reload").json()["changed"] == ["delivery.per_host"]

        def deliver(path: str, count: int) -> None:
            ids = [gateway.post(f"{receiver.url}/{path}").json()["id"] for _ in range(count)]
            until(lambda: all(gateway.message(id)["state"] == "delivered" for id in ids))

        for _ in range(8):
            deliver("one", 1)  # until the host may have four at once
        deliver("together", 4)
        opened = receiver.connections
        deliver("together", 4)
        assert receiver.connections == opened


def test_the_command_says_what_changed_what_waits_and_what_is_wrong(tmp_path: Path) -> None:
    with configured(tmp_path) as (gateway, file):

        def reload() -> "subprocess.CompletedProcess[str]":
            return fork_server.run("reload", "--socket", str(gateway.control))

        assert reload().stdout == "reloaded: nothing has changed\n"
        file.write_text("[retry]\njitter = 0.5\n[delivery]\nmax_answer = '1KiB'\n")
        assert reload().stdout == "reloaded: retry.jitter\nwaits for a restart: delivery.max_answer\n"
        file.write_text("[retry]\njitter = 'much'\n")
        refused = reload()
        assert refused.returncode == 1
        assert "retry.jitter" in refused.stderr


def test_every_key_that_needs_a_restart_is_one_of_the_config() -> None:
    running_one = build({})
    for key in NEEDS_RESTART:
        section, _, name = key.partition(".")
        assert hasattr(getattr(running_one, section), name)


def test_merging_keeps_the_keys_that_need_a_restart() -> None:
    old = build({})
    new = build({"store": {"max_size": "1GiB", "host_share": 0.2}, "ingest": {"idempotency": "1h"}})
    merged, left = merge(old, new)
    assert left == ["store.max_size", "ingest.idempotency"]
    assert (merged.store.max_size, merged.store.host_share) == (old.store.max_size, 0.2)
    assert changed(old, merged) == ["store.host_share"]


def test_a_reload_that_denies_a_name_warns_as_a_start_does(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text('[egress]\ndeny = ["192.0.2.0/24"]\n')
    with running(tmp_path / "store", config=file) as gateway:
        assert not [event for event in gateway.events() if event["event"] == "denied_by_name"]
        file.write_text('[egress]\ndeny = ["192.0.2.0/24", "api.example"]\n')
        gateway.call("POST", "/v1/reload")
        [told] = until(lambda: [event for event in gateway.events() if event["event"] == "denied_by_name"])
        assert told["names"] == ["api.example"]


def test_a_reload_that_opens_loopback_warns_as_a_start_does(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text("[egress]\nallow_loopback = false\n")
    with running(tmp_path / "store", config=file, egress__allow_loopback=None) as gateway:
        assert not [event for event in gateway.events() if event["event"] == "loopback_allowed"]
        file.write_text("[egress]\nallow_loopback = true\n")
        assert gateway.call("POST", "/v1/reload").json()["changed"] == ["egress.allow_loopback"]
        until(lambda: [event for event in gateway.events() if event["event"] == "loopback_allowed"])
