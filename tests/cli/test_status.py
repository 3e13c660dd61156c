"""status and drain, against a server that plays scripted answers."""

import json
import os
import pty
import subprocess
from datetime import UTC, datetime

import pytest

from holdfast.cli.main import main
from holdfast.cli.output import WIDTH
from holdfast.cli.status import drain_text, status_lines
from tests.cli.conftest import EXECUTABLE
from tests.cli.scripted import Document, Script, documents, status

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
Captured = pytest.CaptureFixture[str]


def text(lines: list[str]) -> str:
    assert all(len(line) <= WIDTH for line in lines)
    return "\n".join(lines) + "\n"


def test_status_of_a_busy_gateway() -> None:
    assert text(status_lines(status(), NOON)) == (
        """\
healthy
gateway   holdfast 0.1.0, process 4242, started 3h ago
store     1.2 GiB of 4 GiB used (30%) in /var/lib/holdfast
waiting   1,204: 1,000 first attempts, 204 retries; 12 in flight
oldest    2h ago
next due  in 4m
expiry    the earliest in 40h
dead      17
circuits  14 enabled, 1 disabled, 0 frozen
totals    accepted 10,200; refused 3 (store-full 3); delivered 9,000; failed attempts 512; dead 2
          (expired 2); trips 0
"""
    )


def test_status_of_an_idle_gateway() -> None:
    store = {"path": "/s", "used_bytes": 0, "max_bytes": 4 << 30, "waiting": 0, "dead": 0}
    lines = status_lines(status(store=store, in_flight=0), NOON)
    assert lines[2:5] == [
        "store     0 B of 4 GiB used (0%) in /s",
        "waiting   nothing; 0 in flight",
        "dead      0",
    ]


def test_status_without_an_expiry() -> None:
    lines = status_lines(status(earliest_expiry_at=None, next_due_at=None), NOON)
    assert "expiry    none: every circuit is enabled" in lines
    assert "next due  -" in lines


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"degraded": ["store_full"]},
            "not healthy: the store is full: new webhooks are refused with 507 until there is room",
        ),
        ({"degraded": ["something_new"]}, "not healthy: something_new"),
        ({"ready": False}, "not healthy: not ready: it is starting, or its store failed"),
        (
            {"ready": False, "degraded": ["store_away"]},
            "not healthy: the database is unreachable: delivery resumes by itself when it is back",
        ),
        (
            {"ready": False, "draining": True, "degraded": ["x"]},
            "not healthy: x; draining: it finishes what is due",
        ),
    ],
)
def test_status_says_why_it_is_not_healthy(changes: dict[str, object], expected: str) -> None:
    assert status_lines(status(**changes), NOON)[0] == expected


def test_status_shows_the_spool() -> None:
    store = {**status()["store"], "spool": 1_234, "spooling_since": "2026-01-01T11:00:00.000Z"}
    lines = status_lines(status(store=store), NOON)
    assert "spool     1,234 wait on this machine's disk for the database; the first came 1h ago" in lines
    store = {**store, "spool": 0, "spooling_since": None}
    assert not [line for line in status_lines(status(store=store), NOON) if line.startswith("spool")]


@pytest.mark.parametrize(
    ("offset", "line"),
    [
        (259_199.417, "clock     2 days, 23:59:59 ahead of the wall clock, which signatures use"),
        (-2.5, "clock     0:00:02 behind the wall clock, which signatures use"),
    ],
)
def test_status_shows_a_clock_that_is_off(offset: float, line: str) -> None:
    lines = status_lines(status(clock={"offset": offset, "off": True}), NOON)
    assert lines[2] == line
    assert len(line) <= 80


def test_status_does_not_show_a_clock_that_is_right_or_unknown() -> None:
    assert status_lines(status(clock={"offset": 0.004, "off": False}), NOON) == status_lines(status(), NOON)


def test_status_of_a_replica_shows_its_role() -> None:
    lines = status_lines(status(role="ingest"), NOON)
    assert lines[1].endswith(", role ingest")


def test_status_in_colour() -> None:
    assert status_lines(status(), NOON, colour=True)[0] == "\x1b[32mhealthy\x1b[0m"
    assert status_lines(status(ready=False), NOON, colour=True)[0].startswith("\x1b[31mnot healthy\x1b[0m: ")


def test_status(gateway: Script, capsys: Captured) -> None:
    gateway.answers["GET /v1/status"] = documents(status())
    assert main(["status"]) == 0
    assert capsys.readouterr().out.startswith("healthy\ngateway   holdfast 0.1.0, process 4242, started ")


def test_status_as_json_is_the_answer_on_one_line(gateway: Script, capsys: Captured) -> None:
    gateway.answers["GET /v1/status"] = documents(status())
    assert main(["status", "--json"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out) == status()
    assert out.count("\n") == 1


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_status_has_colour_on_a_terminal(gateway: Script, environment: dict[str, str], coloured: bool) -> None:
    gateway.answers["GET /v1/status"] = documents(status())
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", **environment}
    subprocess.run([EXECUTABLE, "status"], stdout=theirs, env=environ, check=True, timeout=30)
    os.close(theirs)
    shown = os.read(ours, 4096)
    os.close(ours)
    assert shown.startswith(b"\x1b[32mhealthy\x1b[0m\r\n" if coloured else b"healthy\r\n")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"draining": True, "quiet": True, "in_flight": 0}, "draining: nothing is due or in flight"),
        ({"draining": True, "quiet": False, "in_flight": 1}, "draining: 1 attempt in flight"),
        ({"draining": True, "quiet": False, "in_flight": 0}, "draining: some messages are due"),
        ({"draining": False, "quiet": False, "in_flight": 3}, "not draining: it is ready"),
    ],
)
def test_text_of_drain(answer: Document, expected: str) -> None:
    assert drain_text(answer) == expected


def test_drain(gateway: Script, capsys: Captured) -> None:
    busy = {"draining": True, "quiet": False, "in_flight": 2}
    quiet = {"draining": True, "quiet": True, "in_flight": 0}
    gateway.answers["POST /v1/drain"] = documents(busy, quiet, busy, busy, {**quiet, "draining": False})
    assert [main(["drain"]), main(["drain", "--wait"])] == [0, 0]
    assert capsys.readouterr().out == "draining: 2 attempts in flight\ndraining: nothing is due or in flight\n"
    assert main(["drain", "--wait"]) == 1
    late = "holdfast: still not quiet after drain.timeout: 2 attempts in flight\n"
    assert capsys.readouterr() == ("", late)
    assert main(["drain", "--wait", "--json"]) == 1
    captured = capsys.readouterr()
    assert (json.loads(captured.out), captured.err) == (busy, late)
    assert main(["drain", "--cancel"]) == 0
    assert [json.loads(each.body) for each in gateway.received] == [
        {}, {"wait": True}, {"wait": True}, {"wait": True}, {"cancel": True},
    ]  # fmt: skip
