"""migrate: exit statuses and output."""

import json
from pathlib import Path

import psycopg
import pytest

from holdfast.store.postgres.schema import SCHEMA, VERSION
from tests.cli.conftest import Run
from tests.support.ports import refusing_port
from tests.support.postgres import PASSWORD


@pytest.fixture
def url(database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HOLDFAST_STORE__URL", database)
    return database


@pytest.mark.usefixtures("url")
def test_it_prints_both_versions(holdfast: Run) -> None:
    first, second, third = holdfast("migrate"), holdfast("migrate"), holdfast("migrate", "--json")
    assert [done.returncode for done in (first, second, third)] == [0, 0, 0]
    assert first.stdout.endswith(f": version 0 before, {VERSION} now\n")
    assert second.stdout.endswith(f": version {VERSION}, nothing to do\n")
    assert json.loads(third.stdout) == {"before": VERSION, "after": VERSION}
    assert "postgresql://" in first.stdout
    assert PASSWORD not in first.stdout + second.stdout


def test_tables_of_a_newer_version_exit_3(holdfast: Run, url: str) -> None:
    holdfast("migrate")
    with psycopg.connect(url) as connection:
        connection.execute(f"INSERT INTO {SCHEMA}.versions VALUES (99, 99)".encode())
    done = holdfast("migrate")
    assert done.returncode == 3
    assert done.stderr.startswith("holdfast: the tables need version 99")
    assert len(done.stderr.splitlines()) == 1


def test_an_unreachable_database_exits_1(holdfast: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE__URL", f"postgresql://u:hunter2@127.0.0.1:{refusing_port()}/hooks")
    done = holdfast("migrate")
    assert done.returncode == 1
    assert "Connection refused" in done.stderr
    assert "hunter2" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_refused_password_exits_3(holdfast: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if PASSWORD not in url:
        pytest.skip("HOLDFAST_TEST_POSTGRES names a server that lets in whom it likes")
    monkeypatch.setenv("HOLDFAST_STORE__URL", url.replace(PASSWORD, "hunter2"))
    done = holdfast("migrate")
    assert done.returncode == 3
    assert "password authentication failed" in done.stderr
    assert "hunter2" not in done.stderr


def test_it_needs_a_database(holdfast: Run) -> None:
    done = holdfast("migrate")
    assert done.returncode == 2
    assert done.stderr == "holdfast: migrate needs store.url; holdfast run migrates an embedded store\n"


def test_it_reads_no_secret_but_the_url(holdfast: Run, url: str, tmp_path: Path) -> None:
    """A job that only migrates has no other secrets."""
    config = tmp_path / "holdfast.toml"
    config.write_text('[ingest]\ntoken_file = "/not/there"\n')
    assert holdfast("migrate", "--config", str(config)).returncode == 0


@pytest.mark.usefixtures("executed")
@pytest.mark.parametrize("command", ["run", "check", "migrate"])
def test_without_the_driver_one_line_says_so(
    holdfast: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "psycopg.py").write_text("raise ImportError(\"No module named 'psycopg'\")\n")
    monkeypatch.setenv("PYTHONPATH", str(hidden))
    monkeypatch.setenv("HOLDFAST_STORE__URL", "postgresql://db/hooks")
    done = holdfast(command)
    assert done.returncode == 2
    assert done.stderr.startswith('holdfast: store.url: needs the extra "postgres"')
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["run", "check", "migrate"])
def test_an_unknown_option_of_the_url_is_a_fault_of_the_config(
    holdfast: Run, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE__URL", "postgresql://u:hunter2@db/hooks?sslmod=hunter2")
    done = holdfast(command)
    assert done.returncode == 2
    assert done.stderr == 'holdfast: store.url: invalid URI query parameter: "sslmod"\n'
