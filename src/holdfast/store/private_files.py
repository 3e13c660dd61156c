"""Private files that are on disk before anyone relies on them: exports, and files beside the store.

Only the owner can read them, whatever the umask. If others may write to the folder, nothing that they prepare there
receives a byte.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import IO

from holdfast.core.errors import HoldfastError

MOST_LINKS = 40
"""The kernel follows as many."""


class CannotWrite(HoldfastError): ...


def open_private(path: Path | str, mode: str, folder: int | None = None) -> IO[bytes]:
    """Open a file that only its owner can read, and that is no link. Mode "xb" makes it, "ab" appends. `folder` is a
    descriptor that `path` is relative to.
    """

    def opener(name: str, flags: int) -> int:
        descriptor = os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        os.fchmod(descriptor, 0o600)
        return descriptor

    # Not Path.open: it takes no opener, and a mode that is set later leaves a moment in between.
    return open(path, mode, opener=opener)


def sync_folder(folder: Path) -> None:
    """Without this a new file may be missing after a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def written_beside(name: str) -> Iterator[IO[bytes]]:
    """Write a file that appears under its name only when it is complete. Until then it has a random name in the same
    folder.
    """
    try:
        with ExitStack() as undo:
            path = _meant(name)
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            undo.callback(os.close, folder)
            partial = f".holdfast-{token_hex(16)}"
            with open_private(partial, "xb", folder) as file:
                undo.callback(_remove, partial, folder)
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.rename(partial, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
    except OSError as error:
        raise CannotWrite(f"{name} can't be written: {error.strerror or error}") from error


def _meant(name: str) -> Path:
    """Returns the file to replace. A link is followed if this user or root made it."""
    path = Path(name)
    for _ in range(MOST_LINKS):
        try:
            there = path.lstat()
        except FileNotFoundError:
            return path
        if stat.S_ISREG(there.st_mode):
            return path
        if not stat.S_ISLNK(there.st_mode):
            break
        if there.st_uid not in (0, os.geteuid()):
            raise CannotWrite(f"{name} is a link that another user made; remove it, or name another file")
        path = path.parent / path.readlink()
    raise CannotWrite(f"{name} is there and is no plain file; - is standard output")


def _remove(name: str, folder: int) -> None:
    """Does nothing after the rename."""
    with suppress(OSError):
        os.unlink(name, dir_fd=folder)
