"""The disk fails a sync or the write of a meta page: nothing is acknowledged, the gateway ends, and the next start
continues from the disk.
"""

import errno
import os
import random
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from holdfast.store.embedded.lmdb import LmdbEngine
from tests.crash.image_check import Judge
from tests.crash.power import Platter, subsets
from tests.crash.recorder import Kind, Record, Recorder
from tests.support import fork_server
from tests.support.harness import PATIENCE, PLAIN, Gateway, Receiver, running, settings, start, until
from tests.support.repetitions import cases

SENDERS = 8
BEFORE = 5
"""Webhooks acknowledged before anything fails."""
KEYS: dict[str, object] = {"store__max_size": "64MiB"}
WRITES = (Kind.WRITE, Kind.SIZE, Kind.SYNC_BEGAN, Kind.SYNCED, Kind.WRITTEN)


class Load:
    """Clients that post webhooks, each with its own key, until one is not answered 202."""

    def __init__(self, gateway: Gateway, target: str) -> None:
        self.acknowledged: dict[str, str] = {}
        """Ids by keys."""
        self.refused: dict[str, int] = {}
        """Statuses by keys; 0 without an answer."""
        self._lock = threading.Lock()
        self._url = f"http://{gateway.ingest}/{target}"
        self._threads = [threading.Thread(target=self._send, args=(name,)) for name in range(SENDERS)]

    def post(self, client: httpx.Client, key: str) -> bool:
        try:
            answer = client.post(self._url, content=key.encode() * 100, headers={"idempotency-key": key})
        except httpx.HTTPError:
            answer = None
        with self._lock:
            if answer is None or answer.status_code != 202:
                self.refused[key] = answer.status_code if answer is not None else 0
                return False
            self.acknowledged[key] = answer.json()["id"]
            return True

    def post_some(self, keys: list[str]) -> bool:
        with httpx.Client(**PLAIN) as client:
            return all(self.post(client, key) for key in keys)

    def _send(self, sender: int) -> None:
        number = 0
        with httpx.Client(**PLAIN) as client:
            while self.post(client, f"k{sender}-{number}"):
                number += 1

    def until_refused(self) -> None:
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()


@contextmanager
def failing(recorder: Recorder, store: Path, fail: str, **keys: object) -> Iterator[Gateway]:
    """A gateway whose disk fails once, when the test has armed it."""
    with recorder.loaded(store, fail=fail, armed=str(recorder.armed)):
        gateway = start(store, **KEYS, **keys)
    with closing(gateway):
        # A start reviews its lanes, in a commit of its own: that one is not to fail.
        until(lambda: has_committed(gateway))
        yield gateway


def has_committed(gateway: Gateway) -> bool:
    return "\nholdfast_commit_operations_count 0" not in gateway.get("/metrics").text


