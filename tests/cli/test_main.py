"""The first word, the help, exit statuses, and the imports of light commands."""

import os
import subprocess
import sys

import pytest

from holdfast import __version__
from holdfast.cli.commands import COMMANDS
from holdfast.cli.main import main
from tests.cli.conftest import EXECUTABLE, Run

Captured = pytest.CaptureFixture[str]


def test_version(holdfast: Run) -> None:
    result = holdfast("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"holdfast {__version__}\n", "")


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_has_an_example_of_each_command(word: str, capsys: Captured) -> None:
    assert main([word]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  holdfast {name}" in out for name in COMMANDS)
    assert all(len(line) <= 80 for line in out.splitlines())


ACTIONS = {"messages": ("list", "show", "retry", "drop"), "dead": ("list", "replay", "drop", "export")}


@pytest.mark.parametrize("command", [*COMMANDS, *(f"{name} {each}" for name in ACTIONS for each in ACTIONS[name])])
def test_help_of_a_command_has_an_example(command: str, capsys: Captured) -> None:
    assert main([*command.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: holdfast {command} ")
    assert f"\n  holdfast {command}" in out.partition("\nexample")[2]
    assert all(len(line) <= 80 for line in out.splitlines())


def test_no_command_is_wrong_usage(capsys: Captured) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("usage: holdfast COMMAND")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["stauts"], 'holdfast: there is no command "stauts"; did you mean "status"?\n'),
        (["unfreez", "x"], 'holdfast: there is no command "unfreez"; did you mean "unfreeze"?\n'),
        (
            ["xyzzy\n"],
            f'holdfast: there is no command "xyzzy\\n"; the commands are {", ".join(COMMANDS)}\n',
        ),
        (
            ["--config", "x", "status"],
            "holdfast: there is no option --config here; options come after the command, see holdfast --help\n",
        ),
    ],
)
def test_unknown_command(words: list[str], expected: str, holdfast: Run) -> None:
    result = holdfast(*words)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", expected)


@pytest.mark.parametrize(
    "words",
    [
        ["messages"],
        ["messages", "lst"],
        ["messages", "show"],
        ["messages", "list", "--state", "frozen"],
        ["messages", "list", "--limit", "0"],
        ["messages", "list", "--limit", "-1"],
        ["circuits", "--state", "dead"],
        ["circuits", "a", "--state", "frozen"],
        ["unfreeze"],
        ["unfreeze", "a", "--all"],
        ["unfreeze", ""],
        ["freeze"],
        ["probe"],
        ["why"],
        ["why", " "],
        ["messages", "retry"],
        ["messages", "drop", "--state", "delivered"],
        ["messages", "drop", "--before", "yesterday"],
        ["messages", "drop", "--host", ""],
        ["dead"],
        ["dead", "list", "--reason", "boredom"],
        ["dead", "replay", "--since", "2 h"],
        ["dead", "replay", "--host", ""],
        ["dead", "drop", "--limit", "0"],
        ["dead", "export"],
        ["drain", "--wait", "--cancel"],
        ["completions"],
        ["completions", "tcsh"],
        ["status", "--jso"],
        ["status", "extra"],
        ["run", "--set", "log.format"],
        ["run", "--set", "log=text"],
        ["check", "a", "--config", "b"],
        ["send"],
        ["send", "u", "-d", "x", "--data-file", "y"],
        ["send", "u", "-X", "GET"],
        ["send", "u", "-H", "no colon"],
        ["send", "u", "-H", "bad name: x"],
        ["send", "u", "-H", "x: a\nb: c"],
        ["send", "u\n"],
        ["send", "u", "--to", "nowhere"],
        ["health", "extra"],
    ],
)
def test_wrong_usage(words: list[str], capsys: Captured) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"usage: holdfast {words[0]}")


def test_help_into_a_closed_pipe() -> None:
    # Unbuffered, argparse itself would write to the closed pipe, and hide the error.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [EXECUTABLE, "status", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


@pytest.mark.parametrize(("words", "allowed"), [(["--version"], set()), (["health"], {"argparse", "socket"})])
def test_version_and_health_import_next_to_nothing(words: list[str], allowed: set[str]) -> None:
    """Exec probes run health every few seconds."""
    script = (
        "import sys; from holdfast.cli.main import main; main(sys.argv[1:]);"
        "print(*(name for name in sys.modules if '.' not in name or name.startswith('holdfast.')), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    imported = set(result.stderr.splitlines()[-1].split())
    heavy = {"argparse", "socket", "asyncio", "dataclasses", "httpx", "json", "pathlib", "ssl", "trio", "typing"}
    assert imported & heavy == allowed
    ours = {name.removeprefix("holdfast.cli.") for name in imported if name.startswith("holdfast.")}
    assert ours <= {
        "holdfast.cli",
        "main",
        "commands",
        "command_error",
        "health",
        "arguments",
    }
