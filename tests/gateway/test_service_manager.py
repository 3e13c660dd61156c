"""Notifications of a real process to its service manager, on a datagram socket, and when the watchdog gets none."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from holdfast.process.service_manager import Notifier
from tests.support.harness import PATIENCE, Gateway, start


class Manager:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(name.replace("@", "\0", 1) if name.startswith("@") else name)
        self._socket.settimeout(PATIENCE)

    def hear(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self._socket.recv(4096).decode().splitlines())

    def hear_until(self, word: str) -> list[dict[str, str]]:
        """All up to the first message with this word, that one included."""
        heard = [self.hear()]
        while word not in heard[-1]:
            heard.append(self.hear())
        return heard

    def hears_nothing_more(self) -> bool:
        self._socket.setblocking(False)
        try:
            self._socket.recv(4096)
        except BlockingIOError:
            return True
        finally:
            self._socket.settimeout(PATIENCE)
        return False

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    name = f"@holdfast-test-{os.getpid()}" if request.param == "abstract" else str(tmp_path / "notify")
    manager = Manager(name)
    yield manager
    manager.close()


@pytest.fixture
def managed(manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.name)
    config = tmp_path / "holdfast.toml"
    config.write_text("")
    gateway = start(tmp_path / "store", config)
    yield gateway
    gateway.close()


def test_the_manager_is_notified_of_ready_reloading_and_stopping(
    manager: Manager, managed: Gateway, tmp_path: Path
) -> None:
    ready = {"READY": "1", "STATUS": f"ingest http://{managed.ingest}, status http://{managed.status}"}
    assert manager.hear() == ready
    managed.process.send_signal(signal.SIGHUP)
    assert [manager.hear(), manager.hear()] == [{"RELOADING": "1"}, {"READY": "1"}]
    (tmp_path / "holdfast.toml").write_text("[log]\nlevel = 'loud'\n")
    assert managed.call("POST", "/v1/reload").status_code == 422
    assert [manager.hear(), manager.hear()] == [{"RELOADING": "1"}, {"READY": "1"}]
    assert manager.hears_nothing_more()
    assert managed.stop() == 0
    stopping = {"STOPPING": "1", "EXTEND_TIMEOUT_USEC": "20000000", "STATUS": "draining, at most 10 s"}
    assert manager.hear() == stopping
    assert manager.hears_nothing_more()


@pytest.mark.parametrize("manager", ["path"], indirect=True)
def test_the_watchdog_is_notified(manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.name)
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    gateway = start(tmp_path / "store")
    try:
        for _ in range(5):
            assert manager.hear_until("WATCHDOG")[-1] == {"WATCHDOG": "1"}
        gateway.process.send_signal(signal.SIGTERM)
        assert manager.hear_until("STOPPING")[-1]["STOPPING"] == "1"
        assert gateway.process.wait(PATIENCE) == 0
    finally:
        gateway.close()


@pytest.mark.parametrize("manager", ["path"], indirect=True)
@pytest.mark.parametrize("pid", ["1", ""])
def test_a_watchdog_for_another_process_is_not_notified(
    pid: str, manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.name)
    monkeypatch.setenv("WATCHDOG_USEC", "1000")
    monkeypatch.setenv("WATCHDOG_PID", pid)
    gateway = start(tmp_path / "store")
    try:
        gateway.stop()
        assert [set(heard) for heard in manager.hear_until("STOPPING")] == [
            {"READY", "STATUS"},
            {"STOPPING", "EXTEND_TIMEOUT_USEC", "STATUS"},
        ]
    finally:
        gateway.close()


@pytest.mark.parametrize("manager", ["path"], indirect=True)
async def test_the_watchdog_is_not_notified_while_the_store_fails(
    manager: Manager, autojump_clock: trio.testing.MockClock
) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "60000000"})
    trouble: list[str | None] = ["a commit has been under way for 31 s"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notifier.keep_watch, lambda: trouble[0])
        await trio.sleep(1000)
        assert manager.hears_nothing_more()
        trouble[0] = None
        await trio.sleep(31)
        assert manager.hear() == {"WATCHDOG": "1"}
        nursery.cancel_scope.cancel()


async def test_without_a_watchdog_the_process_does_not_wake_up(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    for environ in (
        {},
        {"WATCHDOG_USEC": "100"},
        {"NOTIFY_SOCKET": "/x"},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "0"},
    ):
        await Notifier(environ).keep_watch(lambda: None)


def test_a_manager_that_does_not_listen_does_not_block_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    gateway = start(tmp_path / "store")
    try:
        assert gateway.get("/readyz").status_code == 200
        assert gateway.stop() == 0
        assert [each["message"] for each in gateway.events() if each["event"] == "notify_failed"] == [
            "READY=1",
            "STOPPING=1",
        ]
    finally:
        gateway.close()
