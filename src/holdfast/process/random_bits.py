"""Randomness for ids, read from the system in bulk: one system call per id cost 2 % of a webhook."""

import os

AT_ONCE = 4_096
"""Bytes read from the system at a time."""


class RandomBits:
    """Returns a number of `bits` random bits. Not for secrets: unused bytes stay in memory."""

    def __init__(self) -> None:
        self._bytes = b""
        self._used = 0

    def __call__(self, bits: int) -> int:
        size = (bits + 7) // 8
        if self._used + size > len(self._bytes):
            self._bytes, self._used = os.urandom(max(size, AT_ONCE)), 0
        start, self._used = self._used, self._used + size
        return int.from_bytes(self._bytes[start : self._used], "big") >> (8 * size - bits)
