"""Which file systems a store can be on: fsync and locks over a network do not keep what LMDB needs of them."""

import re
from pathlib import Path

from holdfast.core.errors import StoreUnusable

NETWORK_FILE_SYSTEMS = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "sshfs"),
        *("beegfs", "gpfs", "gfs2", "ocfs2", "orangefs", "juicefs", "s3fs", "gcsfuse", "rclone", "blobfuse2"),
    }
)


def refuse_network(folder: Path) -> None:
    """fsync and locks over a network do not keep what LMDB needs of them."""
    try:
        mounts = Path("/proc/self/mounts").read_text(errors="surrogateescape")
    except OSError:
        return
    kind = file_system_of(str(folder.resolve()), mounts)
    if kind.removeprefix("fuse.") in NETWORK_FILE_SYSTEMS:
        raise StoreUnusable(f"{folder} is on a network file system ({kind}); use a local volume")


def file_system_of(path: str, mounts: str) -> str:
    """The file system that a path is on, by the text of /proc/self/mounts; of mounts on one point the last counts."""
    best, kind = "", ""
    for line in mounts.splitlines():
        _, point, file_system, *_ = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, file_system
    return kind
