"""The sans-IO port: bytes in, heads and bodies out, for both directions, whichever engine reads the heads.

This module cuts the stream into heads and bodies. strict.py says what is refused, body.py decodes bodies, and
an engine turns a head that passed into method, target and headers. So no engine ever decides where a message
ends, and both give the same reading of every byte.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple, Protocol, cast

from holdfast.http.body import Body, BodyUntilEnd, ChunkedBody, SizedBody
from holdfast.http.cutter import END_OF_HEAD, HeadCutter
from holdfast.http.errors import BadAnswer, ProtocolError
from holdfast.http.familiar import Familiar
from holdfast.http.message import Headers
from holdfast.http.strict import (
    Framing,
    check_request,
    check_request_start,
    check_response,
    check_response_start,
    with_plain_coding,
    without_framing,
)

MAX_URL = 8192
MAX_ANSWER_HEAD = 65536
MAX_ANSWER_HEADERS = 256
MAX_INFORMATIONAL = 64

ENGINES = ("httptools", "h11")


class Engine(Protocol):
    """Reads one complete head that strict.py has passed. Names come out in lower case, values stripped.

    Raises ValueError if it won't read it.
    """

    name: str

    def read_request(self, raw: bytes) -> tuple[str, bytes, Headers]:
        """Method, target, headers."""

    def read_response(self, raw: bytes) -> Headers: ...


class RequestHead(NamedTuple):
    method: str
    target: bytes
    headers: Headers
    http_version: str
    keep_alive: bool
    expect_continue: bool
    content_length: int | None
    chunked: bool


class ResponseHead(NamedTuple):
    status: int
    http_version: str
    keep_alive: bool
    content_length: int | None
    chunked: bool


def best_engine() -> Engine:
    """httptools where it is installed, else h11."""
    return engine("httptools" if find_spec("httptools") else "h11")


@cache
def engine(name: str) -> Engine:
    if name not in ENGINES:
        raise ValueError(f"no HTTP engine {name!r}; there are {', '.join(ENGINES)}")
    module = import_module(f"holdfast.http.codec_{name}")
    return cast(Engine, module.ENGINE)


class RequestParser:
    """Reads requests one after another from one connection.

    After each `feed` look at `head` (None until it is complete) and `complete`; `body` is whole once it is.
    Bytes of the next request are kept until `next_message()`. Raises `ProtocolError`, and is of no use after
    that.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        max_head: int,
        max_headers: int,
        max_body: int,
        familiar: Familiar[RequestHead] | None = None,
    ) -> None:
        """`familiar` is for parsers of the same engine and limits."""
        self._engine = engine
        self._familiar = familiar or Familiar()
        self._max_headers = max_headers
        self._max_body = max_body
        self._cutter = HeadCutter(max_head, check_request_start)
        self._leftover = b""
        self._reset()

    def _reset(self) -> None:
        self.head: RequestHead | None = None
        self.complete = False
        self.body = b""
        self.body_started = False
        self._body: Body | None = None
        self._blank = 0

    @property
    def started(self) -> bool:
        """Whether anything of the current request has come."""
        return self.head is not None or bool(self._cutter)

    @property
    def received(self) -> int:
        """Bytes of a body that is not complete yet."""
        return len(self._body.body) if self._body is not None else 0

    def take_body(self) -> bytes:
        """The body, for whoever handles it: it is not held here any longer."""
        body, self.body = self.body, b""
        return body

    def drop_body(self) -> None:
        """What has come of a body is not needed: the request is refused."""
        self._body = None

    def next_message(self) -> None:
        """Forget the current request and go on with what came after it."""
        leftover, self._leftover = self._leftover, b""
        self._reset()
        if leftover:
            self.feed(leftover)

    def feed(self, data: bytes) -> None:
        if self.complete:
            self._leftover += data
            return
        if self.head is None:
            if self._blank < 2 and not self._cutter:
                data = self._skip_blank_line(data)
            if not data or (cut := self._cutter.cut(data)) is None:
                return
            head, data = cut
            self.head = self._read_head(head)
            if self._take_whole_body(self.head, data):
                return
            self._body = self._decoder(self.head)
        assert self._body is not None
        self.body_started = self.body_started or bool(data)
        self._body.feed(data)
        if self._body.complete:
            self.complete, self.body, self._leftover = True, bytes(self._body.body), self._body.leftover
            self._body = None  # the answer may take long, and one copy is enough

    def _skip_blank_line(self, data: bytes) -> bytes:
        # RFC 9112, 2.2: old clients send one empty line more than they should after a body.
        while self._blank < 2 and data and data[0] == b"\r\n"[self._blank]:
            self._blank += 1
            data = data[1:]
        if data and self._blank == 1:
            raise ProtocolError(400, "this is not an HTTP request")
        return data

    def _read_head(self, raw: bytes) -> RequestHead:
        head = self._familiar.find(raw)
        if head is None:
            head = self._read_new_head(raw)
            self._familiar.keep(raw, head)
        return head

    def _read_new_head(self, raw: bytes) -> RequestHead:
        framing = check_request(raw, self._max_headers, MAX_URL)
        if framing.content_length is not None and framing.content_length > self._max_body:
            raise ProtocolError(413, f"the body is larger than {self._max_body} bytes")
        try:
            method, target, headers = self._engine.read_request(with_plain_coding(raw) if framing.chunked else raw)
        except ValueError as error:
            raise ProtocolError(400, f"malformed request: {error}") from error
        return RequestHead(
            method,
            target,
            headers,
            framing.http_version,
            framing.keep_alive,
            framing.expect_continue,
            framing.content_length,
            framing.chunked,
        )

    def _decoder(self, head: RequestHead) -> Body:
        if head.chunked:
            return ChunkedBody(self._max_body)
        return SizedBody(head.content_length or 0, self._max_body)

    def _take_whole_body(self, head: RequestHead, data: bytes) -> bool:
        """The common case: the body came with the head, or there is none."""
        length = head.content_length or 0
        if head.chunked or len(data) < length:
            return False
        self.body, self._leftover = data[:length], data[length:]
        self.complete = True
        return True


