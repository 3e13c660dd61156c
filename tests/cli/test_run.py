import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.cli.main import main
from holdfast.config import Config
from holdfast.core.ownership import Role
from tests.cli.conftest import Run

Captured = pytest.CaptureFixture[str]


URL = "postgresql://holdfast:hunter2@db.example:5432/hooks?sslmode=require"


@pytest.fixture
def roles() -> list[Role]:
    """The roles of the gateways that were started."""
    return []


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, roles: list[Role]) -> list[Config]:
    """The configs of the gateways that were started. Each ends at once with status 3."""
    configs: list[Config] = []

    def start(config: Config, load: Callable[[], Config], file: Path | None, role: Role) -> int:
        configs.append(config)
        roles.append(role)
        assert load() == config
        assert file is None or file.is_file()
        return 3

    stand_in = ModuleType("holdfast.app")
    stand_in.main = start  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "holdfast.app", stand_in)
    return configs


def test_run_returns_the_exit_status_of_the_gateway(started: list[Config], tmp_path: Path) -> None:
    assert main(["run"]) == 3
    assert started[0].store.path == tmp_path


def test_flags_override_the_environment_and_that_the_file(
    started: list[Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text('[log]\nformat = "text"\nlevel = "debug"\n[listen]\ningest = "127.0.0.1:1"\n')
    monkeypatch.setenv("HOLDFAST_LOG__LEVEL", "error")
    monkeypatch.setenv("HOLDFAST_LISTEN__INGEST", "127.0.0.1:2")
    flags = ["--ingest", "127.0.0.1:3", "--status", "[::1]:4", "--store", "/s"]
    settings = ["--set", "retry.base=1s", "--set", "routes.billing.url=https://a.example/in?a=b"]
    main(["run", "--config", str(config), *flags, *settings])
    got = started[0]
    assert (got.log.format, got.log.level) == ("text", "error")
    assert (str(got.listen.ingest), str(got.listen.status), str(got.store.path)) == ("127.0.0.1:3", "[::1]:4", "/s")
    assert (got.retry.base, got.routes["billing"].url) == (1000, "https://a.example/in?a=b")


def test_run_prints_every_fault_and_starts_nothing(started: list[Config], capsys: Captured) -> None:
    assert main(["run", "--set", "log.fromat=text", "--ingest", "x", "--set", "retry.base=soon"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == 'holdfast: log.fromat: there is no such key; did you mean "log.format"?'
    assert [line.split()[1] for line in lines] == ["log.fromat:", "listen.ingest:", "retry.base:"]
    assert started == []


@pytest.mark.usefixtures("started")
def test_role(roles: list[Role], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE__URL", URL)
    for words in ([], ["--role", "all"], ["--role", "ingest"], ["--role", "deliver"]):
        assert main(["run", *words]) == 3
    assert roles == [Role.ALL, Role.ALL, Role.INGEST, Role.DELIVER]


def test_a_role_needs_a_database(started: list[Config], capsys: Captured) -> None:
    assert main(["run", "--role", "ingest"]) == 2
    assert capsys.readouterr().err == ("holdfast: --role is for replicas that share a database: it needs store.url\n")
    assert main(["run", "--role", "both", "--set", f"store.url={URL}"]) == 2
    assert "invalid choice: 'both'" in capsys.readouterr().err
    assert started == []


def test_check_without_a_config(capsys: Captured, tmp_path: Path) -> None:
    assert main(["check"]) == 0
    assert capsys.readouterr().out == (
        f"""\
ok: no config, only defaults
store    {tmp_path}
ingest   127.0.0.1:8800
status   127.0.0.1:8801
control  {tmp_path}/control.sock
"""
    )


def test_check_prints_the_sources_of_the_config(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text('[store]\npath = "/s"\n[routes.billing]\nurl = "https://a.example/"\n')
    monkeypatch.setenv("HOLDFAST_CONFIG", str(config))
    monkeypatch.setenv("HOLDFAST_LOG__LEVEL", "error")
    monkeypatch.setenv("HOLDFAST_PORT", "tcp://10.0.0.1:80")
    assert main(["check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"ok: from {config}, HOLDFAST_LOG__LEVEL"
    assert lines[-1] == "routes   billing"
    assert main(["check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "ok": True,
        "file": str(config),
        "environment": ["HOLDFAST_LOG__LEVEL"],
        "store": "/s",
        "ingest": "127.0.0.1:8800",
        "status": "127.0.0.1:8801",
        "control": "/s/control.sock",
        "routes": ["billing"],
    }


def test_check_warns_of_denied_names(holdfast: Run, tmp_path: Path) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text('[egress]\ndeny = ["10.0.0.0/8", "api.example", "*.b.example", "1.1.1.1"]\n')
    result = holdfast("check", str(config), "--json")
    assert (result.returncode, json.loads(result.stdout)["ok"]) == (0, True)
    [line] = result.stderr.splitlines()
    assert line.startswith("holdfast: warning: egress.deny has api.example, *.b.example: ")
    assert line.endswith("name the networks")


def test_check_prints_every_fault(holdfast: Run, tmp_path: Path) -> None:
    config = tmp_path / "bad.toml"
    config.write_text('[listen]\ningest = "x"\n[retry]\nbase = 1\n')
    result = holdfast("check", str(config))
    assert (result.returncode, result.stdout) == (2, "")
    assert [line.split()[1] for line in result.stderr.splitlines()] == ["listen.ingest:", "retry.base:"]
    result = holdfast("check", "--config", str(config), "--json")
    assert (result.returncode, result.stderr) == (2, "")
    document = json.loads(result.stdout)
    assert document["ok"] is False
    assert [fault["key"] for fault in document["faults"]] == ["listen.ingest", "retry.base"]


def test_check_of_a_missing_file(holdfast: Run) -> None:
    result = holdfast("check", "/does/not/exist.toml")
    assert result.returncode == 2
    assert result.stderr == "holdfast: /does/not/exist.toml: can't be read: No such file or directory\n"


@pytest.mark.parametrize("command", ["check", "run"])
def test_an_endless_config_file_is_a_fault(holdfast: Run, command: str) -> None:
    result = holdfast(command, "--config", "/dev/zero")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "holdfast: /dev/zero: can't be read: it is larger than 1 MiB\n"


def test_check_shows_the_database_without_its_password(holdfast: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE__URL", URL)
    for words in ([], ["--json"]):
        done = holdfast("check", *words)
        assert done.returncode == 0
        assert "postgresql://db.example:5432/hooks" in done.stdout
        assert "hunter2" not in done.stdout + done.stderr
