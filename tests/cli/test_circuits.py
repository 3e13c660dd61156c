"""circuits, freeze, unfreeze and probe, against a server that plays scripted answers."""

import json
from datetime import UTC, datetime

import pytest

from holdfast.cli.circuits import circuit_details, circuit_row, freeze_text, unfreeze_text
from holdfast.cli.control_client import PAGE
from holdfast.cli.main import main
from holdfast.cli.output import WIDTH
from tests.cli.scripted import Document, Script, circuit, documents, problem

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
Captured = pytest.CaptureFixture[str]
HOST = "hooks.example.com:443"


def text(lines: list[str]) -> str:
    assert all(len(line) <= WIDTH for line in lines)
    return "\n".join(lines) + "\n"


def test_a_row_of_the_list() -> None:
    disabled = circuit(
        state="disabled",
        reason="failure_rate",
        waiting=1_204,
        dead=3,
        window={"attempts": 400, "failures": 380},
        next_probe_at="2026-01-01T12:04:14.000Z",
    )
    assert circuit_row(disabled, NOON) == [
        "disabled",
        "3h ago",
        "failure_rate",
        "1,204",
        "3",
        "380/400",
        "in 4m",
        "hooks.example.com:443",
    ]


def test_details_of_a_disabled_circuit() -> None:
    disabled = circuit(
        state="disabled",
        reason="failure_rate",
        consecutive_failures=412,
        waiting=1,
        next_probe_at="2026-01-01T12:04:14.000Z",
        last_success_at=None,
    )
    assert text(circuit_details(disabled, NOON)) == (
        """\
hooks.example.com:443 is disabled: too large a part of its attempts failed
since          2026-01-01 09:00:00 UTC (3h ago)
sends          one probe at a time, the next in 4m
in a row       412 failures
window         12 of 340 attempts failed
last success   never
first attempt  2025-12-20 12:00:00 UTC (12d ago)
waiting        1 message
dead           0 messages
"""
    )


def test_details_of_enabled_and_frozen_circuits() -> None:
    enabled = circuit_details(circuit(), NOON)
    assert enabled[0] == "hooks.example.com:443 is enabled"
    assert enabled[2] == "sends          everything, at most 16 at once"
    frozen = circuit_details(circuit(state="frozen", reason="operator"), NOON, colour=True)
    assert frozen[0] == "hooks.example.com:443 is \x1b[31mfrozen\x1b[0m: an operator froze it"
    assert frozen[2] == "sends          nothing, until: holdfast unfreeze hooks.example.com:443"


