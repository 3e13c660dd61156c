"""The commands over the control socket, against a real server that plays scripted answers."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from holdfast.cli.client import PAGE, ControlClient
from holdfast.cli.main import main
from tests.cli.conftest import EXECUTABLE, Run
from tests.cli.scripted import Answer, Script, circuit, documents, message, problem, status

Captured = pytest.CaptureFixture[str]

ID = "msg_00000000000000000000000000000001"


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


def test_socket_may_be_named_whatever_the_config(gateway: Script, capsys: Captured, tmp_path: Path) -> None:
    gateway.answers["GET /v1/status"] = documents(status())
    assert main(["status", "--socket", gateway.where, "--config", "/does/not/exist"]) == 0
    config = tmp_path / "holdfast.toml"
    config.write_text(f'[listen]\ncontrol = "{gateway.where}"\n[store]\npath = "/elsewhere"\n')
    assert main(["status", "--config", str(config)]) == 0
    assert capsys.readouterr().err == ""


def test_circuits_in_pages(gateway: Script, capsys: Captured) -> None:
    key = "https://b.example/in?x"
    gateway.answers[f"GET /v1/circuits?limit={PAGE}"] = documents({"circuits": [circuit(host="a:1")], "next": key})
    following = f"GET /v1/circuits?limit={PAGE}&after=https%3A%2F%2Fb.example%2Fin%3Fx"
    gateway.answers[following] = documents({"circuits": [circuit(host="c:1", state="frozen")], "next": None})
    assert main(["circuits"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["STATE", "enabled", "frozen"]
    assert [line.split()[-1] for line in lines] == ["HOST", "a:1", "c:1"]


def test_circuits_as_json_are_one_a_line(gateway: Script, capsys: Captured) -> None:
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


def test_one_circuit_by_a_key_that_is_a_url(gateway: Script, capsys: Captured) -> None:
    gateway.answers["GET /v1/circuits/https%3A%2F%2Fa.example%2Fin%20%25"] = documents(circuit(host="https://a/in"))
    assert main(["circuits", "https://a.example/in %"]) == 0
    assert capsys.readouterr().out.startswith("https://a/in is enabled\n")


def test_one_circuit_as_json(gateway: Script, capsys: Captured) -> None:
    gateway.answers["GET /v1/circuits/a"] = documents(circuit())
    assert main(["circuits", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == circuit()


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


def test_unfreeze_all_of_none(gateway: Script, capsys: Captured) -> None:
    gateway.answers[f"GET /v1/circuits?state=frozen&limit={PAGE}"] = documents({"circuits": [], "next": None})
    assert main(["unfreeze", "--all"]) == 0
    assert capsys.readouterr().out == "no frozen circuits\n"


def test_messages_in_pages_up_to_a_limit(gateway: Script, capsys: Captured) -> None:
    full = [message(number) for number in range(PAGE)]
    gateway.answers[f"GET /v1/messages?state=dead&host=a.example&limit={PAGE}"] = documents(
        {"messages": full, "next": ID}
    )
    gateway.answers[f"GET /v1/messages?state=dead&host=a.example&limit=1&after={ID}"] = documents(
        {"messages": [message(PAGE)], "next": ID}
    )
    command = ["messages", "list", "--state", "dead", "--host", "a.example", "--limit", str(PAGE + 1)]
    assert main([*command, "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [*full, message(PAGE)]
    assert len(gateway.received) == 2


def test_a_page_may_be_empty(gateway: Script, capsys: Captured) -> None:
    gateway.answers[f"GET /v1/messages?limit={PAGE}"] = documents({"messages": [], "next": ID})
    gateway.answers[f"GET /v1/messages?limit={PAGE}&after={ID}"] = documents({"messages": [message()], "next": None})
    assert main(["messages", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ID", ID]


def test_pages_are_fetched_when_they_are_needed(gateway: Script) -> None:
    gateway.answers[f"GET /v1/messages?limit={PAGE}"] = documents({"messages": [message()], "next": ID})
    with ControlClient(Namespace(socket=gateway.where)) as client:
        next(client.pages("messages", {"state": None}))
    assert len(gateway.received) == 1


def test_no_messages(gateway: Script, capsys: Captured) -> None:
    gateway.answers[f"GET /v1/messages?limit={PAGE}"] = documents({"messages": [], "next": None})
    assert main(["messages", "list"]) == 0
    assert capsys.readouterr().out == "no messages yet\n"


def test_message_shown(gateway: Script, capsys: Captured) -> None:
    gateway.answers[f"GET /v1/messages/{ID}"] = documents(message())
    assert main(["messages", "show", ID]) == 0
    assert capsys.readouterr().out.startswith(f"{ID} is retrying\n")
    assert main(["messages", "show", ID, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == message()


def test_an_argument_that_is_no_text_is_still_an_unknown_id(gateway: Script, capsys: Captured) -> None:
    gateway.answers["GET /v1/messages/%FF"] = problem(404, "There is no message.")
    assert main(["messages", "show", "\udcff"]) == 1
    assert capsys.readouterr().err == "holdfast: There is no message.\n"


def test_a_refusal_is_one_line(gateway: Script, holdfast: Run) -> None:
    gateway.answers["GET /v1/circuits/a"] = problem(404, "There is no circuit for a.\n\x1b[2J")
    result = holdfast("circuits", "a")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "holdfast: There is no circuit for a.\\n\\x1b[2J\n"


def test_candidates_are_shown_once(gateway: Script, capsys: Captured) -> None:
    path = "POST /v1/circuits/a/unfreeze"
    gateway.answers[path] = problem(404, "a has several circuits.", candidates=["a:80", "a:443"])
    assert main(["unfreeze", "a"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "holdfast: a has several circuits.",
        "holdfast:   a:80",
        "holdfast:   a:443",
    ]
    gateway.answers[path] = problem(404, "Name one of a:80, a:443.", candidates=["a:80", "a:443"])
    assert main(["unfreeze", "a"]) == 1
    assert capsys.readouterr().err == "holdfast: Name one of a:80, a:443.\n"


@pytest.mark.parametrize(
    "answer",
    [
        Answer(500, b"<html>"),
        Answer(200, b"<html>"),
        Answer(200, b"[]"),
        Answer(200, b"[" * 100_000),
        Answer(404, b"[" * 100_000),
        Answer(404, b'{"a": 1}'),
        Answer(302),
    ],
)
def test_what_is_no_gateway(gateway: Script, capsys: Captured, answer: Answer) -> None:
    gateway.answers["GET /v1/status"] = [answer]
    assert main(["status"]) == 1
    assert capsys.readouterr().err == (
        f"holdfast: the server on {gateway.where} does not answer like a holdfast gateway\n"
    )


def test_no_socket(holdfast: Run, tmp_path: Path) -> None:
    result = holdfast("status")
    assert (result.returncode, result.stdout) == (1, "")
    missing = f"no gateway is running: there is no socket {tmp_path}/control.sock"
    hint = "name a gateway with another config by --config FILE or HOLDFAST_CONFIG"
    assert result.stderr == f"holdfast: {missing} ({hint})\n"


def test_a_socket_that_nobody_listens_on(holdfast: Run, tmp_path: Path) -> None:
    left_over = tmp_path / "left.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(left_over))
    result = holdfast("messages", "list", "--socket", str(left_over))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"holdfast: no gateway is running: nothing listens on {left_over}\n"


def test_a_socket_that_is_not_permitted(gateway: Script) -> None:
    # Nothing is forbidden to root, and another user may not even reach the interpreter: so import first, then change.
    script = (
        "import os, sys, holdfast.cli.status\n"
        "from holdfast.cli.main import main\n"
        "os.geteuid() == 0 and os.seteuid(65534)\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    Path(gateway.where).chmod(0)
    command = [sys.executable, "-c", script, "status", "--socket", gateway.where]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        f"holdfast: not permitted to use {gateway.where}: run this as the gateway's user or as root\n"
    )


def test_a_gateway_that_breaks_off(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with subprocess.Popen([EXECUTABLE, "status"], stderr=subprocess.PIPE, text=True) as process:
            connection, _ = server.accept()
            with connection:
                connection.recv(1)
            _, error = process.communicate(timeout=30)
    assert process.returncode == 1
    assert error.startswith(f"holdfast: the gateway on {path} closed the connection: ")
    assert error.count("\n") == 1


def test_a_gateway_that_hangs(gateway: Script, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.circuits.BULK_TIMEOUT", 0.05)
    gateway.answers["POST /v1/circuits/a/unfreeze"] = []
    assert main(["unfreeze", "a"]) == 1
    assert capsys.readouterr().err == f"holdfast: the gateway on {gateway.where} did not answer within 0 s\n"


def test_a_bad_config_is_told_in_full(holdfast: Run, tmp_path: Path) -> None:
    config = tmp_path / "bad.toml"
    config.write_text('[listen]\ningest = "x"\n[stor]\n')
    result = holdfast("status", "--config", str(config))
    assert result.returncode == 2
    assert [line.partition(":")[0] for line in result.stderr.splitlines()] == ["holdfast"] * 2


def test_whoever_reads_may_stop(gateway: Script) -> None:
    full = [message(number) for number in range(PAGE)]
    gateway.answers[f"GET /v1/messages?limit={PAGE}"] = documents({"messages": full, "next": ID})
    gateway.answers[f"GET /v1/messages?limit={PAGE}&after={ID}"] = documents({"messages": full, "next": ID})
    command = [EXECUTABLE, "messages", "list", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_control_c(gateway: Script) -> None:
    gateway.answers["GET /v1/status"] = []
    command = [EXECUTABLE, "status"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert gateway.asked.wait(30)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colour_on_a_terminal(gateway: Script, environment: dict[str, str], coloured: bool) -> None:
    gateway.answers["GET /v1/status"] = documents(status())
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", **environment}
    subprocess.run([EXECUTABLE, "status"], stdout=theirs, env=environ, check=True, timeout=30)
    os.close(theirs)
    shown = os.read(ours, 4096)
    os.close(ours)
    assert shown.startswith(b"\x1b[32mhealthy\x1b[0m\r\n" if coloured else b"healthy\r\n")
