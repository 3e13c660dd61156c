"""Small file systems that tests can fill."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pytest import skip


@contextmanager
def small_volume(point: Path, size: str) -> Iterator[Path]:
    point.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(point)]
    if os.geteuid() != 0 or subprocess.run(mounting, capture_output=True, check=False).returncode != 0:
        skip("mounting a file system takes root")
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


def take_the_rest(file: Path) -> None:
    """Nothing can be written beside it any more."""
    with suppress(OSError), file.open("ab", buffering=0) as junk:
        while junk.write(bytes(4096)):
            pass