def run_until_it_fails(recorder: Recorder, store: Path, target: str, fail: str) -> tuple[Gateway, Load]:
    with failing(recorder, store, fail) as gateway:
        load = Load(gateway, target)
        assert load.post_some([f"before-{number}" for number in range(BEFORE)])
        recorder.armed.touch()
        load.until_refused()
        gateway.process.wait(PATIENCE)
    return gateway, load


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store that was there before."""
    LmdbEngine(tmp_path / "store", 64 << 20).close()
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("fail", "lost"),
    cases(
        [("sync:1:EIO", True), ("sync:2:EIO", False), ("meta:2:EIO", False), ("meta:2:short", False)],
        [("sync:3:EIO", True), ("sync:4:EIO", False), ("meta:1:EIO", True), ("meta:3:ENOSPC", False)],
    ),
)
def test_a_disk_that_fails_ends_the_gateway_and_loses_nothing(
    tmp_path: Path, store: Path, receiver: Receiver, fail: str, lost: bool
) -> None:
    """`lost`: whatever was not synced is gone at the next start, as after a power cut; else it is in the cache."""
    recorder, judge = Recorder(tmp_path), Judge(tmp_path, **KEYS)
    image = judge.take(store)
    _, let_go = receiver.hang()
    gateway, load = run_until_it_fails(recorder, store, f"{receiver.url}/hook", fail)
    let_go.set()
    assert_it_ended_by_its_disk(gateway)
    assert set(load.refused.values()) <= {503, 0}
    assert 503 in load.refused.values()
    records = recorder.records()
    assert_nothing_is_written_after_it(records)
    with Platter(image) as platter:
        *_, cut = platter.cuts(records)
        assert set(load.acknowledged.values()) <= cut.acknowledged
        for subset in subsets(cut, random.Random(0), seeded=50):
            platter.show(subset)
            assert cut.acknowledged <= judge.read().messages
        platter.show(frozenset())
    if lost:
        shutil.copy(image, store)
    repeat_and_deliver(store, receiver, load)


def assert_it_ended_by_its_disk(gateway: Gateway) -> None:
    assert gateway.process.wait(PATIENCE) == 4
    assert [event["event"] for event in gateway.events() if event["level"] == "critical"] == ["store_failed"]
    assert "Traceback" not in gateway.log.read_text()


def assert_nothing_is_written_after_it(records: list[Record]) -> None:
    (failed,) = [number for number, record in enumerate(records) if record.kind is Kind.FAILED]
    after = [record for record in records[failed + 1 :] if record.kind in WRITES]
    if records[failed].offset:
        # LMDB itself takes back what it tried to write to the meta page, so that this process can't go on with it.
        (undone,) = after
        assert undone.kind is Kind.WRITE
        assert undone.offset == records[failed].offset
    else:
        assert after == []


def repeat_and_deliver(store: Path, receiver: Receiver, load: Load) -> None:
    """The next start is clean; a client that repeats what was not acknowledged, with its key, gets each across once."""
    receiver.answer = lambda request: 200
    with running(store, **KEYS) as gateway:
        again = Load(gateway, f"{receiver.url}/hook")
        assert again.post_some(list(load.refused))
        ids = load.acknowledged | again.acknowledged
        receiver.wait_for(lambda requests: set(ids.values()) <= {each.id for each in requests if each.status == 200})
        assert gateway.stop() == 0
    met = {(request.headers["idempotency-key"], request.id) for request in receiver.requests}
    assert met == set(ids.items())


@pytest.mark.parametrize("fail", cases(["sync:1:EIO"], ["meta:1:EIO"]))
def test_a_disk_that_fails_an_outcome(tmp_path: Path, store: Path, receiver: Receiver, fail: str) -> None:
    recorder = Recorder(tmp_path)
    entered, let_go = receiver.hang()
    with failing(recorder, store, fail) as gateway:
        load = Load(gateway, f"{receiver.url}/hook")
        assert load.post_some([f"k{number}" for number in range(40)])
        assert entered.wait(PATIENCE)
        recorder.armed.touch()
        let_go.set()
        assert_it_ended_by_its_disk(gateway)
    assert_nothing_is_written_after_it(recorder.records())
    repeat_and_deliver(store, receiver, load)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("fail", cases(["sync:1:EIO"], ["meta:1:EIO"]))
def test_requests_in_progress_end_in_order_after_the_disk_failed(
    tmp_path: Path, store: Path, receiver: Receiver, fail: str
) -> None:
    """A client that is slow with its body keeps the gateway; meanwhile a retry comes due, and an operator asks."""
    recorder = Recorder(tmp_path)
    receiver.answer = lambda request: 500
    with failing(recorder, store, fail, retry__base="1500ms") as gateway:
        load = Load(gateway, f"{receiver.url}/hook")
        assert load.post_some(["one"])
        until(lambda: gateway.message(load.acknowledged["one"])["attempts"])
        with socket.create_connection(("127.0.0.1", int(gateway.ingest.split(":")[1]))) as slow:
            slow.sendall(f"POST /{receiver.url}/hook HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n".encode())
            recorder.armed.touch()
            assert not load.post_some(["two"])
            assert load.refused["two"] in (503, 0)
            with suppress(httpx.TransportError):
                assert gateway.get("/readyz").status_code == 503
                assert gateway.get(f"/messages/{load.acknowledged['one']}").status_code in (200, 503)
            assert_it_ended_by_its_disk(gateway)
    assert_nothing_is_written_after_it(recorder.records())
    repeat_and_deliver(store, receiver, load)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("fail", cases(["sync:1:EIO"], ["sync:2:EIO", "meta:1:EIO"]))
def test_a_disk_that_fails_in_the_drain(tmp_path: Path, store: Path, receiver: Receiver, fail: str) -> None:
    recorder = Recorder(tmp_path)
    entered, let_go = receiver.hang()
    with failing(recorder, store, fail, drain__timeout="10ms") as gateway:
        load = Load(gateway, f"{receiver.url}/hook")
        assert load.post_some(["one", "two"])
        assert entered.wait(PATIENCE)
        recorder.armed.touch()
        gateway.stop()
        assert_it_ended_by_its_disk(gateway)
    let_go.set()
    assert_nothing_is_written_after_it(recorder.records())
    repeat_and_deliver(store, receiver, load)


@pytest.mark.parametrize("fail", cases(["meta:1:EIO"], ["sync:1:EIO"]))
def test_an_operator_s_action_reports_that_the_disk_failed(tmp_path: Path, store: Path, fail: str) -> None:
    recorder = Recorder(tmp_path)
    with failing(recorder, store, fail) as gateway:
        recorder.armed.touch()
        answer = gateway.call("POST", "/v1/circuits/api.example.com:443/freeze")
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:holdfast:problem:store-failed")
        assert_it_ended_by_its_disk(gateway)


@pytest.mark.parametrize("fail", cases(["sync:1:EIO", "meta:1:EIO", "folder:1:EIO"], ["sync:2:EIO", "folder:2:EIO"]))
def test_a_disk_that_fails_while_a_store_is_made(tmp_path: Path, fail: str) -> None:
    """Nothing rests on it yet: it is a store that can't be used, and the next start may well succeed."""
    ended = start_in_vain(Recorder(tmp_path), tmp_path / "store", fail)
    assert ended.returncode == 3
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"holdfast: {tmp_path / 'store'}")
    assert line.endswith(os.strerror(errno.EIO))
    with running(tmp_path / "store", **KEYS) as gateway:
        assert gateway.stop() == 0


@pytest.mark.parametrize("fail", cases(["meta:1:EIO"], ["sync:1:EIO"]))
def test_a_disk_that_fails_while_a_start_takes_over(tmp_path: Path, store: Path, receiver: Receiver, fail: str) -> None:
    """What a killed gateway had in its hands goes back to the queues in the first commit of the next."""
    entered, let_go = receiver.hang()
    with running(store, **KEYS) as gateway:
        load = Load(gateway, f"{receiver.url}/hook")
        assert load.post_some(["one", "two"])
        assert entered.wait(PATIENCE)
        gateway.kill()
    let_go.set()
    ended = start_in_vain(Recorder(tmp_path), store, fail)
    assert ended.returncode == 4
    assert '"store_failed"' in ended.stderr
    assert "Traceback" not in ended.stderr
    repeat_and_deliver(store, receiver, load)


def start_in_vain(recorder: Recorder, store: Path, fail: str) -> "subprocess.CompletedProcess[str]":
    with recorder.loaded(store, fail=fail):
        environment = settings(store, **KEYS)
        ended = fork_server.run("run", env=environment)
    assert ended.stdout == "", "it said that it was ready"
    return ended
