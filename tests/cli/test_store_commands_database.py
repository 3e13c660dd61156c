"""fsck, export, import and compact on a database, also while a fleet uses it."""

import json
from pathlib import Path

import psycopg
import pytest

from holdfast.core.message import id_text
from holdfast.store.port import Accept
from tests.cli.conftest import Run
from tests.contract.builders import Desk
from tests.store.populated import Populated, build, populate
from tests.support.harness import Receiver, running, until
from tests.support.ports import refusing_port
from tests.support.postgres import PASSWORD

NOTHING = '{"format": "holdfast-export", "version": 2}\n{"kind": "end", "lines": 1}\n'
CLEAN = "the store is clean\n"


@pytest.fixture
def moved(holdfast: Run, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Populated:
    """An embedded store that was exported to a file and imported into the database."""
    store = build(tmp_path / "store", killed=False)
    monkeypatch.setenv("HOLDFAST_STORE__PATH", str(store.folder))
    assert holdfast("export", str(tmp_path / "before.jsonl")).returncode == 0
    monkeypatch.setenv("HOLDFAST_STORE__URL", database)
    done = holdfast("import", str(tmp_path / "before.jsonl"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("imported 8 circuits, 15 messages, 2 delivered, 3 keys; 0 were there already")
    return store


def test_import_into_a_database_and_export_from_it(
    holdfast: Run, moved: Populated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (tmp_path / "before.jsonl").read_text()
    after = tmp_path / "after.jsonl"
    assert holdfast("export", str(after)).stdout == "30 lines written, 0 records left out\n"
    assert after.read_text() == before
    assert holdfast("export", "-").stdout == before
    assert holdfast("fsck").stdout == CLEAN
    monkeypatch.delenv("HOLDFAST_STORE__URL")
    monkeypatch.setenv("HOLDFAST_STORE__PATH", str(tmp_path / "copy"))
    assert holdfast("import", str(after)).returncode == 0
    assert holdfast("export", "-").stdout == before


def test_fsck_lists_problems_and_repair_fixes_counts(holdfast: Run, moved: Populated, database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE holdfast.counters SET first = first + 1 WHERE lane = 'busy:443'")
        connection.execute("UPDATE holdfast.lanes SET state = 0 WHERE lane = 'ice:443'")
    found = holdfast("fsck")
    assert (found.returncode, found.stderr) == (1, "")
    share, circuit, advice = found.stdout.splitlines()
    assert share.startswith("share busy:443: is counted with ")
    assert circuit.startswith("circuit ice:443: is listed as enabled")
    assert advice == "2 problems found; holdfast fsck --repair repairs what it can"
    repaired = holdfast("fsck", "--repair")
    assert repaired.returncode == 0
    assert "counted the shares of 1 host again\n" in repaired.stdout
    assert repaired.stdout.endswith(CLEAN)


def test_an_unreadable_message_stays_and_exits_1(holdfast: Run, moved: Populated, database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE holdfast.messages SET record = 'x' WHERE id = %s", (moved["waiting"],))
    exported = holdfast("export", "-")
    assert exported.returncode == 1
    assert f"left out: message {id_text(moved['waiting'])}: " in exported.stderr
    repaired = holdfast("fsck", "--repair")
    assert repaired.returncode == 1
    assert repaired.stdout.endswith("1 problem left after the repair\n")


def test_a_running_fleet_delivers_imported_messages(
    holdfast: Run, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receiver: Receiver
) -> None:
    async def accept(desk: Desk) -> None:
        await desk.ledger.perform(Accept(desk.message(f"127.0.0.1:{receiver.port}")._replace(scheme="http")))

    store = populate(tmp_path / "store", accept)
    monkeypatch.setenv("HOLDFAST_STORE__PATH", str(store.folder))
    exported = holdfast("export", "-").stdout
    monkeypatch.setenv("HOLDFAST_STORE__URL", database)
    with running(tmp_path / "fleet", store__url=database):
        assert holdfast("import", "-", input=exported).returncode == 0
        sent = receiver.wait_for_one()
        assert json.loads(exported.splitlines()[2])["id"] == sent.id
        until(lambda: '"kind": "delivered"' in holdfast("export", "-").stdout)
        assert holdfast("fsck").stdout == CLEAN
        again = holdfast("import", "-", input=exported)
        assert "2 were there already" in again.stdout
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("command", [["fsck"], ["fsck", "--repair"], ["export", "-"]])
def test_missing_tables_are_not_created(
    holdfast: Run, database: str, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE__URL", database)
    done = holdfast(*command)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("holdfast: there is no store in postgresql://")
    assert PASSWORD not in done.stderr


@pytest.mark.parametrize("command", [["fsck"], ["export", "-"], ["import", "-"]])
def test_an_unreachable_database_is_one_line(
    holdfast: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE__URL", f"postgresql://u:hunter2@127.0.0.1:{refusing_port()}/hooks")
    done = holdfast(*command, input=NOTHING)
    assert (done.returncode, done.stdout) == (1, "")
    assert "hunter2" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_compact_is_for_the_embedded_store(
    holdfast: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database: str
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE__URL", database)
    done = holdfast("compact")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("holdfast: compact is for the embedded store; store.url is set, and PostgreSQL ")
    assert list(tmp_path.iterdir()) == []
