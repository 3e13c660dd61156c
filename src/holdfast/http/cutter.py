"""Finds where a head ends in a stream of bytes."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.http.errors import ProtocolError

END_OF_HEAD = b"\r\n\r\n"


class HeadCutter:
    """Collects bytes until a head is complete, without looking at any of them twice."""

    __slots__ = ("_buffer", "_check_start", "_limit")

    def __init__(self, limit: int, check_start: Callable[[bytes | bytearray, int, int], None]) -> None:
        self._limit = limit
        self._check_start = check_start
        self._buffer = bytearray()

    def __bool__(self) -> bool:
        return bool(self._buffer)

    def cut(self, data: bytes) -> tuple[bytes, bytes] | None:
        """The head and what follows it, or None until there is a whole head."""
        if not self._buffer:
            end = data.find(END_OF_HEAD, 0, self._limit) + 4
            if end > 3:
                return data[:end], data[end:]
        scanned = len(self._buffer)
        self._buffer += data
        end = self._buffer.find(END_OF_HEAD, max(scanned - 3, 0), self._limit) + 4
        if end > 3:
            collected = bytes(self._buffer)
            self._buffer.clear()
            return collected[:end], collected[end:]
        self._check_start(self._buffer, scanned, self._limit)
        if len(self._buffer) >= self._limit:
            within_first_line = self._buffer.find(b"\r\n", 0, self._limit) < 0
            raise ProtocolError(414 if within_first_line else 431, f"the head is larger than {self._limit} bytes")
        return None
