"""The data file on its volume, its map, and the map's pages in this process's memory.

LMDB's map is kept as large as the part of the file that the volume has really allocated. So a commit never meets a full
volume: LMDB runs out of map first, and says so before it writes anything.

Every page of a map that was read counts as resident until the kernel needs it elsewhere. A drain of a million messages
made that two gigabytes. So the pages are handed back when they are many. They stay in the kernel's cache: reading one
again costs a minor fault.
"""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.core.errors import CommitFailed

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_FALLOCATE = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
"""Some file systems can't allocate ahead. There a full volume fails the commit."""
PAGE = 4_096
MOST = 48 << 20
"""Bytes of resident files above which the map is handed back. The program and its libraries are 12 MB of it."""
LOOK_EVERY = 128
"""Transactions between two looks at the resident bytes."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_DONTNEED = 4
_SHARED_PAGES = 2


class DataFile:
    """An open data file. `size` is how much of it the volume has allocated."""

    def __init__(self, path: Path, at_least: int) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        self.size = 0
        # A copied store may have holes: these have to be allocated too.
        there = os.fstat(self.descriptor).st_size // PAGE * PAGE
        if not (self.allocate(max(there, at_least)) or self.allocate(there)):
            self.size = 0

    def allocate(self, size: int) -> bool:
        """Returns whether the volume has allocated this much of the file."""
        size = -(-size // PAGE) * PAGE
        try:
            os.posix_fallocate(self.descriptor, 0, size)
        except OSError as error:
            if error.errno in NO_SPACE:
                return False
            if error.errno not in NO_FALLOCATE:
                raise CommitFailed(f"extending the store: {error}") from error
        self.size = size
        return True

    def close(self) -> None:
        os.close(self.descriptor)


class Gate:
    """Read transactions enter together, from any thread. The map is replaced while none is open."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside: dict[int, int] = {}
        self._closed = False

    def enter(self) -> int:
        """Returns the argument for `leave`."""
        thread = threading.get_ident()
        with self._changed:
            # A thread that is inside already would wait for itself.
            while self._closed and thread not in self._inside:
                self._changed.wait()
            self._inside[thread] = self._inside.get(thread, 0) + 1
        return thread

    def leave(self, thread: int) -> None:
        with self._changed:
            self._inside[thread] -= 1
            if not self._inside[thread]:
                del self._inside[thread]
                self._changed.notify_all()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """No transaction is open, and none can begin."""
        with self._changed:
            assert threading.get_ident() not in self._inside, "the map can't be replaced under a read transaction"
            self._closed = True
            while self._inside:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()


class ResidentPages:
    """Hands back the pages of the map, by a descriptor of the mapped file."""

    def __init__(self, data: int) -> None:
        self._data = data
        self._transactions = 0

    def count(self) -> None:
        """Called at the begin of each transaction."""
        self._transactions += 1
        if self._transactions % LOOK_EVERY == 0 and resident_files() > MOST:
            hand_back(self._data)


def resident_files() -> int:
    """Returns the bytes of mapped files in this process's memory; 0 where /proc is missing."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[_SHARED_PAGES]) * _PAGE
    except OSError:
        return 0


def hand_back(data: int) -> None:
    """Drop the pages of this file from the process's memory. Only for maps that are not written through."""
    # Imported late: most sidecars never need it, and it takes a megabyte.
    import ctypes

    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, end in _spans(os.fstat(data).st_ino):
        madvise(start, end - start, _DONTNEED)


def _spans(inode: int) -> list[tuple[int, int]]:
    """Returns where a file is mapped. By inode and name: the device in /proc may differ from that of stat."""
    found = []
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and int(fields[4]) == inode and fields[5].endswith("data.mdb"):
            start, _, end = fields[0].partition("-")
            found.append((int(start, 16), int(end, 16)))
    return found
