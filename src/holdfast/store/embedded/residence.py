"""How much of the mapped data file stays in this process's memory: little, however much of it was read.

Every page of a map that was looked at counts as resident until the kernel needs it elsewhere; a drain of a million
messages made that two gigabytes, and who pays for a sidecar sees them. So the pages are handed back when they have
become many. They stay in the kernel's cache: looking at one again costs a minor fault, and nothing is lost.
"""

import os
from pathlib import Path

MOST = 48 << 20
"""Bytes of files resident above which the map is handed back. The program itself and its libraries are 12 MB of it."""
LOOK_EVERY = 128
"""Transactions between two looks at how many they are."""

_PAGE = os.sysconf("SC_PAGE_SIZE")
_DONTNEED = 4
_SHARED_PAGES = 2


class Residence:
    """`data` is a descriptor of the mapped file."""

    def __init__(self, data: int) -> None:
        self._data = data
        self._transactions = 0

    def count(self) -> None:
        """A transaction begins."""
        self._transactions += 1
        if self._transactions % LOOK_EVERY == 0 and resident_files() > MOST:
            hand_back(self._data)


def resident_files() -> int:
    """Bytes of mapped files in this process's memory; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[_SHARED_PAGES]) * _PAGE
    except OSError:
        return 0


def hand_back(data: int) -> None:
    """Take the pages of this file out of the process's memory. For maps that are only read through."""
    # Only here: most sidecars never need it, and it is a megabyte.
    import ctypes

    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, end in _spans(os.fstat(data).st_ino):
        madvise(start, end - start, _DONTNEED)


def _spans(inode: int) -> list[tuple[int, int]]:
    """Where a file is mapped. By its number and name: what /proc calls a device is not always what stat does."""
    found = []
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and int(fields[4]) == inode and fields[5].endswith("data.mdb"):
            start, _, end = fields[0].partition("-")
            found.append((int(start, 16), int(end, 16)))
    return found
