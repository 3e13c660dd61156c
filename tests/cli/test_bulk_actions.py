"""Replaying and dropping many messages: requests, progress, Ctrl-C, the confirmation and the bar."""

import json
import os
import signal
import threading
from datetime import UTC, datetime

import pytest

from holdfast.cli.bulk_actions import STEP
from holdfast.cli.main import main
from holdfast.cli.output import progress
from tests.cli.scripted import Received, Script, circuit, documents, problem, status
from tests.cli.terminal import PATIENCE, on_terminal

Captured = pytest.CaptureFixture[str]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
JUST_AFTER_NOON = "2026-01-01T12:00:00.001Z"
REPLAY = "POST /v1/dead/replay"
DROP = "POST /v1/messages/drop"


@pytest.fixture
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.output.wall_clock", lambda: NOON)


def bodies(gateway: Script) -> list[dict[str, object]]:
    """The bodies of the requests. A request for the time has none."""
    return [json.loads(each.body) for each in gateway.received if each.body]


def replayed(*counts: int) -> list[dict[str, object]]:
    return [{"replayed": each, "done": each < STEP} for each in counts]


def test_all_steps_have_the_same_end(gateway: Script, capsys: Captured, noon: None) -> None:
    gateway.answers[REPLAY] = documents(*replayed(STEP, STEP, 12))
    assert main(["dead", "replay", "--host", "a.example", "--since", "2h", "--reason", "expired"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (f"{2 * STEP + 12} dead messages replayed\n", "")
    select = {"host": "a.example", "since": "2026-01-01T10:00:00.000Z", "until": JUST_AFTER_NOON, "reason": "expired"}
    assert bodies(gateway) == [{**select, "limit": STEP}] * 3


@pytest.mark.parametrize(
    ("until", "sent"),
    [
        ("30m", "2026-01-01T11:30:00.000Z"),
        ("2025-12-31T00:00:00+02:00", "2025-12-30T22:00:00.000Z"),
        ("2025-12-31", "2025-12-31T00:00:00.000Z"),
        ("2030-01-01T00:00:00Z", JUST_AFTER_NOON),
        ("99999d", "1970-01-01T00:00:00.000Z"),
    ],
)
def test_until(gateway: Script, noon: None, until: str, sent: str) -> None:
    gateway.answers["POST /v1/dead/drop"] = documents({"dropped": 0, "done": True})
    assert main(["dead", "drop", "--until", until]) == 0
    assert bodies(gateway) == [{"until": sent, "limit": STEP}]


@pytest.mark.parametrize(("offset", "since"), [(86_400.0, "2026-01-02"), (-86_400.0, "2025-12-31")])
def test_times_ago_count_by_the_gateway_s_clock(gateway: Script, noon: None, offset: float, since: str) -> None:
    """By the wall clock, `messages drop --before 1h` would also drop the newest, and `dead replay` would miss them."""
    gateway.answers["GET /v1/status"] = documents(status(clock={"offset": offset, "off": True}))
    gateway.answers[REPLAY] = documents({"replayed": 0, "done": True})
    gateway.answers[DROP] = documents({"dropped": 0, "done": True})
    assert main(["dead", "replay", "--since", "1h"]) == main(["messages", "drop", "--before", "1h"]) == 0
    replay, drop = bodies(gateway)
    assert (replay["since"], replay["until"]) == (f"{since}T11:00:00.000Z", f"{since}T12:00:00.001Z")
    assert drop["before"] == f"{since}T11:00:00.000Z"


def test_the_limit_counts_over_all_steps(gateway: Script, capsys: Captured) -> None:
    gateway.answers[REPLAY] = documents(*replayed(STEP), {"replayed": 1, "done": False})
    assert main(["dead", "replay", "--limit", str(STEP + 1), "--json"]) == 0
    assert [each["limit"] for each in bodies(gateway)] == [STEP, 1]
    assert json.loads(capsys.readouterr().out) == {"replayed": STEP + 1, "done": True}


def test_messages_are_dropped_in_bulk(gateway: Script, capsys: Captured, noon: None) -> None:
    gateway.answers[DROP] = documents({"dropped": 1, "done": True})
    assert main(["messages", "drop", "--host", "a", "--state", "held"]) == 0
    assert main(["messages", "drop", "--before", "1d", "--json"]) == 0
    assert capsys.readouterr().out == '1 message dropped\n{"dropped": 1, "done": true}\n'
    assert bodies(gateway) == [
        {"host": "a", "state": "held", "before": JUST_AFTER_NOON, "limit": STEP},
        {"before": "2025-12-31T12:00:00.000Z", "limit": STEP},
    ]


def test_an_error_in_a_later_step_prints_the_progress(gateway: Script, capsys: Captured) -> None:
    gateway.answers[REPLAY] = [*documents(*replayed(STEP)), *problem(503, "The store failed.")]
    assert main(["dead", "replay"]) == 1
    captured = capsys.readouterr()
    assert (
        captured.out
        == f"{STEP} dead messages replayed, then it was interrupted: run the same command again for the rest\n"
    )
    assert captured.err == "holdfast: The store failed.\n"


def test_an_error_in_the_first_step_prints_only_the_error(gateway: Script, capsys: Captured) -> None:
    gateway.answers[REPLAY] = problem(404, "There is no circuit for a.")
    assert main(["dead", "replay", "--host", "a"]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "holdfast: There is no circuit for a.\n")


def test_ctrl_c_lets_the_step_finish_and_prints_the_progress(gateway: Script, capsys: Captured) -> None:
    def press(received: Received) -> None:
        if gateway.paths().count(REPLAY) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    gateway.before_answer = press
    gateway.answers[REPLAY] = documents(*replayed(STEP, STEP, STEP))
    assert main(["dead", "replay", "--json"]) == 130
    assert json.loads(capsys.readouterr().out) == {"replayed": 2 * STEP, "done": False}
    assert gateway.paths().count(REPLAY) == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_does_not_wait_for_the_step(gateway: Script) -> None:
    gateway.answers["GET /v1/status"] = documents(status())
    gateway.answers[REPLAY] = []
    step_begun = threading.Event()
    gateway.before_answer = lambda received: step_begun.set() if received.method == "POST" else None
    with on_terminal("dead", "replay") as terminal:
        terminal.wait_for("0%  0 of 17 replayed")
        assert step_begun.wait(PATIENCE)
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("finishing this step; Ctrl-C again ends it at once")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 130
    assert b"\r\x1b[K0 dead messages replayed, then it was interrupted" in terminal.shown


# -- questions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "question"),
    [
        (("dead", "drop"), "Drop all 17 dead messages? This can't be undone. [y/N] "),
        (("messages", "drop"), "Drop everything: 1,204 waiting and 17 dead messages? This can't be undone. [y/N] "),
    ],
)
@pytest.mark.parametrize(("reply", "dropped"), [("y\n", True), ("YES\n", True), ("\n", False), ("no\n", False)])
def test_a_drop_without_a_filter_asks(
    gateway: Script, command: tuple[str, ...], question: str, reply: str, dropped: bool
) -> None:
    gateway.answers["GET /v1/status"] = documents(status())
    path = f"POST /v1/{command[0]}/drop"
    gateway.answers[path] = documents({"dropped": 17, "done": True})
    with on_terminal(*command) as terminal:
        terminal.wait_for(question)
        assert path not in gateway.paths()
        terminal.type(reply)
        assert terminal.end() == (0 if dropped else 1)
    assert (path in gateway.paths()) is dropped
    assert (b"17 " if dropped else b"holdfast: nothing was dropped") in terminal.shown.rpartition(b"[y/N]")[2]


@pytest.mark.parametrize(
    "command", [("dead", "drop", "--yes"), ("dead", "drop", "--until", "0s"), ("messages", "drop", "--state", "dead")]
)
def test_with_yes_or_a_filter_a_drop_does_not_ask(gateway: Script, command: tuple[str, ...]) -> None:
    gateway.answers["GET /v1/status"] = documents(status())
    gateway.answers[f"POST /v1/{command[0]}/drop"] = documents({"dropped": 17, "done": True})
    with on_terminal(*command) as terminal:
        assert terminal.end() == 0
    assert b"[y/N]" not in terminal.shown


def test_a_script_without_an_id_drops_nothing(gateway: Script, capsys: Captured) -> None:
    assert main(["messages", "drop"]) == 2
    assert capsys.readouterr().err.startswith("holdfast: name an ID or a filter; ")
    assert main(["messages", "drop", "msg_1", "--state", "dead"]) == 2
    assert capsys.readouterr().err == "holdfast: an ID goes alone, without filters\n"
    assert gateway.received == []


# -- the bar ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "total", "expected"),
    [
        (0, 50_000, "[..............................]   0%  0 of 50,000 done"),
        (12_500, 50_000, "[#######.......................]  25%  12,500 of 50,000 done"),
        (50_001, 50_000, "[##############################] 100%  50,001 of 50,001 done"),
        (1_250, None, "1,250 done"),
        (0, 0, "0 done"),
    ],
)
def test_progress(count: int, total: int | None, expected: str) -> None:
    assert progress("done", count, total) == expected


def test_the_bar_moves_and_disappears(gateway: Script) -> None:
    gateway.answers["GET /v1/circuits/a"] = documents(circuit(dead=2 * STEP))
    gateway.answers[REPLAY] = documents(*replayed(STEP, STEP, 0))
    with on_terminal("dead", "replay", "--host", "a") as terminal:
        assert terminal.end() == 0
    shown = terminal.shown.decode()
    assert [part for part in ("   0%  ", "  50%  ", " 100%  ") if part in shown] == ["   0%  ", "  50%  ", " 100%  "]
    assert shown.endswith(f"\r\x1b[K{2 * STEP} dead messages replayed\r\n")


def test_without_a_total_the_bar_shows_a_count(gateway: Script) -> None:
    gateway.answers[REPLAY] = documents(*replayed(STEP, 0))
    with on_terminal("dead", "replay", "--since", "1h") as terminal:
        assert terminal.end() == 0
    assert f"\r\x1b[K{STEP} replayed".encode() in terminal.shown
    assert gateway.paths() == ["GET /v1/status", *[REPLAY] * 2]
