"""Dead letters into a file: for its owner only, and there under its name only once it is complete."""

import os
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from holdfast.cli.failure import Failure
from holdfast.cli.progress import Bar

STDOUT = "-"


def write_out(lines: Iterable[bytes]) -> None:
    for line in lines:
        sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def write_file(name: str, lines: Iterable[bytes], total: int | None) -> tuple[int, int]:
    """How many lines and bytes went into it. What was in the file before is there until all of it is on disk."""
    path = Path(name).resolve()
    if path.exists() and not path.is_file():
        raise Failure(f"{name} is there and is no plain file; - is standard output")
    try:
        return _write_beside(path, lines, total)
    except OSError as error:
        raise Failure(f"{name} can't be written: {error.strerror or error}") from error


def _write_beside(path: Path, lines: Iterable[bytes], total: int | None) -> tuple[int, int]:
    handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "wb") as file:  # noqa: PTH123  a handle, not a path
            os.fchmod(handle, 0o600)
            written = _write(file, lines, total)
            os.fsync(handle)
        Path(beside).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(beside).unlink()
        raise
    _sync_folder(path.parent)
    return written


def _write(file: BinaryIO, lines: Iterable[bytes], total: int | None) -> tuple[int, int]:
    count = 0
    with Bar("exported", total) as bar:
        for count, line in enumerate(lines, 1):
            file.write(line + b"\n")
            if not count % 100:
                bar.show(count)
    file.flush()
    return count, file.tell()


def _sync_folder(folder: Path) -> None:
    """The export may be all that is left after a drop: its name has to be on disk too."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
