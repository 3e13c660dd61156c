"""Processes as a container starts them: another user, nothing writable but a volume, pid 1."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

OPEN_TO_ALL = "/ /tmp /var/tmp /dev/shm"
"""Where a process of any user could write, if it were left writable."""


def need_root() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can start a process as another user")
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not here; it comes with util-linux")


def may_unshare(*kinds: str) -> bool:
    """Whether this root may make namespaces; that of a container often may not."""
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(["unshare", *kinds, "true"], capture_output=True, timeout=30, check=False)
    return tried.returncode == 0


def as_user(user: int, group: int, volume: Path) -> list[str]:
    """The words before a command that make it run as this user; with the file system read-only around the volume,
    where this machine lets us do that.
    """
    other = [
        "setpriv",
        f"--reuid={user}",
        f"--regid={group}",
        "--clear-groups",
        "--no-new-privs",
        "--bounding-set=-all",
    ]
    if not may_unshare("--mount"):
        return other
    script = f"""
        mount --bind {volume} {volume}
        for place in {OPEN_TO_ALL}; do
            if mountpoint --quiet "$place"; then mount -o remount,bind,ro "$place" || exit 1; fi
        done
        exec "$@"
    """
    return ["unshare", "--mount", "sh", "-c", script, "sh", *other]
