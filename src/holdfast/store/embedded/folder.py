"""The folder of a store: private, on a local file system, and used by one process at a time."""

import fcntl
import logging
import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from holdfast.core.errors import StoreInUse, StoreUnusable
from holdfast.store.private_files import sync_folder

LOCK = "holdfast.lock"
SET_ASIDE = "set-aside-"
WRITTEN = (LOCK, "data.mdb", "lock.mdb")
"""Files that are opened and written to if they exist. All others are made anew."""
OWN_NAMES = frozenset({*WRITTEN, "data.mdb.making", "data.mdb.compacting", "control.sock"})
"""Names that a gateway uses in its folder, besides files that begin with SET_ASIDE."""
NETWORK_FILE_SYSTEMS = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "sshfs"),
        *("beegfs", "gpfs", "gfs2", "ocfs2", "orangefs", "juicefs", "s3fs", "gcsfuse", "rclone", "blobfuse2"),
    }
)
_OTHERS, _OTHERS_WRITE = 0o077, 0o022
_logger = logging.getLogger("holdfast.store")


def make_folder(folder: Path) -> None:
    """Make the folder if it is missing, for this user alone. The folder may be a link; the files in it may not."""
    try:
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in made:
            sync_folder(path.parent)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _close_to_others(folder, descriptor)
            _judge_files(folder, descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StoreUnusable(f"{folder} can't be used: {error.strerror}") from error


def take_folder(folder: Path) -> int:
    """Lock the folder until the returned descriptor is closed. A second process must not even open the files."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StoreUnusable(f"{folder} can't be used: {error.strerror}") from error
    # A short lock of the other kind: a process that finds the folder locked can read the number of the one that has it.
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


def _close_to_others(folder: Path, descriptor: int) -> None:
    """A folder that was made beforehand is often open to everyone: it is closed to others, unless it has other files in
    it. A path given by mistake must not lock others out. A folder that others can still write to is logged: they could
    replace the store.
    """
    status = os.fstat(descriptor)
    mode = stat.S_IMODE(status.st_mode)
    if not mode & _OTHERS:
        return
    names = {name for name in os.listdir(descriptor) if name != "lost+found"}
    strange = any(name not in OWN_NAMES and not name.startswith(SET_ASIDE) for name in names)
    if not strange:
        with suppress(PermissionError):
            os.fchmod(descriptor, 0o700)
            if names:
                _log("folder_closed", folder, status, "it was open to others, and is now its owner's alone")
            return
    if mode & _OTHERS_WRITE:
        advice = "move other files out of it" if strange else "set store.path to a new folder inside it"
        _log("folder_open", folder, status, f"other users may write to it and replace the store; {advice}")


def _judge_files(folder: Path, descriptor: int) -> None:
    """Anyone who could write to the folder may have put a file where the store has its own. A link is refused before it
    gets a byte. Another owner alone is only logged: in a pod the user may change, and the group writes.
    """
    trusted = {0, os.geteuid(), os.fstat(descriptor).st_uid}
    for name in WRITTEN:
        try:
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if what := _is_not_ours(status):
            advice = "holdfast writes to files of its own alone; move it away, or set store.path to another folder"
            raise StoreUnusable(f"{folder / name} {what}; {advice}")
        if status.st_uid not in trusted:
            _log("file_of_another", folder / name, status, "its owner can read and change what is stored")


def _is_not_ours(status: os.stat_result) -> str | None:
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if not stat.S_ISREG(status.st_mode):
        return "is no plain file"
    return "has a second name (a hard link)" if status.st_nlink > 1 else None


def _log(event: str, path: Path, status: os.stat_result, detail: str) -> None:
    fields = {
        "path": str(path),
        "mode": f"{stat.S_IMODE(status.st_mode):04o}",
        "owner": status.st_uid,
        "detail": detail,
    }
    _logger.warning(event, extra={"fields": fields})


def refuse_network(folder: Path) -> None:
    """fsync and locks over a network do not give what LMDB needs."""
    try:
        mounts = Path("/proc/self/mounts").read_text(errors="surrogateescape")
    except OSError:
        return
    kind = file_system_of(str(folder.resolve()), mounts)
    if kind.removeprefix("fuse.") in NETWORK_FILE_SYSTEMS:
        raise StoreUnusable(f"{folder} is on a network file system ({kind}); use a local volume")


def file_system_of(path: str, mounts: str) -> str:
    """Returns the file system of a path by the text of /proc/self/mounts. Of mounts on one point the last counts."""
    best, kind = "", ""
    for line in mounts.splitlines():
        _, point, file_system, *_ = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, file_system
    return kind
