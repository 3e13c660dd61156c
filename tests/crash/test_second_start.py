"""One process for each store: a second start reports who has the store, and leaves the first alone."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.crash.load import Book, Load, Post, agent, command
from tests.support.harness import HOLDFAST, PATIENCE, READY, Receiver, running, settings
from tests.support.repetitions import amount

AT_THE_SAME_INSTANT = amount(2, 10)
"""Pairs of processes that are started together."""
NOTHING = '{"format": "holdfast-export", "version": 1}\n{"kind": "end", "lines": 1}\n'
COMMANDS = (["run"], ["fsck"], ["fsck", "--repair"], ["export", "-"], ["import", "-"], ["compact"])


def test_a_second_start_exits_3_and_the_first_continues(tmp_path: Path, receiver: Receiver) -> None:
    book, store = Book(), tmp_path / "store"
    book.watch(receiver, lambda request: 200)
    with running(store, **agent(0)) as gateway:
        for words in COMMANDS:
            load = Load(gateway, book, 0, [[Post(f"{receiver.url}/hook", b"x")] * 20])
            second = command(store, *words, input=NOTHING)
            told = (second.returncode, second.stdout, second.stderr)
            assert told == (3, "", f"holdfast: {store} is in use by process {gateway.process.pid}\n"), words
            load.wait()
        assert gateway.call("GET", "/v1/status").json()["pid"] == gateway.process.pid
        book.wait_for_all()
        assert gateway.stop() == 0
    assert len(book.ids) == 20 * len(COMMANDS)
    assert book.repeats() == 0


def test_a_lock_that_a_killed_process_left_is_no_obstacle(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with running(store) as gateway:
        gateway.kill()
    assert command(store, "fsck").returncode == 0
    with running(store) as gateway:
        assert gateway.stop() == 0


@pytest.fixture
def pair(tmp_path: Path):
    """Starts two gateways at once; ends them with the test."""
    started: list[subprocess.Popen[str]] = []

    def start() -> list["subprocess.Popen[str]"]:
        both = [
            subprocess.Popen(
                [HOLDFAST, "run"],
                env=settings(tmp_path / "store"),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        started.extend(both)
        return both

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_of_two_simultaneous_starts_exactly_one_runs(pair) -> None:
    for _ in range(AT_THE_SAME_INSTANT):
        one, other = pair()
        ready = [READY.search(process.stdout.readline()) is not None for process in (one, other)]
        assert sorted(ready) == [False, True]
        winner, loser = (one, other) if ready[0] else (other, one)
        _, told = loser.communicate(timeout=PATIENCE)
        assert loser.returncode == 3
        assert told.endswith(f" is in use by process {winner.pid}\n")
        # Killed, so that the next pair finds a lock with the number of a process that is no more.
        winner.send_signal(signal.SIGKILL)
        winner.wait(PATIENCE)
