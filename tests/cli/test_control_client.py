"""The control socket: pages, refusals, servers that are no gateway, Ctrl-C and closed pipes."""

import signal
import socket
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from holdfast.cli.control_client import PAGE, ControlClient
from holdfast.cli.main import main
from tests.cli.conftest import EXECUTABLE, Run
from tests.cli.scripted import Answer, Script, documents, message, problem, status

Captured = pytest.CaptureFixture[str]
ID = "msg_00000000000000000000000000000001"


def test_with_a_named_socket_the_config_is_not_read(gateway: Script, capsys: Captured, tmp_path: Path) -> None:
    gateway.answers["GET /v1/status"] = documents(status())
    assert main(["status", "--socket", gateway.where, "--config", "/does/not/exist"]) == 0
    config = tmp_path / "holdfast.toml"
    config.write_text(f'[listen]\ncontrol = "{gateway.where}"\n[store]\npath = "/elsewhere"\n')
    assert main(["status", "--config", str(config)]) == 0
    assert capsys.readouterr().err == ""


def test_pages_are_requested_when_they_are_needed(gateway: Script) -> None:
    gateway.answers[f"GET /v1/messages?limit={PAGE}"] = documents({"messages": [message()], "next": ID})
    with ControlClient(Namespace(socket=gateway.where)) as client:
        next(client.pages("messages", {"state": None}))
    assert len(gateway.received) == 1


def test_a_refusal_is_one_line(gateway: Script, holdfast: Run) -> None:
    gateway.answers["GET /v1/circuits/a"] = problem(404, "There is no circuit for a.\n\x1b[2J")
    result = holdfast("circuits", "a")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "holdfast: There is no circuit for a.\\n\\x1b[2J\n"


def test_candidates_are_printed_once(gateway: Script, capsys: Captured) -> None:
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
def test_a_server_that_is_not_a_gateway(gateway: Script, capsys: Captured, answer: Answer) -> None:
    gateway.answers["GET /v1/status"] = [answer]
    assert main(["status"]) == 1
    assert capsys.readouterr().err == (
        f"holdfast: the server on {gateway.where} does not answer like a holdfast gateway\n"
    )


def test_a_socket_that_does_not_exist(holdfast: Run, tmp_path: Path) -> None:
    result = holdfast("status")
    assert (result.returncode, result.stdout) == (1, "")
    missing = f"no gateway is running: there is no socket {tmp_path}/control.sock"
    hint = "name a gateway with another config by --config FILE or HOLDFAST_CONFIG"
    assert result.stderr == f"holdfast: {missing} ({hint})\n"


def test_a_socket_without_a_listener(holdfast: Run, tmp_path: Path) -> None:
    left_over = tmp_path / "left.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(left_over))
    result = holdfast("messages", "list", "--socket", str(left_over))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"holdfast: no gateway is running: nothing listens on {left_over}\n"


def test_a_socket_without_permission(gateway: Script) -> None:
    # Root may use every socket, and another user may not reach the interpreter: import first, then change the user.
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


def test_a_gateway_that_closes_the_connection(tmp_path: Path, capsys: Captured) -> None:
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


def test_a_gateway_that_does_not_answer(gateway: Script, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.circuits.BULK_TIMEOUT", 0.05)
    gateway.answers["POST /v1/circuits/a/unfreeze"] = []
    assert main(["unfreeze", "a"]) == 1
    assert capsys.readouterr().err == f"holdfast: the gateway on {gateway.where} did not answer within 0 s\n"


def test_every_fault_of_the_config_is_printed(holdfast: Run, tmp_path: Path) -> None:
    config = tmp_path / "bad.toml"
    config.write_text('[listen]\ningest = "x"\n[stor]\n')
    result = holdfast("status", "--config", str(config))
    assert result.returncode == 2
    assert [line.partition(":")[0] for line in result.stderr.splitlines()] == ["holdfast"] * 2


def test_a_closed_pipe_ends_the_command(gateway: Script) -> None:
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


def test_ctrl_c_ends_the_command(gateway: Script) -> None:
    gateway.answers["GET /v1/status"] = []
    command = [EXECUTABLE, "status"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert gateway.asked.wait(30)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 130