class ResponseParser:
    """Reads one answer. Informational ones (1xx) are skipped.

    Raises `BadAnswer` (without an address) until the head is complete. After that nothing raises: the outcome
    is decided, and a body that breaks its framing or exceeds `max_body` sets `broken`; `body` is what was
    read. Framing that makes no sense does not raise either. It sets `broken` at once on a success: its body is of no
    use, and waiting for an end that may never come would keep a place from others.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        max_body: int,
        to_head_request: bool = False,
        familiar: Familiar[tuple[int, Framing]] | None = None,
    ) -> None:
        self._engine = engine
        self._familiar = familiar
        self._max_body = max_body
        self._to_head_request = to_head_request
        self._cutter: HeadCutter | None = None
        self._informational = 0
        self._body: Body | None = None
        self._raw = b""
        self._headers: Headers | None = None
        self.head: ResponseHead | None = None
        self.started = False
        self.complete = False
        self.broken = False
        self.leftover = b""

    @property
    def headers(self) -> Headers:
        """Of the final head. Those of a success are read when they are asked for, and a courier never does."""
        if self._headers is None:
            chunked = self.head is not None and self.head.chunked
            self._headers = self._engine.read_response(with_plain_coding(self._raw) if chunked else self._raw)
        return self._headers

    @property
    def body(self) -> bytes:
        return bytes(self._body.body) if self._body is not None else b""

    @property
    def reusable(self) -> bool:
        """Whether the connection can carry another exchange after this one."""
        return (
            self.complete
            and not self.leftover
            and self.head is not None
            and self.head.keep_alive
            and not isinstance(self._body, BodyUntilEnd)
        )

    def feed(self, data: bytes) -> None:
        self.started = True
        if self.head is None:
            try:
                data = self._feed_heads(data)
            except (ProtocolError, ValueError) as error:
                raise BadAnswer(error.detail if isinstance(error, ProtocolError) else str(error)) from error
        if self._body is not None:
            self._feed_body(self._body, data)

    def feed_end(self) -> None:
        """The connection ended."""
        if self._body is not None and not self.broken:
            self._body.feed_end()
            self.complete = self._body.complete
            self.broken = not self.complete

    def _feed_heads(self, data: bytes) -> bytes:
        """Reads heads up to the final one; what follows it is returned."""
        while self.head is None and data:
            if self._cutter is None:
                end = data.find(END_OF_HEAD, 0, MAX_ANSWER_HEAD) + 4
                if end > 3:
                    self._read_head(data[:end])
                    data = data[end:]
                    continue
                self._cutter = HeadCutter(MAX_ANSWER_HEAD, check_response_start)
            if (cut := self._cutter.cut(data)) is None:
                return b""
            raw, data = cut
            self._read_head(raw)
        return data

    def _read_head(self, raw: bytes) -> None:
        status, framing = self._check(raw)
        if status == 101:
            raise ProtocolError(400, "the answer switches protocols, which was not asked for")
        if status < 200:
            self._informational += 1
            if self._informational > MAX_INFORMATIONAL:
                raise ProtocolError(400, f"more than {MAX_INFORMATIONAL} informational answers")
            return
        self._raw = without_framing(raw) if framing.odd else raw
        self.head = ResponseHead(
            status, framing.http_version, framing.keep_alive, framing.content_length, framing.chunked
        )
        if status >= 300:
            _ = self.headers  # what the engine refuses is a bad answer now, and not a surprise to whoever asks later
        if self._to_head_request or status == 204 or status == 304:
            self._body = SizedBody(0, self._max_body)
        elif framing.chunked:
            self._body = ChunkedBody(self._max_body)
        elif framing.content_length is not None:
            self._body = SizedBody(framing.content_length, self._max_body)
        else:
            self._body = BodyUntilEnd(self._max_body)
        self.broken = framing.odd and status < 300 and not self._body.complete

    def _check(self, raw: bytes) -> tuple[int, Framing]:
        if self._familiar is None:
            return check_response(raw, MAX_ANSWER_HEADERS)
        checked = self._familiar.find(raw)
        if checked is None:
            checked = check_response(raw, MAX_ANSWER_HEADERS)
            self._familiar.keep(raw, checked)
        return checked

    def _feed_body(self, body: Body, data: bytes) -> None:
        if self.complete or self.broken:
            self.leftover += data
            return
        try:
            body.feed(data)
        except ProtocolError:
            self.broken = True
        self.complete = body.complete
        self.leftover = body.leftover
