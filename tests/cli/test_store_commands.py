"""fsck, export, import and compact as the real executable: exit statuses, output, files, and the store's lock."""

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from holdfast.core.message import id_text
from holdfast.store.embedded.tables import Table
from tests.cli.conftest import EXECUTABLE, Run
from tests.store.populated import Populated, build, put
from tests.support.harness import running

COMMANDS = (["fsck"], ["export", "-"], ["import", "-"], ["compact"])
HEADER = '{"format": "holdfast-export", "version": 1}\n'
NOTHING = HEADER + '{"kind": "end", "lines": 1}\n'


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Populated:
    monkeypatch.setenv("HOLDFAST_STORE__PATH", str(tmp_path / "store"))
    return build(tmp_path / "store")


def use(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("HOLDFAST_STORE__PATH", str(folder))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_the_store_of_a_running_gateway_is_locked(
    holdfast: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    use(monkeypatch, tmp_path / "store")
    with running(tmp_path / "store") as gateway:
        result = holdfast(*command, input=NOTHING)
        assert (result.returncode, result.stdout) == (3, "")
        assert result.stderr == f"holdfast: {tmp_path}/store is in use by process {gateway.process.pid}\n"


@pytest.mark.parametrize("command", [["fsck"], ["fsck", "--repair"], ["export", "x.jsonl"], ["compact"]])
def test_a_missing_store_is_not_created(
    holdfast: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    use(monkeypatch, tmp_path / "none")
    result = holdfast(*command, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr == f"holdfast: there is no store in {tmp_path}/none\n"
    assert list(tmp_path.iterdir()) == []


def test_a_directory_open_to_others_is_closed_with_a_warning(holdfast: Run, store: Populated) -> None:
    store.folder.chmod(0o777)
    result = holdfast("fsck")
    assert (result.returncode, result.stdout) == (0, "the store is clean\n")
    detail = "it was open to others, and is now its owner's alone"
    assert result.stderr == f"holdfast: folder_closed: {store.folder}: {detail}\n"
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("name", ["data.mdb", "lock.mdb"])
def test_links_in_place_of_its_files_are_not_followed(
    holdfast: Run, store: Populated, command: list[str], name: str, tmp_path: Path
) -> None:
    elsewhere, file = tmp_path / "elsewhere", store.folder / name
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    result = holdfast(*command, input=NOTHING, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr.startswith(f"holdfast: {file} is a link; ")
    assert elsewhere.read_bytes() == before


def test_the_config_file_names_the_store(holdfast: Run, tmp_path: Path) -> None:
    build(tmp_path / "elsewhere")
    config = tmp_path / "holdfast.toml"
    config.write_text(f'[store]\npath = "{tmp_path}/elsewhere"\n')
    result = holdfast("fsck", "--config", str(config))
    assert (result.returncode, result.stdout) == (0, "the store is clean\n")


def test_fsck_lists_problems_and_repair_fixes_them(holdfast: Run, store: Populated) -> None:
    assert holdfast("fsck").returncode == 0
    put(store, Table.MESSAGES, store["waiting"], b"\xc1")
    result = holdfast("fsck")
    assert (result.returncode, result.stderr) == (1, "")
    first, *_, last = result.stdout.splitlines()
    assert first.startswith(f"message {id_text(store['waiting'])}: can't be read: ")
    assert last == "1 problem found; holdfast fsck --repair repairs what it can"
    result = holdfast("fsck", "--repair")
    [aside] = store.folder.glob("set-aside-*.jsonl")
    assert (result.returncode, result.stderr) == (0, "")
    assert f" rows to {aside}\n" in result.stdout
    assert result.stdout.endswith("\nthe store is clean\n")
    assert holdfast("fsck").returncode == 0


def test_fsck_as_json(holdfast: Run, store: Populated) -> None:
    assert holdfast("fsck", "--json").stdout == ""
    put(store, Table.PLACES, store["retrying"], b"\xc1")
    result = holdfast("fsck", "--json")
    [finding] = map(json.loads, result.stdout.splitlines())
    assert (result.returncode, finding["kind"], finding["id"]) == (1, "place", id_text(store["retrying"]))
    result = holdfast("fsck", "--repair", "--json")
    _, repaired = map(json.loads, result.stdout.splitlines())
    assert result.returncode == 0
    assert (repaired["repaired"]["set_aside"], repaired["repaired"]["places"]) == (1, 1)
    assert Path(repaired["repaired"]["file"]).exists()


def test_export_and_import_by_file(
    holdfast: Run, store: Populated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "backup.jsonl"
    file.write_text("an older one")
    file.chmod(0o644)
    previous = os.umask(0)
    try:
        result = holdfast("export", str(file))
    finally:
        os.umask(previous)
    assert (result.returncode, result.stdout, result.stderr) == (0, "30 lines written, 0 records left out\n", "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.jsonl", "store"]
    use(monkeypatch, tmp_path / "copy")
    result = holdfast("import", str(file), "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout) == {
        "added": {"circuit": 8, "message": 15, "delivered": 2, "key": 3},
        "skipped": {},
        "bad": 0,
        "complete": True,
    }
    assert holdfast("export", "-").stdout == file.read_text()
    result = holdfast("import", str(file))
    assert (result.returncode, result.stderr) == (0, "")
    assert "28 were there already" in result.stdout


def test_export_and_import_by_pipe(
    holdfast: Run, store: Populated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = holdfast("export", "-", "--json")
    assert json.loads(result.stderr) == {"lines": 30, "left_out": 0}
    use(monkeypatch, tmp_path / "copy")
    assert holdfast("import", "-", input=result.stdout).returncode == 0
    assert holdfast("export", "-").stdout == result.stdout
    assert holdfast("fsck").returncode == 0


def test_an_export_that_leaves_records_out_exits_1(holdfast: Run, store: Populated) -> None:
    put(store, Table.MESSAGES, store["waiting"], b"\xc1")
    result = holdfast("export", "-")
    assert result.returncode == 1
    assert f"left out: message {id_text(store['waiting'])}: " in result.stderr
    assert len(result.stdout.splitlines()) == 29


@pytest.mark.parametrize("name", ["missing/backup.jsonl", "."])
def test_an_export_to_an_unwritable_file(holdfast: Run, store: Populated, tmp_path: Path, name: str) -> None:
    result = holdfast("export", name, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"holdfast: {name} ")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_an_export_into_a_closed_pipe(store: Populated) -> None:
    end = subprocess.run(["bash", "-c", f"{EXECUTABLE} export - | head -c 1; exit ${{PIPESTATUS[0]}}"], check=False)
    assert end.returncode == 141


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "no export of holdfast"),
        ("hello\n", "no export of holdfast"),
        ('{"format": "holdfast-export", "version": 7}\n', "version 7"),
    ],
)
def test_an_invalid_file_creates_no_store(
    holdfast: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, error: str
) -> None:
    use(monkeypatch, tmp_path / "new")
    result = holdfast("import", "-", input=text)
    assert (result.returncode, result.stdout) == (1, "")
    assert error in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "new").exists()
    assert holdfast("import", str(tmp_path / "missing")).returncode == 1


def test_bad_lines_are_reported_by_number(
    holdfast: Run, store: Populated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = holdfast("export", "-").stdout.splitlines(keepends=True)
    use(monkeypatch, tmp_path / "copy")
    result = holdfast("import", "-", input="".join([*lines[:9], "garbage\n", *lines[10:-1]]))
    assert result.returncode == 1
    first, second = result.stderr.splitlines()
    assert first.startswith("holdfast: -: line 10: ")
    assert "lines are missing" in second
    assert "imported 8 circuits, 14 messages, 2 delivered, 3 keys" in result.stdout
    assert holdfast("fsck").returncode == 0


def test_compact_prints_the_sizes(holdfast: Run, store: Populated) -> None:
    exported = holdfast("export", "-").stdout
    before = (store.folder / "data.mdb").stat().st_size
    result = holdfast("compact", "--json")
    after = (store.folder / "data.mdb").stat().st_size
    assert (result.returncode, json.loads(result.stdout)) == (0, {"before": before, "after": after})
    assert after < before
    result = holdfast("compact")
    assert (result.returncode, result.stdout.split()[2]) == (0, "before,")
    assert holdfast("export", "-").stdout == exported


def test_the_store_of_a_killed_gateway_is_clean(holdfast: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "store") as gateway:
        for number in range(50):
            answer = gateway.post(f"http://127.0.0.1:9/{number % 3}", bytes(3_000), idempotency_key=str(number))
            assert answer.status_code == 202
        gateway.kill()
    use(monkeypatch, tmp_path / "store")
    result = holdfast("fsck")
    assert (result.returncode, result.stdout) == (0, "the store is clean\n")
    result = holdfast("export", "-")
    kinds = [json.loads(line).get("kind") for line in result.stdout.splitlines()]
    assert (kinds.count("message"), kinds.count("key")) == (50, 50)


def test_a_gateway_runs_on_an_imported_and_compacted_store(
    holdfast: Run, store: Populated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = holdfast("export", "-").stdout
    use(monkeypatch, tmp_path / "copy")
    assert holdfast("import", "-", input=lines).returncode == 0
    assert holdfast("compact").returncode == 0
    monkeypatch.delenv("HOLDFAST_STORE__PATH")
    with running(tmp_path / "copy") as gateway:
        shown = gateway.call("GET", f"/v1/messages/{id_text(store['frozen'])}").json()
        assert shown["state"] == "held"
        shown = gateway.call("GET", f"/v1/messages/{id_text(store['exhausted'])}").json()
        assert (shown["state"], shown["dead_reason"]) == ("dead", "exhausted")
