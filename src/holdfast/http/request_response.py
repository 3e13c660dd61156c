"""A request as a handler gets it, the responses that it may return, and their encoding.

A handler returns one of:
- a `Response`;
- `bytes`, a response that was encoded once with `Response.encode()` and is sent unchanged;
- a `StreamingResponse`, whose pieces are sent one by one;
- a `PendingResponse`, if the handler is a plain function and not a coroutine.
"""

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
    """`local` is the address of the listener: (host, port), or the path of a Unix socket."""

    method: str
    target: bytes
    headers: Headers
    body: bytes
    local: LocalAddress

    def header(self, name: bytes) -> bytes | None:
        """Returns the first value of a header. `name` is in lower case."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


@dataclass(slots=True)
class Response:
    """`encode` adds `content-length`. All other headers come from the handler."""

    status: int
    headers: Headers = field(default_factory=list)
    body: bytes = b""

    def encode(self) -> bytes:
        # RFC 9110, 8.6: a 204 must not carry content-length.
        length = b"\r\n" if self.status == 204 else b"content-length: %d\r\n\r\n" % len(self.body)
        return _encode_head(self.status, self.headers) + length + self.body


class PendingResponse:
    """A response that follows later. No task waits for it: `resolve` sends it.

    The result is a response, or an exception that says why there is none. It is stored only until there is a callback:
    an exception holds the frames that raised it, and these hold this object.
    """

    __slots__ = ("_callback", "_result")

    def __init__(self) -> None:
        self._result: Response | bytes | Exception | None = None
        self._callback: Callable[[Response | bytes | Exception], None] | None = None

    def resolve(self, result: Response | bytes | Exception) -> None:
        if self._callback is not None:
            self._callback(result)
        else:
            self._result = result

    def when_resolved(self, callback: Callable[[Response | bytes | Exception], None]) -> None:
        """Calls `callback` with the result, at once if there is one already."""
        self._callback = callback
        if self._result is not None:
            callback(self._result)

    def __await__(self) -> Generator[Any, Any, Response | bytes]:
        return self._wait().__await__()

    async def _wait(self) -> Response | bytes:
        resolved = trio.Event()
        results: list[Response | bytes | Exception] = []

        def on_result(result: Response | bytes | Exception) -> None:
            results.append(result)
            resolved.set()

        self.when_resolved(on_result)
        await resolved.wait()
        result = results.pop()
        if isinstance(result, Exception):
            raise result
        return result


@dataclass(slots=True)
class StreamingResponse:
    """A response of unknown length. The generator is closed when the client leaves or the server stops."""

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
    """Adds a `connection` header behind the status line of an encoded response."""
    return encoded.replace(b"\r\n", b"\r\nconnection: " + token + b"\r\n", 1)


def without_body(encoded: bytes) -> bytes:
    """The response to HEAD."""
    head, end, _ = encoded.partition(b"\r\n\r\n")
    return head + end
