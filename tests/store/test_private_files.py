"""Private files: complete or missing, and nothing that others prepared in the folder receives a byte."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.store.private_files import CannotWrite, open_private, written_beside

STRANGER = 54_321

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a link to somebody else")


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A folder that everyone may write to, as /tmp is."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    before = os.umask(0)
    yield folder
    os.umask(before)


def write(path: Path) -> None:
    with written_beside(str(path)) as file:
        file.write(b"bodies")


def test_only_its_owner_can_read_it_from_the_first_byte_on(shared: Path) -> None:
    with written_beside(str(shared / "out")) as file:
        file.write(b"bodies")
        (partial,) = shared.iterdir()
        there = partial.lstat()
        assert (stat.S_IMODE(there.st_mode), there.st_nlink) == (0o600, 1)
    assert [path.name for path in shared.iterdir()] == ["out"]
    assert stat.S_IMODE((shared / "out").stat().st_mode) == 0o600


def test_nobody_can_know_the_name_before(shared: Path) -> None:
    names = set()
    for _ in range(3):
        with written_beside(str(shared / "out")):
            (partial,) = (path.name for path in shared.iterdir() if path.name != "out")
            names.add(partial)
    assert len(names) == 3
    assert not any("out" in name or str(os.getpid()) in name for name in names)


def test_what_was_there_is_there_until_the_new_one_is_whole(shared: Path) -> None:
    out = shared / "out"
    out.write_bytes(b"before")
    with pytest.raises(KeyboardInterrupt), written_beside(str(out)) as file:
        file.write(b"half")
        file.flush()
        assert out.read_bytes() == b"before"
        raise KeyboardInterrupt
    assert out.read_bytes() == b"before"
    assert [path.name for path in shared.iterdir()] == ["out"]


def test_a_file_that_is_left_behind_by_its_rename_is_removed(shared: Path) -> None:
    out = shared / "out"
    with pytest.raises(CannotWrite, match="can't be written: "), written_beside(str(out)):
        out.mkdir()
    assert [path.name for path in shared.iterdir()] == ["out"]


def test_it_goes_where_its_folder_was_and_not_where_another_put_one(shared: Path) -> None:
    ours, trap = shared / "ours", shared / "trap"
    ours.mkdir()
    trap.mkdir()
    with written_beside(str(ours / "out")) as file:
        file.write(b"bodies")
        ours.rename(shared / "away")
        ours.symlink_to(trap)
    assert (shared / "away" / "out").read_bytes() == b"bodies"
    assert list(trap.iterdir()) == []


def test_a_link_of_ones_own_is_followed_to_its_file(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"before")
    (shared / "link").symlink_to("second")
    (shared / "second").symlink_to(tmp_path / "real")
    (shared / "dangling").symlink_to(tmp_path / "new")
    write(shared / "link")
    write(shared / "dangling")
    assert (tmp_path / "real").read_bytes() == (tmp_path / "new").read_bytes() == b"bodies"
    assert (shared / "link").is_symlink() and (shared / "dangling").is_symlink()


@as_root
def test_a_link_that_another_user_put_there_is_not(shared: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    (shared / "out").symlink_to(precious)
    os.lchown(shared / "out", STRANGER, STRANGER)
    with pytest.raises(CannotWrite, match="another user made"):
        write(shared / "out")
    assert precious.read_bytes() == b"precious"


def test_anything_but_a_file_is_not_replaced(shared: Path) -> None:
    os.mkfifo(shared / "fifo")
    (shared / "loop").symlink_to("loop")
    for name in ("fifo", "loop", "."):
        with pytest.raises(CannotWrite, match="is no plain file; - is standard output"):
            write(shared / name)
    with pytest.raises(CannotWrite, match="can't be written: No such file or directory"):
        write(shared / "nowhere" / "out")
    assert sorted(path.name for path in shared.iterdir()) == ["fifo", "loop"]


@pytest.mark.parametrize("mode", ["xb", "ab"])
def test_a_private_file_is_never_a_link(shared: Path, tmp_path: Path, mode: str) -> None:
    (shared / "file").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        open_private(shared / "file", mode)
    assert not (tmp_path / "elsewhere").exists()
