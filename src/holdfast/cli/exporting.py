"""Dead letters into a file or to standard output, one a line."""

import sys
from collections.abc import Iterable
from typing import IO

from holdfast.cli.failure import Failure
from holdfast.cli.progress import Bar
from holdfast.store.files import CannotWrite, written_beside

STDOUT = "-"


def write_out(lines: Iterable[bytes]) -> None:
    for line in lines:
        sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def write_file(name: str, lines: Iterable[bytes], total: int | None) -> tuple[int, int]:
    """How many lines and bytes went into it. What was in the file before is there until all of it is on disk."""
    try:
        with written_beside(name) as file:
            return _write(file, lines, total)
    except CannotWrite as error:
        raise Failure(str(error)) from error


def _write(file: IO[bytes], lines: Iterable[bytes], total: int | None) -> tuple[int, int]:
    count = 0
    with Bar("exported", total) as bar:
        for count, line in enumerate(lines, 1):
            file.write(line + b"\n")
            if not count % 100:
                bar.show(count)
    file.flush()
    return count, file.tell()
