"""SIGTERM, then SIGKILL during the drain: nothing is lost, and the report of a drain equals the disk."""

import json
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.load import Book, Load, Post, agent, command
from tests.support.harness import PATIENCE, Gateway, Received, Receiver, running, until

KILLED_AFTER = (0.0, 0.02, 0.2, 0.7, 2.0)
"""Seconds from SIGTERM to SIGKILL; the drain's timeout is in the middle of them."""

RULES = {"retry__base": "50ms", "circuit__min_attempts": 0, "drain__timeout": "1s"}


class Three:
    """Hosts that are fine, fail, and hang."""

    def __init__(self, book: Book) -> None:
        self.fine, self.failing, self.hanging = Receiver(), Receiver(), Receiver()
        self.well = False
        self.let_go, self.hangs = threading.Event(), threading.Event()
        book.watch(self.fine, lambda request: 200)
        book.watch(self.failing, lambda request: 200 if self.well else 503)
        book.watch(self.hanging, self._hang)

    def _hang(self, request: Received) -> int:
        self.hangs.set()
        self.let_go.wait(PATIENCE)
        return 200 if self.well else 500

    @property
    def posts(self) -> list[Post]:
        return [Post(f"{receiver.url}/hook", b"x") for receiver in (self.fine, self.failing, self.hanging)]

    def recover(self) -> None:
        self.well = True
        self.let_go.set()

    def close(self) -> None:
        self.let_go.set()
        for receiver in (self.fine, self.failing, self.hanging):
            receiver.close()


@pytest.fixture
def book() -> Book:
    return Book()


@pytest.fixture
def hosts(book: Book) -> Iterator[Three]:
    hosts = Three(book)
    yield hosts
    hosts.close()


def exported(store: Path) -> list[dict[str, Any]]:
    """The messages of a stopped store that wait or are dead."""
    lines = [json.loads(line) for line in command(store, "export", "-").stdout.splitlines()]
    return [line for line in lines if line.get("kind") == "message"]


def on_disk(store: Path) -> tuple[Counter[str], int]:
    """What waits in a stopped store, by host, and how many are dead."""
    messages = [(line["host"], line["place"]["state"] == "dead") for line in exported(store)]
    return Counter(host for host, dead in messages if not dead), sum(dead for _, dead in messages)


def waiting_on_disk(store: Path) -> set[str]:
    return {line["id"] for line in exported(store) if line["place"]["state"] != "dead"}


def report(gateway: Gateway) -> tuple[Counter[str], int, int]:
    last = gateway.events()[-1]
    assert last["event"] == "exit"
    return Counter(last["waiting_by_host"]), last["waiting"], last["dead"]


def deliver_the_rest(store: Path, book: Book, hosts: Three, life: int) -> None:
    hosts.recover()
    with running(store, **RULES | {"drain__timeout": "20s"}, **agent(life)) as gateway:
        book.wait_for_all()
        assert gateway.stop() == 0
        assert report(gateway) == (Counter(), 0, 0)
    assert command(store, "fsck").returncode == 0


def test_a_kill_while_draining_loses_nothing(tmp_path: Path, book: Book, hosts: Three) -> None:
    store = tmp_path / "store"
    for life, seconds in enumerate(KILLED_AFTER):
        with running(store, **RULES, **agent(life)) as gateway:
            load = Load(gateway, book, life, [hosts.posts * 30] * 2)
            load.wait_for_some()
            gateway.process.send_signal(signal.SIGTERM)
            threading.Event().wait(seconds)
            ended = gateway.process.poll()
            gateway.kill()
            load.stop()
            assert ended in (None, 0)
            if ended == 0:
                by_host, waiting, dead = report(gateway)
                assert (by_host, dead) == on_disk(store)
                assert waiting == by_host.total() > 0
            else:
                book.killed.add(life)
    assert book.ids
    deliver_the_rest(store, book, hosts, len(KILLED_AFTER))
    assert book.repeats() <= book.in_flight_at_kills()


@pytest.mark.parametrize("situation", ["fine", "failing", "hanging", "held", "all"])
def test_the_report_of_a_drain_is_what_is_on_disk(tmp_path: Path, book: Book, hosts: Three, situation: str) -> None:
    """Also of what came in during the drain, of what was interrupted, and of what its circuit holds."""
    store, posts = tmp_path / "store", dict(zip(("fine", "failing", "hanging"), hosts.posts, strict=True))
    mine = [posts[situation]] if situation in posts else list(posts.values())
    hangs = situation in ("hanging", "all")
    rules = RULES | {"retry__base": "1h", "drain__timeout": "300ms" if hangs else "20s"}
    with running(store, **rules, **agent(0)) as gateway:
        if situation == "held":
            for receiver in (hosts.fine, hosts.failing, hosts.hanging):
                assert gateway.call("POST", f"/v1/circuits/127.0.0.1:{receiver.port}/freeze").status_code == 200
        Load(gateway, book, 0, [mine * 10]).wait()
        if situation == "hanging":
            assert hosts.hangs.wait(PATIENCE)
        load = Load(gateway, book, 0, [mine * 20])
        load.wait_for_some()
        before = book.ids
        assert gateway.stop() == 0
        load.stop()
        by_host, waiting, dead = report(gateway)
    assert (by_host, dead) == on_disk(store)
    # An attempt that was interrupted may have been answered: nobody heard it, so its message waits.
    assert waiting == by_host.total() >= len(book.missing())
    if situation == "fine":
        # Of what came in at the very end, when deliveries were over, some may wait.
        assert before.isdisjoint(book.missing())
        assert before.isdisjoint(waiting_on_disk(store))
    else:
        assert waiting > 0


@pytest.mark.usefixtures("processes")
def test_after_a_second_signal_nothing_is_lost(tmp_path: Path, book: Book, hosts: Three) -> None:
    store = tmp_path / "store"
    with running(store, **RULES | {"drain__timeout": "10m"}, **agent(0)) as gateway:
        load = Load(gateway, book, 0, [hosts.posts * 30] * 2)
        assert hosts.hangs.wait(PATIENCE)
        gateway.process.send_signal(signal.SIGTERM)
        until(lambda: "draining" in {event["event"] for event in gateway.events()})
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(PATIENCE) == -signal.SIGTERM
        load.stop()
        book.killed.add(0)
    deliver_the_rest(store, book, hosts, 1)
    assert book.repeats() <= book.in_flight_at_kills()
