"""The folder of a gateway: closed to others where that harms nobody, and told of where it is not."""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.errors import StoreUnusable
from holdfast.store.folder import OWN_NAMES, SET_ASIDE, make_folder, take_folder

STRANGER = 54_321

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
def test_a_store_that_is_open_to_others_is_closed_and_told(folder: Path, mode: int, caplog: Logged) -> None:
    assert made(folder, mode, caplog) == (0o700, ["folder_closed"])
    assert caplog.records[0].fields["mode"] == f"{mode:04o}"  # type: ignore[attr-defined]
    caplog.clear()
    assert made(folder, 0o700, caplog) == (0o700, [])


@pytest.mark.parametrize("mode", [0o777, 0o755])
def test_an_empty_one_is_closed_without_a_word(tmp_path: Path, mode: int, caplog: Logged) -> None:
    (tmp_path / "lost+found").mkdir()
    assert made(tmp_path, mode, caplog) == (0o700, [])


@pytest.mark.parametrize(("mode", "told"), [(0o777, ["folder_open"]), (0o775, ["folder_open"]), (0o755, [])])
def test_one_with_other_things_in_it_stays_and_is_told(
    folder: Path, mode: int, told: list[str], caplog: Logged
) -> None:
    (folder / "of-others").touch()
    assert made(folder, mode, caplog) == (mode, told)
    assert all("move other files out of it" in record.fields["detail"] for record in caplog.records)  # type: ignore[attr-defined]


@as_root
@pytest.mark.parametrize("used", [True, False])
def test_a_volume_that_belongs_to_root_is_told(folder: Path, used: bool, caplog: Logged) -> None:
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
