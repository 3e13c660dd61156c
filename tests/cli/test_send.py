import json
import socket
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.cli.send import content_type_of
from tests.cli.conftest import Run
from tests.cli.scripted import Answer, Script, problem

Captured = pytest.CaptureFixture[str]

ID = "msg_00000000000000000000000000000001"
URL = "https://hooks.example.com/in?x=1"
BODY = {"id": ID, "target": URL, "state": "queued"}
ACCEPTED = Answer(202, json.dumps(BODY).encode(), (("Content-Type", "application/json"), ("Holdfast-Message-Id", ID)))


@pytest.fixture
def accepting(ingest: Script) -> Script:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        ingest.answers[f"{method} /"] = [ACCEPTED]
    return ingest


def test_send_prints_the_id_and_adds_no_headers_of_its_own(accepting: Script, capsys: Captured) -> None:
    assert main(["send", URL, "-d", '{"a": 1}', "--to", accepting.where]) == 0
    assert capsys.readouterr().out == f"{ID}\n"
    (received,) = accepting.received
    assert received.body == b'{"a": 1}'
    assert {name.lower(): value for name, value in received.headers} == {
        "host": accepting.where,
        "holdfast-target": URL,
        "content-type": "application/json",
        "content-length": "8",
    }


def test_send_with_every_option(accepting: Script, capsys: Captured, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    options = ["-X", "put", "-H", "Content-Type: text/csv", "-H", "X-Team:  grün ", "--key", "k 1", "--delay", "30s"]
    options += ["--token-file", str(token), "--to", accepting.where, "--json"]
    assert main(["send", URL, "-d", "a,b", *options]) == 0
    assert json.loads(capsys.readouterr().out) == BODY
    (received,) = accepting.received
    assert received.method == "PUT"
    headers = [(name.lower(), value) for name, value in received.headers]
    for expected in [
        ("content-type", "text/csv"),
        ("x-team", "grün".encode().decode("latin-1")),
        ("idempotency-key", "k 1"),
        ("holdfast-delay", "30s"),
        ("holdfast-token", "s3cret"),
    ]:
        assert headers.count(expected) == 1
    assert [name for name, _ in headers].count("content-type") == 1


def test_send_without_a_body_has_no_content_type(accepting: Script) -> None:
    assert main(["send", URL, "-X", "DELETE", "--to", accepting.where]) == 0
    names = {name.lower() for name, _ in accepting.received[0].headers}
    assert "content-type" not in names


def test_send_a_file_and_stdin(accepting: Script, holdfast: Run, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"\xff\x00")
    assert holdfast("send", URL, "--data-file", str(body), "--to", accepting.where).returncode == 0
    assert holdfast("send", URL, "--data-file", "-", "--to", accepting.where, input="[1]").returncode == 0
    assert [each.body for each in accepting.received] == [b"\xff\x00", b"[1]"]
    types = [dict(each.headers)["Content-Type"] for each in accepting.received]
    assert types == ["text/plain", "application/json"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"a": 1}', b"application/json"),
        (b"12", b"application/json"),
        (b"hello", b"text/plain"),
        (b"", b"text/plain"),
        (b"\xff\xfe", b"text/plain"),
        (b"[" * 100_000, b"text/plain"),
    ],
)
def test_content_type(body: bytes, expected: bytes) -> None:
    assert content_type_of(body) == expected


def test_address_and_token_of_the_config(accepting: Script, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret")
    config = tmp_path / "holdfast.toml"
    port = accepting.where.rpartition(":")[2]
    config.write_text(f'[listen]\ningest = "0.0.0.0:{port}"\n[ingest]\ntoken_file = "{tmp_path}/token"\n')
    assert main(["send", URL, "--config", str(config)]) == 0
    headers = {name.lower(): value for name, value in accepting.received[0].headers}
    assert headers["holdfast-token"] == "s3cret"
    assert headers["host"] == accepting.where


def test_the_token_of_the_config_is_sent_to_no_other_address(accepting: Script, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret")
    config = tmp_path / "holdfast.toml"
    config.write_text(f'[ingest]\ntoken_file = "{tmp_path}/token"\n')
    assert main(["send", URL, "--config", str(config), "--to", accepting.where]) == 0
    assert "holdfast-token" not in {name.lower() for name, _ in accepting.received[0].headers}


def test_proxy_variables_are_not_followed(accepting: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    assert main(["send", URL, "--to", accepting.where]) == 0


def test_an_answer_without_a_body(ingest: Script, capsys: Captured) -> None:
    ingest.answers["POST /"] = [Answer(204, b"", (("Holdfast-Message-Id", ID),))]
    assert main(["send", URL, "--to", ingest.where]) == 0
    assert main(["send", URL, "--to", ingest.where, "--json"]) == 0
    assert capsys.readouterr().out == f'{ID}\n{{"id": "{ID}"}}\n'


def test_a_duplicate_is_reported(ingest: Script, capsys: Captured) -> None:
    ingest.answers["POST /"] = [ACCEPTED._replace(headers=(*ACCEPTED.headers, ("Holdfast-Duplicate", "true")))]
    assert main(["send", URL, "--key", "k", "--to", ingest.where]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{ID}\n"
    assert captured.err == "holdfast: this key was used before; nothing new was queued\n"


def test_a_refusal(ingest: Script, holdfast: Run) -> None:
    ingest.answers["POST /"] = problem(507, "The store is full; try again in a minute.")
    result = holdfast("send", URL, "--to", ingest.where)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "holdfast: The store is full; try again in a minute.\n"


def test_a_server_that_is_not_a_gateway(ingest: Script, capsys: Captured) -> None:
    ingest.answers["POST /"] = [Answer(200, b"hello")]
    assert main(["send", URL, "--to", ingest.where]) == 1
    assert capsys.readouterr().err == (
        f"holdfast: the server on {ingest.where} does not answer like a holdfast gateway\n"
    )


def test_without_a_listener(holdfast: Run) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        result = holdfast("send", URL, "--to", address)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"holdfast: no gateway is running: nothing listens on {address}\n"


def test_files_that_cannot_be_used(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    assert main(["send", URL, "--data-file", "/does/not/exist", "--to", "127.0.0.1:1"]) == 2
    assert main(["send", URL, "--token-file", "/does/not/exist", "--to", "127.0.0.1:1"]) == 2
    assert main(["send", URL, "--token-file", f"{tmp_path}/empty", "--to", "127.0.0.1:1"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "holdfast: /does/not/exist can't be read: No such file or directory",
        "holdfast: /does/not/exist can't be read: No such file or directory",
        f"holdfast: {tmp_path}/empty holds no token: it has to be one line of visible ASCII characters",
    ]
