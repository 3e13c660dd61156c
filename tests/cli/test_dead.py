"""dead: list and export."""

import json
import os
import socket
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.cli.control_client import PAGE
from holdfast.cli.dead import dead_row
from holdfast.cli.main import main
from tests.cli.conftest import EXECUTABLE
from tests.cli.scripted import Answer, Document, Script, documents, message, problem, status
from tests.cli.scripted import attempt as tried
from tests.cli.terminal import on_terminal

Captured = pytest.CaptureFixture[str]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LINES = b'{"id": "msg_1", "body": "a"}\n{"id": "msg_2", "body_base64": "/w=="}\n'
EXPORT = "GET /v1/dead/export?until=2026-01-01T12%3A00%3A00.001Z"


@pytest.fixture(autouse=True)
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.output.wall_clock", lambda: NOON)


def gone(number: int, minute: int = 0, reason: str = "exhausted") -> Document:
    died = f"2026-01-01T11:{minute:02}:00.000Z"
    return message(number, state="dead", dead_reason=reason, finished_at=died, next_attempt_at=None, retry=11)


def test_a_row_of_the_list() -> None:
    last = [tried(), tried(number=12, status=503, error=None)]
    expected = ["msg_" + "0" * 31 + "1", "1h ago", "exhausted", "11", "503", "hooks.example.com:443"]
    assert dead_row({**gone(1), "attempts": last}, NOON) == expected
    assert dead_row(gone(1, reason="expired"), NOON)[2:5] == ["expired", "11", "-"]


def test_the_list_comes_in_pages(gateway: Script, capsys: Captured) -> None:
    listed = [gone(1, 10), gone(2, 20, "expired"), gone(3, 30), gone(4, 40)]
    gateway.answers[f"GET /v1/messages?state=dead&host=a&limit={PAGE}"] = documents(
        {"messages": listed[:3], "next": "x"}
    )
    following = f"GET /v1/messages?state=dead&host=a&limit={PAGE}&after=x"
    gateway.answers[following] = documents({"messages": listed[3:], "next": None})

    def ids(*options: str) -> list[int]:
        assert main(["dead", "list", "--host", "a", "--json", *options]) == 0
        return [int(json.loads(line)["id"][4:], 16) for line in capsys.readouterr().out.splitlines()]

    assert ids() == [1, 2, 3, 4]
    assert ids("--reason", "expired") == [2]
    assert ids("--since", "40m") == [2, 3, 4]
    assert ids("--since", "40m", "--until", "2026-01-01T11:40:00Z", "--reason", "exhausted") == [3]
    asked = len(gateway.received)
    assert ids("--limit", "2") == [1, 2]
    assert gateway.paths()[asked:] == ["GET /v1/status", f"GET /v1/messages?state=dead&host=a&limit={PAGE}"]
    assert main(["dead", "list", "--host", "a", "--reason", "expired"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["ID", "msg_" + "0" * 31 + "2"]


def test_an_empty_list(gateway: Script, capsys: Captured) -> None:
    gateway.answers[f"GET /v1/messages?state=dead&limit={PAGE}"] = documents({"messages": [gone(1)], "next": None})
    assert main(["dead", "list", "--since", "1m"]) == main(["dead", "list", "--since", "1m", "--json"]) == 0
    gateway.answers[f"GET /v1/messages?state=dead&limit={PAGE}"] = documents({"messages": [], "next": None})
    assert main(["dead", "list"]) == 0
    assert capsys.readouterr().out == "no such dead messages\nno dead messages\n"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_an_export_is_readable_by_its_owner_only(gateway: Script, capsys: Captured, tmp_path: Path, umask: int) -> None:
    gateway.answers[EXPORT] = [Answer(200, LINES)]
    before = os.umask(umask)
    try:
        assert main(["dead", "export", str(tmp_path / "dead.jsonl")]) == 0
    finally:
        os.umask(before)
    assert capsys.readouterr().out == f"2 dead messages exported to {tmp_path}/dead.jsonl ({len(LINES)} B)\n"
    assert (tmp_path / "dead.jsonl").read_bytes() == LINES
    assert (tmp_path / "dead.jsonl").stat().st_mode & 0o777 == 0o600


def test_export_with_filters_as_json(gateway: Script, capsys: Captured, tmp_path: Path) -> None:
    path = "GET /v1/dead/export?host=a%3A1&reason=expired&since=2026-01-01T10%3A00%3A00.000Z&until="
    gateway.answers[path + "2026-01-01T11%3A00%3A00.000Z"] = [Answer(200, b"")]
    file = str(tmp_path / "dead.jsonl")
    filters = ("--host", "a:1", "--reason", "expired", "--since", "2h", "--until", "1h")
    assert main(["dead", "export", file, *filters, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"exported": 0, "bytes": 0, "file": file}
    assert Path(file).read_bytes() == b""


def test_export_to_stdout(gateway: Script) -> None:
    gateway.answers["GET /v1/dead/export"] = [Answer(200, LINES)]
    result = subprocess.run([EXECUTABLE, "dead", "export", "-"], capture_output=True, timeout=30, check=True)
    assert (result.stdout, result.stderr) == (LINES, b"")


def test_an_export_replaces_what_a_link_points_to(gateway: Script, tmp_path: Path) -> None:
    gateway.answers[EXPORT] = [Answer(200, LINES)]
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    assert main(["dead", "export", str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == LINES


def test_a_refused_export_leaves_no_file(gateway: Script, capsys: Captured, tmp_path: Path) -> None:
    gateway.answers[EXPORT.replace("?", "?host=a&")] = problem(404, "There is no circuit for a.")
    folder = tmp_path / "out"
    folder.mkdir()
    assert main(["dead", "export", str(folder / "dead.jsonl"), "--host", "a"]) == 1
    assert capsys.readouterr() == ("", "holdfast: There is no circuit for a.\n")
    assert list(folder.iterdir()) == []


def test_an_export_that_is_cut_off_keeps_the_old_file(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "dead.jsonl").write_bytes(b"old")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "control.sock"))
        server.listen()
        command = [EXECUTABLE, "dead", "export", str(folder / "dead.jsonl")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            # First the request for the time, then the export.
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
                connection.sendall(head + b"%x\r\n%s\r\n" % (len(LINES), LINES))
            out, error = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, b"")
    assert error.decode() == (
        f"holdfast: the gateway on {tmp_path}/control.sock closed the connection:"
        " it stopped, or the output was not read for too long\n"
    )
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"dead.jsonl": b"old"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/dev/null", "/dev/null is there and is no plain file; - is standard output"),
        ("/dev", "/dev is there and is no plain file; - is standard output"),
        ("/does/not/exist", "/does/not/exist can't be written: No such file or directory"),
    ],
)
def test_an_export_to_an_unwritable_file(gateway: Script, capsys: Captured, name: str, expected: str) -> None:
    gateway.answers[EXPORT] = [Answer(200, LINES)]
    assert main(["dead", "export", name]) == 1
    assert capsys.readouterr() == ("", f"holdfast: {expected}\n")
    assert Path("/dev/null").is_char_device()


def test_an_export_shows_a_bar(gateway: Script, tmp_path: Path) -> None:
    gateway.answers["GET /v1/status"] = documents(status())
    gateway.answers["GET /v1/dead/export"] = [Answer(200, LINES * 60)]
    with on_terminal("dead", "export", str(tmp_path / "x")) as terminal:
        assert terminal.end() == 0
    assert b"0%  0 of 17 exported" in terminal.shown
    assert b"100%  100 of 100 exported" in terminal.shown
