"""The folder of a store is closed to others if that harms nobody, else it is logged."""

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.core.errors import StoreUnusable
from holdfast.store.embedded.folder import OWN_NAMES, SET_ASIDE, WRITTEN, make_folder, take_folder
from holdfast.store.embedded.lmdb import LmdbEngine

STRANGER = 54_321
SIZE = 16 << 20

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")

Logged = pytest.LogCaptureFixture


@pytest.fixture
def folder() -> Iterator[Path]:
    """As it was used, where other users reach it: pytest's own folders are for one alone."""
    with tempfile.TemporaryDirectory(prefix="holdfast-") as place:
        folder = Path(place) / "store"
        folder.mkdir()
        folder.parent.chmod(0o755)
        for name in (*OWN_NAMES, f"{SET_ASIDE}20260101T000000.000Z.jsonl", "lost+found"):
            (folder / name).touch()
        yield folder


def made(folder: Path, mode: int, logged: Logged, user: int | None = None) -> tuple[int, list[str]]:
    """Its mode after a start that found it with this one, and what was told."""
    folder.chmod(mode)
    before = os.geteuid()
    os.seteuid(before if user is None else user)
    try:
        make_folder(folder)
    finally:
        os.seteuid(before)
    return stat.S_IMODE(folder.stat().st_mode), [record.getMessage() for record in logged.records]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o755, 0o1777, 0o2775])
def test_a_store_that_is_open_to_others_is_closed_and_logged(folder: Path, mode: int, caplog: Logged) -> None:
    assert made(folder, mode, caplog) == (0o700, ["folder_closed"])
    assert caplog.records[0].fields["mode"] == f"{mode:04o}"  # type: ignore[attr-defined]
    caplog.clear()
    assert made(folder, 0o700, caplog) == (0o700, [])


@pytest.mark.parametrize("mode", [0o777, 0o755])
def test_an_empty_folder_is_closed_without_a_log_line(tmp_path: Path, mode: int, caplog: Logged) -> None:
    (tmp_path / "lost+found").mkdir()
    assert made(tmp_path, mode, caplog) == (0o700, [])


@pytest.mark.parametrize(("mode", "told"), [(0o777, ["folder_open"]), (0o775, ["folder_open"]), (0o755, [])])
def test_a_folder_with_other_files_stays_open_and_is_logged(
    folder: Path, mode: int, told: list[str], caplog: Logged
) -> None:
    (folder / "of-others").touch()
    assert made(folder, mode, caplog) == (mode, told)
    assert all("move other files out of it" in record.fields["detail"] for record in caplog.records)  # type: ignore[attr-defined]


@as_root
@pytest.mark.parametrize("used", [True, False])
def test_a_volume_that_belongs_to_root_is_logged(folder: Path, used: bool, caplog: Logged) -> None:
    """As a pod has it: the folder is root's, and writable for all or for the gateway's group."""
    if not used:
        for path in folder.iterdir():
            path.unlink()
    assert made(folder, 0o2777, caplog, STRANGER) == (0o2777, ["folder_open"])
    assert "a new folder inside it" in caplog.records[0].fields["detail"]  # type: ignore[attr-defined]


def test_a_lock_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / "holdfast.lock").symlink_to(precious)
    with pytest.raises(StoreUnusable, match="can't be used"):
        take_folder(folder)
    assert precious.read_text() == "precious"


# -- what others prepared in it ----------------------------------------------------------------------------------------

PREPARED = {
    "a link": lambda path, precious: path.symlink_to(precious),
    "a link to nowhere": lambda path, precious: path.symlink_to(path.parent.parent / "nowhere"),
    "a link to a device": lambda path, precious: path.symlink_to("/dev/zero"),
    "a second name": lambda path, precious: os.link(precious, path),
    "a pipe": lambda path, precious: os.mkfifo(path),
    "a folder": lambda path, precious: path.mkdir(),
}


@pytest.mark.parametrize("prepare", PREPARED.values(), ids=PREPARED)
@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("used", [True, False])
def test_what_would_lead_elsewhere_is_refused_before_it_gets_a_byte(
    tmp_path: Path, name: str, prepare: Callable[[Path, Path], None], used: bool
) -> None:
    folder, precious = tmp_path / "store", tmp_path / "precious"
    precious.write_text("precious")
    folder.mkdir()
    if used:
        LmdbEngine(folder, SIZE).close()
        (folder / name).unlink()
    prepare(folder / name, precious)
    with pytest.raises(
        StoreUnusable, match=rf"{name} (is a link|is no plain file|has a second name \(a hard link\)); "
    ):
        LmdbEngine(folder, SIZE)
    assert precious.read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", ["data.mdb.making", "data.mdb.compacting"])
def test_what_is_made_anew_is_not_written_through_a_link(tmp_path: Path, name: str) -> None:
    folder, precious = tmp_path / "store", tmp_path / "precious"
    precious.write_text("precious")
    folder.mkdir()
    (folder / name).symlink_to(precious)
    engine = LmdbEngine(folder, SIZE)
    engine.compact()
    engine.close()
    assert precious.read_text() == "precious"
    assert sorted(path.name for path in folder.iterdir()) == ["data.mdb", "holdfast.lock", "lock.mdb"]


def test_a_folder_that_is_a_link_itself_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "store").symlink_to("real")
    for _ in range(2):
        LmdbEngine(tmp_path / "store", SIZE).close()
    assert (tmp_path / "real" / "data.mdb").is_file()


@as_root
def test_files_of_another_user_are_used_and_logged(folder: Path, caplog: Logged) -> None:
    (folder / "data.mdb").chmod(0o600)
    os.chown(folder / "data.mdb", STRANGER, STRANGER)
    assert made(folder, 0o700, caplog) == (0o700, ["file_of_another"])
    told = caplog.records[0].fields  # type: ignore[attr-defined]
    assert (told["path"], told["owner"]) == (str(folder / "data.mdb"), STRANGER)
    caplog.clear()
    os.chown(folder, STRANGER, STRANGER)
    assert made(folder, 0o700, caplog) == (0o700, []), "a service's store, looked at by root"


@as_root
def test_a_volume_whose_files_another_user_left_to_the_group(folder: Path, caplog: Logged) -> None:
    """As a pod has it that runs as another user than before: the kubelet opens all of it to the group."""
    before, group = STRANGER + 1, STRANGER + 2
    for path in folder.iterdir():
        path.unlink()
    LmdbEngine(folder, SIZE).close()
    for path in folder.iterdir():
        path.chmod(0o660)
        os.chown(path, before, group)
    os.chown(folder, 0, group)
    folder.chmod(0o2770)
    caplog.clear()
    own = os.geteuid(), os.getegid()
    os.setegid(group)
    os.seteuid(STRANGER)
    try:
        LmdbEngine(folder, SIZE).close()
    finally:
        os.seteuid(own[0])
        os.setegid(own[1])
    assert [record.getMessage() for record in caplog.records] == ["folder_open", *["file_of_another"] * 3]
