"""--watch: the same view again and again."""

import json
import signal

import pytest

from holdfast.cli.control_client import PAGE
from holdfast.cli.main import main
from holdfast.cli.output import fit_screen
from tests.cli.scripted import Script, circuit, documents, problem, status
from tests.cli.terminal import on_terminal

Captured = pytest.CaptureFixture[str]
LIST = f"GET /v1/circuits?limit={PAGE}"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.output.WATCH_INTERVAL", 0.0)


@pytest.mark.parametrize(
    ("command", "path", "document", "first"),
    [
        ("status", "GET /v1/status", status(), "healthy"),
        ("circuits", LIST, {"circuits": [circuit()], "next": None}, "STATE"),
        ("circuits a", "GET /v1/circuits/a", circuit(), "hooks.example.com:443 is enabled"),
    ],
)
def test_without_a_terminal_watch_prints_blocks_until_an_error(
    gateway: Script, capsys: Captured, at_once: None, command: str, path: str, document: dict[str, object], first: str
) -> None:
    gateway.answers[path] = [*documents(document, document), *problem(503, "The store failed.")]
    assert main([*command.split(), "--watch"]) == 1
    captured = capsys.readouterr()
    blocks = captured.out.split("\n\n")
    assert [block.splitlines()[1].startswith(first) for block in blocks[:2]] == [True, True]
    assert blocks[2:] == [""]
    assert " UTC, every 0 s until Ctrl-C\n" in blocks[0]
    assert captured.err == "holdfast: The store failed.\n"


def test_watch_as_json_prints_a_line_each_time(gateway: Script, capsys: Captured, at_once: None) -> None:
    gateway.answers["GET /v1/status"] = [*documents(status(), status()), *problem(503, "The store failed.")]
    assert main(["status", "--watch", "--json"]) == 1
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [status(), status()]


def test_on_a_terminal_watch_redraws_in_place_until_ctrl_c(gateway: Script) -> None:
    page = {"circuits": [circuit(host=f"h{number}:443") for number in range(40)], "next": None}
    gateway.answers[LIST] = documents(page)
    with on_terminal("circuits", "--watch") as terminal:
        terminal.wait_for("\x1b[23F\x1b[J")  # the second view starts at the first line of the first
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 130
    assert b"... the rest does not fit here\x1b[?7h\r\n" in terminal.shown
    assert b"h19:443" in terminal.shown
    assert b"h20:443" not in terminal.shown


def test_watch_fits_the_screen() -> None:
    assert fit_screen(["a", "b"], 2) == ["a", "b"]
    assert fit_screen(["a", "b", "c"], 2) == ["a", "... the rest does not fit here"]
    assert fit_screen(["a", "b"], 0) == ["a", "... the rest does not fit here"]
