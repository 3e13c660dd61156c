"""process.watch_config: a config that changes on disk is applied by itself, however it was changed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.process.reload import Watch
from tests.support.harness import PLAIN, Gateway, Receiver, running, until

ROUTE = '[routes.{name}]\nurl = "{url}/in"\n'


@contextmanager
def watching(file: Path, tmp_path: Path, **keys: object) -> Iterator[Gateway]:
    with running(tmp_path / "store", config=file, process__watch_config="true", **keys) as gateway:
        yield gateway


def told(gateway: Gateway, name: str) -> list[dict[str, Any]]:
    return [event for event in gateway.events() if event["event"] == name]


def reloaded(gateway: Gateway, key: str) -> bool:
    return any(key in event["changed"] for event in told(gateway, "reloaded"))


def send(gateway: Gateway, route: str, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(f"http://{gateway.ingest}/to/{route}", headers=named, **PLAIN).status_code


def test_a_plain_rewrite_and_an_atomic_rename(tmp_path: Path, receiver: Receiver) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text("")
    with watching(file, tmp_path) as gateway:
        assert send(gateway, "one") == 404
        file.write_text(ROUTE.format(name="one", url=receiver.url))
        until(lambda: reloaded(gateway, "routes.one"))
        assert send(gateway, "one") == 202
        beside = tmp_path / "new.toml"
        beside.write_text(ROUTE.format(name="two", url=receiver.url))
        beside.rename(file)
        until(lambda: reloaded(gateway, "routes.two"))
        assert (send(gateway, "one"), send(gateway, "two")) == (404, 202)
        assert len(told(gateway, "reloaded")) == 2


def swap(folder: Path, version: str, **files: str) -> None:
    """As a kubelet does it: a new folder, and one link that is moved to it at once."""
    data = folder / f"..{version}"
    data.mkdir()
    for name, text in files.items():
        (data / name).write_text(text)
    link = folder / "..data_tmp"
    link.symlink_to(data.name)
    link.rename(folder / "..data")


def test_a_config_map(tmp_path: Path, receiver: Receiver) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    swap(folder, "2026_01", config="", token="one")
    for name in ("config", "token"):
        (folder / name).symlink_to(f"..data/{name}")
    with watching(folder / "config", tmp_path, ingest__token_file=folder / "token") as gateway:
        assert send(gateway, "billing", holdfast_token="one") == 404
        swap(folder, "2026_02", config=ROUTE.format(name="billing", url=receiver.url), token="one")
        until(lambda: reloaded(gateway, "routes.billing"))
        assert send(gateway, "billing", holdfast_token="one") == 202
        # Of what a config names the content alone may change.
        swap(folder, "2026_03", config=ROUTE.format(name="billing", url=receiver.url), token="two")
        until(lambda: send(gateway, "billing", holdfast_token="two") == 202)
        assert send(gateway, "billing", holdfast_token="one") == 403
        assert [event["changed"] for event in told(gateway, "reloaded")] == [["routes.billing"], []]


def test_a_bad_file_is_logged_once_and_a_good_one_after_it_is_applied(tmp_path: Path, receiver: Receiver) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text(ROUTE.format(name="one", url=receiver.url))
    with watching(file, tmp_path) as gateway:
        file.write_text("[routes.one\n")
        until(lambda: told(gateway, "reload_refused"))
        assert send(gateway, "one") == 202
        os.utime(file, (1, 1))  # touched, and as bad as before
        file.write_text("[retry]\nbase = 'soon'\n")
        until(lambda: len(told(gateway, "reload_refused")) == 2)
        assert "retry.base" in told(gateway, "reload_refused")[1]["faults"][0]
        file.write_text(ROUTE.format(name="two", url=receiver.url))
        until(lambda: reloaded(gateway, "routes.two"))
        assert len(told(gateway, "reload_refused")) == 2


def test_a_config_that_a_reload_applied_is_not_applied_again(tmp_path: Path, receiver: Receiver) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text("")
    with watching(file, tmp_path) as gateway:
        file.write_text(ROUTE.format(name="one", url=receiver.url))
        assert gateway.call("POST", "/v1/reload").json()["changed"] == ["routes.one"]
        file.write_text(ROUTE.format(name="two", url=receiver.url))
        until(lambda: reloaded(gateway, "routes.two"))
        assert len(told(gateway, "reloaded")) == 2


# -- look by look ------------------------------------------------------------------------------------------------------


class Watched:
    """A watch on some files that takes over whatever it finds."""

    def __init__(self, *files: Path) -> None:
        self.files = list(files)
        self._watch = Watch(lambda: self.files)
        self._watch.remember()

    def found(self, looks: int = 3) -> int:
        """How often so many looks had something to take over."""
        times = 0
        for _ in range(looks):
            if self._watch.look():
                self._watch.remember()
                times += 1
        return times


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    (tmp_path / "config").write_text("one")
    return Watched(tmp_path / "config")


def test_a_file_is_applied_only_when_it_is_no_longer_written(watched: Watched) -> None:
    for size in range(10):
        watched.files[0].write_text("x" * size)
        assert watched.found(1) == 0
    assert watched.found() == 1


def test_a_touched_or_identical_file_is_no_change(watched: Watched) -> None:
    os.utime(watched.files[0], (1, 1))
    assert watched.found() == 0
    watched.files[0].write_text("one")
    assert watched.found() == 0


def test_a_deleted_and_restored_file_is_noticed(watched: Watched) -> None:
    watched.files[0].unlink()
    assert watched.found() == 1
    watched.files[0].write_text("one")
    assert watched.found() == 1


def test_a_newly_named_file_is_watched(watched: Watched, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one")
    watched.files.append(tmp_path / "token")
    assert watched.found() == 0
    (tmp_path / "token").write_text("another")
    assert watched.found() == 1


def test_a_pipe_or_a_device_in_its_place_is_reported_once_and_not_read(watched: Watched) -> None:
    file = watched.files[0]
    file.unlink()
    os.mkfifo(file)
    assert watched.found() == 1
    file.unlink()
    file.symlink_to("/dev/zero")
    assert watched.found() == 0, "as little can be read as before"
    file.unlink()
    file.write_text("one")
    assert watched.found() == 1
