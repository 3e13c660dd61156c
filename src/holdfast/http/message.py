"""A request as a handler sees it, what a handler may return, and how that becomes bytes.

A handler returns a `Response`; or `bytes`, an answer encoded once with `Response.encode()` and sent as it is;
or a `StreamingResponse`, whose pieces are sent as they come. A handler is a coroutine, or a function that returns a
`Pending`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import trio

Headers = list[tuple[bytes, bytes]]
LocalAddress = tuple[str, int] | str

_STATUS_LINES = {status.value: b"HTTP/1.1 %d %s\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus}


@dataclass(slots=True)
class Request:
    """`local` is the address of the listener that it came in by: (host, port), or a Unix socket's path."""

    method: str
    target: bytes
    headers: Headers
    body: bytes
    local: LocalAddress

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, its name given in lower case."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key == name]


@dataclass(slots=True)
class Response:
    """`content-length` is added when it is encoded; everything else is the handler's."""

    status: int
    headers: Headers = field(default_factory=list)
    body: bytes = b""

    def encode(self) -> bytes:
        """The whole answer. What does not change is encoded once and returned from handlers as it is."""
        # RFC 9110, 8.6: a 204 must not carry content-length.
        length = b"\r\n" if self.status == 204 else b"content-length: %d\r\n\r\n" % len(self.body)
        return _encode_head(self.status, self.headers) + length + self.body


class Pending:
    """An answer that comes later, and that no task has to wait for: it is sent by whoever gives it.

    What is given is an answer, or an exception that says why there is none. It is kept only until somebody listens: an
    exception holds the frames that raised it, and with them this.
    """

    __slots__ = ("_given", "_listener")

    def __init__(self) -> None:
        self._given: Response | bytes | Exception | None = None
        self._listener: Callable[[Response | bytes | Exception], None] | None = None

    def give(self, given: Response | bytes | Exception) -> None:
        if self._listener is not None:
            self._listener(given)
        else:
            self._given = given

    def then(self, listener: Callable[[Response | bytes | Exception], None]) -> None:
        """Have somebody told, at once if it is there already."""
        self._listener = listener
        if self._given is not None:
            listener(self._given)

    def __await__(self) -> Generator[Any, Any, Response | bytes]:
        return self._wait().__await__()

    async def _wait(self) -> Response | bytes:
        came = trio.Event()
        heard: list[Response | bytes | Exception] = []

        def hear(given: Response | bytes | Exception) -> None:
            heard.append(given)
            came.set()

        self.then(hear)
        await came.wait()
        given = heard.pop()
        if isinstance(given, Exception):
            raise given
        return given


@dataclass(slots=True)
class StreamingResponse:
    """An answer without a known end. The generator is closed when the client leaves or the server stops."""

    status: int
    headers: Headers
    pieces: AsyncGenerator[bytes, None]

    def encode_head(self, *, chunked: bool) -> bytes:
        framing = b"transfer-encoding: chunked\r\n\r\n" if chunked else b"\r\n"
        return _encode_head(self.status, self.headers) + framing


def _encode_head(status: int, headers: Headers) -> bytes:
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    return line + b"".join([b"%s: %s\r\n" % header for header in headers])


def with_connection(encoded: bytes, token: bytes) -> bytes:
    """An encoded answer with a `connection` header put in after its status line."""
    return encoded.replace(b"\r\n", b"\r\nconnection: " + token + b"\r\n", 1)


def without_body(encoded: bytes) -> bytes:
    """What HEAD gets of an encoded answer."""
    head, end, _ = encoded.partition(b"\r\n\r\n")
    return head + end
