"""The demo as the real executable, to its end and to an early one. It checks its promises itself."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx
import pytest

from holdfast.cli.demo import stamp
from holdfast.cli.main import main
from holdfast.demo.narrator import PromiseBroken
from holdfast.demo.story import Story
from tests.cli.conftest import EXECUTABLE
from tests.support.harness import PLAIN
from tests.support.repetitions import LONG, cases

PATIENCE = 120.0
BEATS = [
    "1. The life of a message",
    "app        sends an order: POST http://127.0.0.1:",
    "queued     202: msg_",
    "day 1 00:00:00  retrying   Attempt 1: Connection refused. Retry 1 is due in 1 min 25 s.",
    "day 1 00:01:2.  retrying   Attempt 2: 500 Internal Server Error. The wait doubles: 2 min 50 s.",
    "day 1 00:04:1.  retrying   Attempt 3: no answer in time. It doubles again: 5 min 39 s.",
    "day 1 00:09:5.  retrying   Attempt 4: 302 Found, which is never followed. And again: 11 min 18 s.",
    "day 1 00:21:..  delivered  Attempt 5: 200 OK, with 7 retries left.",
    "2. A circuit trips and recovers",
    "disabled   [0-9]+ of [0-9]+ attempts in an hour failed: more than 70%, of more than 100.",
    "held       121 orders wait.",
    "delivered  An order to shop.example",
    r"probe      Every 10 min one probe, with the oldest waiting order \([0-9]+\): 503.",
    r"probe      The next probe takes the next order \([0-9]+\): 503.",
    r"enabled    crm.example is fixed. The third probe \(order [0-9]+\) gets 200.",
    "delivered  All 120 waiting orders, in slow start: 1, 2, 4",
    "3. A circuit freezes and is unfrozen",
    r"disabled   ([0-9]+) of \1 attempts",
    "day 3 .*dead       110 orders waited 48 h 13 min",
    r"\$ holdfast dead list --host crm.example",
    "day 4 .*frozen     [0-9]+ failures in a row, more than 400; no success for more than 72 h.",
    r"\$ holdfast unfreeze crm.example --replay-dead",
    "day 5 .*enabled    By the operator. 117 dead messages are replayed",
    "delivered  All 121 waiting orders, in slow start: 1, 2, 4",
    "4.0 days in [0-9]+ s: 274 webhooks accepted, 274 delivered, by ",
    "Nothing was lost.",
]


def start(folder: Path, arguments: Sequence[str], out: IO[str] | int, err: IO[str] | int) -> "subprocess.Popen[str]":
    """Starts a demo with its temporary directory in `folder`."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.Popen([EXECUTABLE, "demo", *arguments], env=environment, stdout=out, stderr=err, text=True)


@contextmanager
def started(folder: Path, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    process = start(folder, arguments, subprocess.PIPE, subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_line(process: "subprocess.Popen[str]", wanted: str) -> str:
    assert process.stdout is not None
    return next(line for line in process.stdout if wanted in line)


def left_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "temporary"
    path.mkdir()
    return path


@dataclass
class Ended:
    """A demo that has ended."""

    status: int
    out: str
    err: str
    left: list[Path]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """One run as a story and one as events, at the same time. They write to files, so that no full pipe delays them."""
    runs = {}
    for kind, arguments in cases([("story", [])], [("events", ["--json"])]):
        folder = tmp_path_factory.mktemp(kind)
        (folder / "temporary").mkdir()
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            runs[folder] = (kind, start(folder / "temporary", arguments, out, err))
    try:
        return {
            kind: Ended(
                process.wait(PATIENCE),
                (folder / "out").read_text(),
                (folder / "err").read_text(),
                left_in(folder / "temporary"),
            )
            for folder, (kind, process) in runs.items()
        }
    finally:
        for _, process in runs.values():
            process.kill()
            process.wait(PATIENCE)


def test_the_story_is_complete(ended: dict[str, Ended]) -> None:
    story = ended["story"]
    assert (story.status, story.err, story.left) == (0, "", [])
    position = 0
    for beat in BEATS:
        found = re.compile(beat).search(story.out, position)
        assert found is not None, f"{beat!r} is missing or out of order in:\n{story.out}"
        position = found.end()
    assert max(map(len, story.out.splitlines())) <= 100
    assert "\x1b" not in story.out


@pytest.mark.skipif(not LONG, reason="plays the demo a second time: only in make test-long")
def test_the_same_run_as_events(ended: dict[str, Ended]) -> None:
    assert (ended["events"].status, ended["events"].err, ended["events"].left) == (0, "", [])
    events = [json.loads(line) for line in ended["events"].out.splitlines()]
    assert (events[0]["event"], events[-1]["event"]) == ("demo_begins", "demo_ends")
    changes = [(event["after"], event["rule"]) for event in events if event["event"] == "circuit_changed"]
    assert changes == [
        ("disabled", "rate_exceeded"),
        ("enabled", "probe_succeeded"),
        ("disabled", "rate_exceeded"),
        ("frozen", "silent_too_long"),
        ("enabled", "operator_unfreezes"),
    ]
    deliveries = [event for event in events if event["event"] == "delivered"]
    assert events[-1]["accepted"] == events[-1]["delivered"] == len({event["message"] for event in deliveries}) == 274


def test_the_status_page_is_served(folder: Path) -> None:
    with started(folder) as process:
        page = first_line(process, "Watch along: ").split()[-1]
        status: dict[str, Any] = httpx.get(f"{page}status", **PLAIN).json()
    assert status["ready"]
    assert Path(status["store"]["path"]).parent == folder


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_nothing_is_left(folder: Path, number: signal.Signals, status: int) -> None:
    with started(folder) as process:
        first_line(process, "Attempt 2")
        assert len(left_in(folder)) == 1
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (status, "")
    assert left_in(folder) == []


def test_a_closed_pipe_ends_it_and_nothing_is_left(folder: Path) -> None:
    with started(folder, "--json") as process:
        first_line(process, "demo_begins")
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(PATIENCE) == 141
    assert left_in(folder) == []


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_broken_promise_is_an_error(
    arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(story: object) -> None:
        raise PromiseBroken("expected 202; saw 500")

    monkeypatch.setattr(Story, "run", fail)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert main(["demo", *arguments]) == 1
    assert capsys.readouterr().err == "holdfast: a promise was broken: expected 202; saw 500\n"
    assert left_in(folder) == []


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "day 1 00:00:00"), (11_645_999, "day 1 03:14:05"), (86_400_000, "day 2 00:00:00")],
)
def test_format_of_a_moment(ms: int, text: str) -> None:
    assert stamp(ms) == text