def test_the_list_comes_in_pages(gateway: Script, capsys: Captured) -> None:
    key = "https://b.example/in?x"
    gateway.answers[f"GET /v1/circuits?limit={PAGE}"] = documents({"circuits": [circuit(host="a:1")], "next": key})
    following = f"GET /v1/circuits?limit={PAGE}&after=https%3A%2F%2Fb.example%2Fin%3Fx"
    gateway.answers[following] = documents({"circuits": [circuit(host="c:1", state="frozen")], "next": None})
    assert main(["circuits"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["STATE", "enabled", "frozen"]
    assert [line.split()[-1] for line in lines] == ["HOST", "a:1", "c:1"]


def test_the_list_as_json_has_one_circuit_per_line(gateway: Script, capsys: Captured) -> None:
    listed = [circuit(host="a:1"), circuit(host="b:1")]
    gateway.answers[f"GET /v1/circuits?state=frozen&limit={PAGE}"] = documents({"circuits": listed, "next": None})
    assert main(["circuits", "--state", "frozen", "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == listed


def test_no_circuits(gateway: Script, capsys: Captured) -> None:
    empty: dict[str, object] = {"circuits": [], "next": None}
    gateway.answers[f"GET /v1/circuits?limit={PAGE}"] = documents(empty)
    gateway.answers[f"GET /v1/circuits?state=frozen&limit={PAGE}"] = documents(empty)
    assert main(["circuits"]) == main(["circuits", "--state", "frozen"]) == main(["circuits", "--json"]) == 0
    assert capsys.readouterr().out == "no circuits yet\nno frozen circuits\n"


def test_a_key_may_be_a_url(gateway: Script, capsys: Captured) -> None:
    gateway.answers["GET /v1/circuits/https%3A%2F%2Fa.example%2Fin%20%25"] = documents(circuit(host="https://a/in"))
    assert main(["circuits", "https://a.example/in %"]) == 0
    assert capsys.readouterr().out.startswith("https://a/in is enabled\n")


def test_one_circuit_as_json(gateway: Script, capsys: Captured) -> None:
    gateway.answers["GET /v1/circuits/a"] = documents(circuit())
    assert main(["circuits", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == circuit()


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
def test_text_of_freeze(answer: Document, expected: str) -> None:
    assert freeze_text(answer, NOON) == expected


def test_freeze(gateway: Script, capsys: Captured) -> None:
    answer = {"changed": True, "messages_expire_from": None, "circuit": circuit(host="a:443")}
    gateway.answers["POST /v1/circuits/a%3A443/freeze"] = documents(answer)
    assert main(["freeze", "a:443"]) == main(["freeze", "a:443", "--json"]) == 0
    text, _, as_json = capsys.readouterr().out.partition("\n")
    assert text == "a:443 is frozen; no message waits for it, so none expires yet"
    assert json.loads(as_json) == answer


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"changed": True, "replayed": 0, "circuit": circuit()}, "hooks.example.com:443 is enabled again"),
        ({"changed": False, "replayed": 0, "circuit": circuit()}, "hooks.example.com:443 was enabled already"),
        (
            {"changed": True, "replayed": 1, "circuit": circuit(waiting=1_204)},
            "hooks.example.com:443 is enabled again; 1 dead message replayed; 1,204 messages waiting",
        ),
    ],
)
def test_text_of_unfreeze(answer: dict[str, object], expected: str) -> None:
    assert unfreeze_text(answer) == expected


def test_unfreeze(gateway: Script, capsys: Captured) -> None:
    answer = {"changed": True, "replayed": 12, "circuit": circuit(waiting=12)}
    gateway.answers["POST /v1/circuits/hooks.example.com/unfreeze"] = documents(answer)
    assert main(["unfreeze", "hooks.example.com"]) == 0
    assert main(["unfreeze", "hooks.example.com", "--replay-dead", "--json"]) == 0
    text, _, as_json = capsys.readouterr().out.partition("\n")
    assert text == "hooks.example.com:443 is enabled again; 12 dead messages replayed; 12 messages waiting"
    assert json.loads(as_json) == answer
    assert [json.loads(each.body) for each in gateway.received] == [{}, {"replay_dead": True}]


def test_unfreeze_all(gateway: Script, capsys: Captured) -> None:
    first = {"circuits": [circuit(host="a:1"), circuit(host="b:1")], "next": "b:1"}
    gateway.answers[f"GET /v1/circuits?state=frozen&limit={PAGE}"] = documents(first)
    last = {"circuits": [circuit(host="c:1")], "next": None}
    gateway.answers[f"GET /v1/circuits?state=frozen&limit={PAGE}&after=b%3A1"] = documents(last)
    for host in ("a:1", "b:1", "c:1"):
        answer = {"changed": True, "replayed": 0, "circuit": circuit(host=host)}
        gateway.answers[f"POST /v1/circuits/{host.replace(':', '%3A')}/unfreeze"] = documents(answer)
    assert main(["unfreeze", "--all"]) == 0
    assert capsys.readouterr().out == "a:1 is enabled again\nb:1 is enabled again\nc:1 is enabled again\n"


def test_unfreeze_all_without_a_frozen_circuit(gateway: Script, capsys: Captured) -> None:
    gateway.answers[f"GET /v1/circuits?state=frozen&limit={PAGE}"] = documents({"circuits": [], "next": None})
    assert main(["unfreeze", "--all"]) == 0
    assert capsys.readouterr().out == "no frozen circuits\n"


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
