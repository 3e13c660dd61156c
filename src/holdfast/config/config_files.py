"""Reads the config file and the files that it names: bounded in size, and without waiting while a gateway runs.

The files that a config names are read while webhooks are sent, so they must be regular files of a bounded size. The
config itself may be a pipe (`<(...)`, /dev/stdin), which is waited for at start. The text of each OSError
says why.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import POLLIN, poll

MOST = 4 << 20
"""Bytes of a file that a config names. The largest is a list of authorities; the system's has a quarter of a MiB."""
MOST_OF_CONFIG = 1 << 20
PATIENCE = 10.0
"""Seconds without a byte after which reading a config from a pipe fails."""

_PART = 1 << 16


def stat_regular(path: Path) -> os.stat_result:
    """Raises an OSError for anything but a regular file of a bounded size."""
    found = path.stat()
    _check(found)
    return found


def read_regular(path: Path) -> bytes:
    """The content of a regular file of a bounded size. The checks are made on the open file."""
    with _opened(path) as descriptor:
        _check(os.fstat(descriptor))
        return _read(descriptor, MOST, 0)


def read_config(path: Path, *, again: bool) -> bytes:
    """The config's own file. `again` while a gateway runs: a pipe would be empty then, which is a valid config."""
    with _opened(path) as descriptor:
        if again and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            raise OSError(errno.ESPIPE, "it is a pipe, which can be read only once")
        return _read(descriptor, MOST_OF_CONFIG, 0 if again else PATIENCE)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Opens a file without waiting for a writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _check(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    if found.st_size > MOST:
        raise _too_large(MOST)


def _read(descriptor: int, most: int, patience: float) -> bytes:
    """`poll` never waits for a regular file."""
    ready = poll()
    ready.register(descriptor, POLLIN)
    data = bytearray()
    while ready.poll(patience * 1000):
        part = os.read(descriptor, _PART)
        if not part:
            return bytes(data)
        data += part
        if len(data) > most:
            raise _too_large(most)
    raise OSError(errno.ETIMEDOUT, f"nothing came within {patience:.0f} s")


def _too_large(most: int) -> OSError:
    return OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB")
