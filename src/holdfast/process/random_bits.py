"""Randomness for ids, from the system and in bulk: one call for each id was a fiftieth of a webhook's cost."""

import os

AT_ONCE = 4_096
"""Bytes asked of the system at a time."""


class RandomBits:
    """Gives numbers of so many bits. Not for secrets: what is not used yet lies in memory."""

    def __init__(self) -> None:
        self._bytes = b""
        self._used = 0

    def __call__(self, bits: int) -> int:
        size = (bits + 7) // 8
        if self._used + size > len(self._bytes):
            self._bytes, self._used = os.urandom(max(size, AT_ONCE)), 0
        start, self._used = self._used, self._used + size
        return int.from_bytes(self._bytes[start : self._used], "big") >> (8 * size - bits)
