"""A full disk is 507, not an exit: deliveries continue, nothing is lost, and free room is used again by itself."""

import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
from pytest import fixture

from tests.crash.volumes import small_volume, take_the_rest
from tests.support.harness import PATIENCE, Gateway, Receiver, running, until

MIB = 1 << 20
BODY = b"x" * 60_000
LANES = 40
SETTINGS = {
    "store__max_size": "1GiB",
    "store__host_share": "1.0",
    "circuit__scope": "url",
    "retry__base": "100ms",
    "retry__max_retries": "20",
}


@fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    with small_volume(tmp_path / "volume", "16m") as point:
        yield point


def fill(gateway: Gateway, receiver: Receiver) -> set[str]:
    """Post to many circuits until there is no room; the ids that were acknowledged."""
    acknowledged: set[str] = set()
    with httpx.Client(trust_env=False, verify=False, timeout=PATIENCE) as client:
        for number in range(1_000):
            url = f"http://{gateway.ingest}/{receiver.url}/hook/{number % LANES}"
            answer = client.post(url, content=BODY)
            if answer.status_code == 507:
                assert answer.headers["retry-after"]
                assert "store" in answer.json()["detail"]
                return acknowledged
            assert answer.status_code == 202
            acknowledged.add(answer.json()["id"])
    raise AssertionError("never full")


def is_full(gateway: Gateway) -> bool:
    ready = gateway.get("/readyz")
    assert ready.status_code == 200
    full: list[str] = ready.json()["degraded"]
    return full == ["store_full"]


def accepts(gateway: Gateway, receiver: Receiver, known: set[str]) -> bool:
    answer = gateway.post(f"{receiver.url}/hook/new", BODY)
    if answer.status_code == 202:
        known.add(answer.json()["id"])
    return answer.status_code == 202


def all_delivered(receiver: Receiver, ids: set[str]) -> None:
    receiver.wait_for(lambda requests: ids <= {request.id for request in requests if request.status == 200})


def drains_and_heals(gateway: Gateway, receiver: Receiver, ids: set[str]) -> None:
    receiver.answer = lambda request: 200
    all_delivered(receiver, ids)
    until(lambda: accepts(gateway, receiver, ids))
    all_delivered(receiver, ids)
    until(lambda: not is_full(gateway))
    assert gateway.process.poll() is None


def test_a_full_volume_refuses_drains_and_accepts_again(
    volume: Path, receiver: Receiver, measured: Callable[[str], None]
) -> None:
    receiver.answer = lambda request: 500
    with running(volume, **SETTINGS) as gateway:
        ids = fill(gateway, receiver)
        until(lambda: is_full(gateway))
        assert [gateway.get(path).status_code for path in ("/readyz?strict", "/healthz")] == [503, 200]
        # Outcomes are recorded all the while: each failed attempt is a commit.
        tried = len(receiver.requests)
        receiver.wait_for(lambda requests: len(requests) > tried + 2 * LANES)
        assert not accepts(gateway, receiver, ids)
        measured(f"a volume of 16 MiB took {len(ids)} webhooks of 60 kB before 507")
        drains_and_heals(gateway, receiver, ids)
        again = fill(gateway, receiver) if not accepts(gateway, receiver, ids) else set()
        all_delivered(receiver, ids | again)
        assert gateway.stop() == 0


def test_room_that_becomes_free_is_used_by_itself(volume: Path, receiver: Receiver) -> None:
    _, let_go = receiver.hang()
    (volume / "other").write_bytes(bytes(7 * MIB))
    with running(volume, **SETTINGS) as gateway:
        ids = fill(gateway, receiver)
        until(lambda: is_full(gateway))
        (volume / "other").unlink()
        until(lambda: not is_full(gateway))
        assert accepts(gateway, receiver, ids)
        let_go.set()
        drains_and_heals(gateway, receiver, ids)


def test_a_start_on_a_full_volume_loses_nothing(volume: Path, receiver: Receiver) -> None:
    _, let_go = receiver.hang()
    with running(volume, **SETTINGS) as gateway:
        ids = fill(gateway, receiver)
        gateway.kill()
    take_the_rest(volume / "other")
    with running(volume, **SETTINGS) as gateway:
        let_go.set()
        drains_and_heals(gateway, receiver, ids)
        assert gateway.stop() == 0


def limit_files(gateway: Gateway, size: int) -> None:
    """What the gateway may write into one file from now on."""
    pid = gateway.process.pid
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]))


def test_a_limit_on_files_is_a_full_disk_too(tmp_path: Path, receiver: Receiver) -> None:
    _, let_go = receiver.hang()
    with running(tmp_path / "store", **SETTINGS) as gateway:
        limit_files(gateway, 14 * MIB)
        ids = fill(gateway, receiver)
        until(lambda: is_full(gateway))
        limit_files(gateway, 20 * MIB)
        until(lambda: not is_full(gateway))
        ids |= fill(gateway, receiver)
        let_go.set()
        drains_and_heals(gateway, receiver, ids)
        assert gateway.stop() == 0
