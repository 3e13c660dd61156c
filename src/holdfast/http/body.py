"""Decoders for bodies that end by a length, by chunks, or with the connection.

A decoder collects the body in `body`, up to `limit`, and bytes after its end in `leftover`. It raises `ProtocolError`:
400 for broken framing, 413 for a body over the limit. `body` then holds everything decoded before.
"""

import re

from holdfast.http.exceptions import ProtocolError
from holdfast.http.head_grammar import is_field_line

MAX_CHUNK_LINE = 256
MAX_CHUNK_EXTENSIONS = 4096
MAX_TRAILERS = 8192

_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})([ \t]*;[\t\x20-\x7e\x80-\xff]*)?")


class Body:
    leftover = b""
    complete = False

    def __init__(self, limit: int) -> None:
        self.body = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> None:
        raise NotImplementedError

    def feed_end(self) -> None:
        """The connection ended. This completes a `BodyUntilEnd`, and no other body."""

    def _append(self, data: bytes) -> None:
        room = self._limit - len(self.body)
        self.body += data[:room]
        if len(data) > room:
            raise ProtocolError(413, f"the body is larger than {self._limit} bytes")


class SizedBody(Body):
    def __init__(self, length: int, limit: int) -> None:
        self.body = bytearray()
        self.complete = length == 0
        self._length = length
        self._limit = limit

    def feed(self, data: bytes) -> None:
        missing = self._length - len(self.body)
        if len(data) > missing:
            self.leftover += data[missing:]
            data = data[:missing]
        self._append(data)
        self.complete = len(self.body) == self._length


class BodyUntilEnd(Body):
    def feed(self, data: bytes) -> None:
        self._append(data)

    def feed_end(self) -> None:
        self.complete = True


class ChunkedBody(Body):
    """Accepts CRLF only. Extensions and trailers are bounded and dropped."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._buffer = bytearray()
        self._missing = 0
        self._extensions_left = MAX_CHUNK_EXTENSIONS
        self._trailers_left = MAX_TRAILERS
        # A bound method would make a reference cycle, which keeps the body until a garbage collection.
        self._step = ChunkedBody._read_size

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while not self.complete and self._step(self):
            pass
        if self.complete:
            self.leftover += bytes(self._buffer)
            self._buffer.clear()

    def _read_size(self) -> bool:
        line = self._take_line(MAX_CHUNK_LINE, "malformed chunk size")
        if line is None:
            return False
        matched = _CHUNK_LINE.fullmatch(line)
        if matched is None:
            raise ProtocolError(400, "malformed chunk size")
        self._extensions_left -= len(matched[2] or b"")
        if self._extensions_left < 0:
            raise ProtocolError(400, "too many chunk extensions")
        self._missing = int(matched[1], 16)
        self._step = ChunkedBody._read_data if self._missing else ChunkedBody._read_trailer
        return True

    def _read_data(self) -> bool:
        data = bytes(self._buffer[: self._missing])
        del self._buffer[: self._missing]
        self._missing -= len(data)
        self._append(data)
        if self._missing:
            return False
        self._step = ChunkedBody._read_end_of_data
        return True

    def _read_end_of_data(self) -> bool:
        if not b"\r\n".startswith(self._buffer[:2]):
            raise ProtocolError(400, "chunk is longer than its size says")
        if len(self._buffer) < 2:
            return False
        del self._buffer[:2]
        self._step = ChunkedBody._read_size
        return True

    def _read_trailer(self) -> bool:
        line = self._take_line(self._trailers_left, "malformed trailer")
        if line is None:
            return False
        self._trailers_left -= len(line) + 2
        if not line:
            self.complete = True
        elif not is_field_line(line):
            raise ProtocolError(400, "malformed trailer")
        return True

    def _take_line(self, limit: int, fault: str) -> bytes | None:
        end = self._buffer.find(b"\r\n", 0, limit)
        if end < 0:
            if len(self._buffer) >= limit or b"\n" in self._buffer:
                raise ProtocolError(400, fault)
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line
