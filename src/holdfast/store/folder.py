"""The folder that a gateway has on its machine: for its owner alone, and for one process at a time."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from holdfast.core.errors import StoreInUse, StoreUnusable
from holdfast.store.files import sync_folder


def make_folder(folder: Path) -> None:
    """Make it if it is not there, for us alone."""
    try:
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in made:
            sync_folder(path.parent)
        _close_to_others(folder)
    except OSError as error:
        raise StoreUnusable(f"{folder} can't be used: {error.strerror}") from error


def take_folder(folder: Path) -> int:
    """Hold its lock, until the descriptor is closed: a second process must not even open the files."""
    try:
        lock = os.open(folder / "holdfast.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StoreUnusable(f"{folder} can't be used: {error.strerror}") from error
    # For this moment only, a lock of the other kind: whoever finds the folder taken also finds the taker's number.
    fcntl.lockf(lock, fcntl.LOCK_EX)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(lock, 64, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise StoreInUse(f"{folder} is in use by process {owner}") from error
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        fcntl.lockf(lock, fcntl.LOCK_UN)
    except OSError as error:
        os.close(lock)
        raise StoreUnusable(f"{folder} can't be used: {error.strerror}") from error
    return lock


def _close_to_others(folder: Path) -> None:
    """A folder that was made beforehand is often open to everyone. One that holds something is left as it is."""
    if not any(path.name != "lost+found" for path in folder.iterdir()):
        with suppress(PermissionError):
            folder.chmod(0o700)
