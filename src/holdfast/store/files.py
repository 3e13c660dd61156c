"""Files beside the store: for the owner's eyes alone whatever the umask, and on disk before anyone relies on them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from holdfast.core.errors import HoldfastError


class CannotWrite(HoldfastError):
    """A file that was asked for can't be written."""


def open_private(path: Path, mode: str) -> IO[bytes]:
    """A file for writing ("wb") or appending ("ab"), made if need be, that only its owner can read."""

    def opener(name: str, flags: int) -> int:
        descriptor = os.open(name, flags | os.O_CLOEXEC, 0o600)
        os.fchmod(descriptor, 0o600)
        return descriptor

    # Not Path.open: it takes no opener, and a mode that is set later leaves a moment in between.
    return open(path, mode, opener=opener)


def sync_folder(folder: Path) -> None:
    """A file whose directory entry was not synced is not there after a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def written_beside(name: str) -> Iterator[IO[bytes]]:
    """A file that appears under its name only when it is whole: written beside it, then renamed."""
    # Through a link to the file that it means, which is the one to be replaced.
    path = Path(name).resolve()
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        if path.exists() and not path.is_file():
            raise CannotWrite(f"{name} is no file that could be replaced; - writes to the standard output")
        with open_private(partial, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        raise CannotWrite(f"{name} can't be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            partial.unlink()
