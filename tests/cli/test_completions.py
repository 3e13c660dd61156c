"""Completion scripts: real shells load them and offer the words that the commands accept."""

import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.cli.commands import COMMANDS
from holdfast.cli.completions import command_tree
from tests.cli.conftest import EXECUTABLE, Run
from tests.support import fork_server

BASH = """
source "$1"
shift
COMP_WORDS=(holdfast "$@") COMP_CWORD=$#
_holdfast
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completions") / "bash"
    file.write_text(fork_server.run("completions", "bash").stdout)
    return file


def test_the_tree_has_every_command_with_its_options() -> None:
    assert [node.words for node in command_tree()] == [(name,) for name in COMMANDS]
    actions = {node.words[0]: [each.words[1] for each in node.nodes] for node in command_tree() if node.nodes}
    assert actions["messages"] == ["list", "show", "retry", "drop"]
    assert actions["dead"] == ["list", "replay", "drop", "export"]
    flags = {
        flag for node in command_tree() if node.words == ("status",) for each in node.options for flag in each.flags
    }
    assert flags == {"-h", "--help", "--watch", "--json", "--socket", "--config"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_accepts_the_syntax(shell: str, holdfast: Run, tmp_path: Path) -> None:
    script = holdfast("completions", shell).stdout
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    (tmp_path / "script").write_text(script)
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True, timeout=30)


def test_bash_loads_it() -> None:
    script = f"source <({EXECUTABLE} completions bash); complete -p holdfast"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert (result.stdout, result.stderr) == ("complete -F _holdfast holdfast\n", "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["stat"], {"status"}),
        (["--v"], {"--version"}),
        (["messages", ""], {"list", "show", "retry", "drop", "-h", "--help"}),
        (["messages", "list", "--s"], {"--state", "--socket"}),
        (["messages", "drop", "--state", ""], {"queued", "retrying", "held", "dead"}),
        (["dead", "replay", "--reason", "ex"], {"exhausted", "expired"}),
        (["dead", "list", "--host", ""], {""}),
        (["completions", ""], {"bash", "zsh", "fish", "-h", "--help"}),
        (["check", "a"], {"a b.toml"}),
        (["status", "--config", "a"], {"a b.toml"}),
    ],
)
def test_completions_of_bash(words: list[str], expected: set[str], bash_script: Path, tmp_path: Path) -> None:
    (tmp_path / "a b.toml").touch()
    command = ["bash", "-c", BASH, "bash", bash_script, *words]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, cwd=tmp_path)
    assert set(result.stdout.split("\n")[:-1]) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("holdfast stat", {"status"}),
        ("holdfast messages ", {"list", "show", "retry", "drop"}),
        ("holdfast messages list --s", {"--state", "--socket"}),
        ("holdfast dead replay --reason ", {"exhausted", "expired"}),
        ("holdfast dead list --host ", set()),
        ("holdfast status --config a", {"a b.toml"}),
    ],
)
@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish here")
def test_completions_of_fish(line: str, expected: set[str], tmp_path: Path) -> None:
    (tmp_path / "a b.toml").touch()
    script = f"{EXECUTABLE} completions fish | source; complete -C '{line}'"
    result = subprocess.run(["fish", "-c", script], capture_output=True, text=True, timeout=30, cwd=tmp_path)
    assert {offer.partition("\t")[0] for offer in result.stdout.splitlines()} == expected
    assert result.stderr == ""
