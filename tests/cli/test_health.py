"""health: exit statuses and lines on stderr."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from holdfast.cli.command_error import CommandError
from holdfast.cli.health import check_health
from holdfast.cli.main import main
from tests.cli.conftest import Run
from tests.cli.scripted import Answer, Script, tcp_script

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def healthy() -> Iterator[Script]:
    with tcp_script() as script:
        script.answers["GET /healthz"] = [Answer(200, b'{"status": "ok"}')]
        yield script


@contextmanager
def listener(*pieces: bytes) -> Iterator[tuple[str, int]]:
    """Accepts one connection, sends the pieces, and keeps it open until the end."""
    ended = threading.Event()

    def serve(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, suppress(ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
                ended.wait(0.02)
            ended.wait(30)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        try:
            yield server.getsockname()
        finally:
            ended.set()
            thread.join()


def test_a_healthy_gateway_prints_nothing(healthy: Script, holdfast: Run) -> None:
    result = holdfast("health", "--status", healthy.where)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert healthy.received[0].headers == [("Host", healthy.where), ("Connection", "close")]


def test_a_gateway_that_is_not_healthy(healthy: Script, holdfast: Run) -> None:
    healthy.answers["GET /healthz"] = [Answer(503, b'{"status": "failing",\n "checks": {"store": "no space"}}')]
    result = holdfast("health", "--status", healthy.where)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        f'holdfast: not healthy: {healthy.where} answered 503 {{"status": "failing",\\n "checks": '
        '{"store": "no space"}}\n'
    )


def test_without_a_listener(holdfast: Run) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        result = holdfast("health", "--status", address)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"holdfast: not healthy: {address}: Connection refused\n"


def test_a_gateway_that_does_not_answer(holdfast: Run) -> None:
    with listener() as (host, port):
        result = holdfast("health", "--status", f"{host}:{port}")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"holdfast: not healthy: {host}:{port} did not answer within 3 s\n"


def test_an_answer_byte_by_byte_counts_as_none() -> None:
    with listener(*([b"H"] * 100)) as (host, port), pytest.raises(CommandError, match=r"did not answer within 0\.2 s"):
        check_health(host, port, timeout=0.2)


def test_the_gateway_need_not_close_the_connection() -> None:
    with listener(b"HTTP/1.1 2", b"00 OK\r\n") as (host, port):
        check_health(host, port)
    with listener(b"HTTP/1.1 503 X\r\n\r\nwhy") as (host, port), pytest.raises(CommandError, match="answered 503 why"):
        check_health(host, port, timeout=2.0)


@pytest.mark.parametrize("answer", [b"SSH-2.0-x 200 \r\n", b"HTTP/1.1 2000 OK\r\n", b"HTTP/1.1 200", b"\r\n"])
def test_an_answer_other_than_200(answer: bytes) -> None:
    with listener(answer) as (host, port), pytest.raises(CommandError):
        check_health(host, port, timeout=0.2)


def test_where_the_address_comes_from(
    healthy: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    port = healthy.where.rpartition(":")[2]
    config = tmp_path / "holdfast.toml"
    config.write_text(f'[listen]\nstatus = "0.0.0.0:{port}"\n')
    assert main(["health", "--config", str(config)]) == 0
    monkeypatch.setenv("HOLDFAST_CONFIG", str(config))
    assert main(["health"]) == 0
    monkeypatch.setenv("HOLDFAST_LISTEN__STATUS", "127.0.0.1:1")
    assert main(["health"]) == 1
    assert main(["health", "--status", healthy.where]) == 0
    assert capsys.readouterr().err == "holdfast: not healthy: 127.0.0.1:1: Connection refused\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "can't be read: No such file or directory"),
        ("[listen", "is not valid TOML: "),
        ("[listen]\nstatus = 8801\n", '"8801" is not an address'),
    ],
)
def test_an_invalid_config(text: str | None, expected: str, tmp_path: Path, capsys: Captured) -> None:
    config = tmp_path / "holdfast.toml"
    if text is not None:
        config.write_text(text)
    assert main(["health", "--config", str(config)]) == 1
    assert expected in capsys.readouterr().err
