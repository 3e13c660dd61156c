"""Single acts of an operator: freeze, probe, why, retry, drop, drain."""

import json
from datetime import UTC, datetime

import pytest

from holdfast.cli.circuits import freeze_text
from holdfast.cli.main import main
from holdfast.cli.messages import retry_text
from holdfast.cli.status import drain_text
from tests.cli.scripted import Document, Script, circuit, documents, message, problem

Captured = pytest.CaptureFixture[str]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ID = "msg_00000000000000000000000000000001"
HOST = "hooks.example.com:443"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            {"changed": True, "messages_expire_from": "2026-01-03T12:00:00.000Z", "circuit": circuit(waiting=1_204)},
            f"{HOST} is frozen; 1,204 messages waiting, expiring from 2026-01-03 12:00:00 UTC (in 48h) on",
        ),
        (
            {"changed": False, "messages_expire_from": None, "circuit": circuit()},
            f"{HOST} was frozen already; no message waits for it, so none expires yet",
        ),
    ],
)
def test_what_freeze_says(answer: Document, expected: str) -> None:
    assert freeze_text(answer, NOON) == expected


def test_freeze(gateway: Script, capsys: Captured) -> None:
    answer = {"changed": True, "messages_expire_from": None, "circuit": circuit(host="a:443")}
    gateway.answers["POST /v1/circuits/a%3A443/freeze"] = documents(answer)
    assert main(["freeze", "a:443"]) == main(["freeze", "a:443", "--json"]) == 0
    text, _, as_json = capsys.readouterr().out.partition("\n")
    assert text == "a:443 is frozen; no message waits for it, so none expires yet"
    assert json.loads(as_json) == answer


def test_probe(gateway: Script, capsys: Captured) -> None:
    answers = [{"probing": True, "circuit": circuit(host="a:1", waiting=waiting)} for waiting in (3, 0)]
    gateway.answers["POST /v1/circuits/a/probe"] = documents(*answers)
    assert main(["probe", "a"]) == main(["probe", "a"]) == main(["probe", "a", "--json"]) == 0
    *texts, as_json = capsys.readouterr().out.splitlines()
    assert texts == ["a:1 is probed now", "a:1 has nothing waiting: the next message to arrive is the probe"]
    assert json.loads(as_json) == answers[1]


def test_probe_of_a_host_that_is_not_disabled(gateway: Script, capsys: Captured) -> None:
    gateway.answers["POST /v1/circuits/a/probe"] = problem(409, "a:1 is not disabled.")
    assert main(["probe", "a"]) == 1
    assert capsys.readouterr().err == "holdfast: a:1 is not disabled.\n"


def test_why(gateway: Script, capsys: Captured) -> None:
    gateway.answers[f"GET /v1/messages/{ID}"] = documents(message(why="It waits for\x1b[2J retry 2."))
    assert main(["why", ID]) == main(["why", ID, "--json"]) == 0
    text, _, as_json = capsys.readouterr().out.partition("\n")
    assert text == "It waits for\\x1b[2J retry 2."
    assert json.loads(as_json) == {"id": ID, "state": "retrying", "why": "It waits for\x1b[2J retry 2."}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"result": "due", "message": message()}, f"{ID} is due now"),
        (
            {"result": "due", "message": message(state="held", why="It waits for its circuit.")},
            f"{ID} is due now, but: It waits for its circuit.",
        ),
        ({"result": "replayed", "message": message()}, f"{ID} is replayed, with all of its retries"),
    ],
)
def test_what_retry_says(answer: Document, expected: str) -> None:
    assert retry_text(answer) == expected


def test_retry_and_drop_of_one(gateway: Script, capsys: Captured) -> None:
    answer = {"result": "due", "message": message()}
    gateway.answers[f"POST /v1/messages/{ID}/retry"] = documents(answer)
    gateway.answers[f"DELETE /v1/messages/{ID}"] = documents({"dropped": 1})
    for action in ("retry", "drop"):
        assert main(["messages", action, ID]) == main(["messages", action, ID, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[::2] == [f"{ID} is due now", f"{ID} was dropped"]
    assert [json.loads(line) for line in lines[1::2]] == [answer, {"dropped": 1}]


@pytest.mark.parametrize("action", ["retry", "drop"])
def test_what_is_in_flight_is_left_alone(gateway: Script, capsys: Captured, action: str) -> None:
    path = f"DELETE /v1/messages/{ID}" if action == "drop" else f"POST /v1/messages/{ID}/retry"
    gateway.answers[path] = problem(409, f"An attempt of {ID} is under way.")
    assert main(["messages", action, ID]) == 1
    assert capsys.readouterr() == ("", f"holdfast: An attempt of {ID} is under way.\n")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"draining": True, "quiet": True, "in_flight": 0}, "draining: nothing is due or in flight"),
        ({"draining": True, "quiet": False, "in_flight": 1}, "draining: 1 attempt in flight"),
        ({"draining": True, "quiet": False, "in_flight": 0}, "draining: some messages are due"),
        ({"draining": False, "quiet": False, "in_flight": 3}, "not draining: it is ready"),
    ],
)
def test_what_drain_says(answer: Document, expected: str) -> None:
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
