"""Parsers for requests and responses. They do no I/O: bytes in, heads and bodies out.

This module splits the stream into heads and bodies. head_grammar.py refuses heads, body.py decodes bodies, and an
engine turns an accepted head into method, target and headers. So no engine decides where a message ends, and all
engines read every byte in the same way.
"""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

from holdfast.http.body import Body, BodyUntilEnd, ChunkedBody, SizedBody
from holdfast.http.exceptions import BadAnswer, ProtocolError
from holdfast.http.head_grammar import (
    END_OF_HEAD,
    HeadBuffer,
    ResponseHead,
    check_request,
    check_request_start,
    check_response,
    check_response_start,
    with_plain_coding,
    without_framing,
)
from holdfast.http.request_response import Headers

MAX_URL = 8192
MAX_ANSWER_HEAD = 65536
MAX_ANSWER_HEADERS = 256
MAX_INFORMATIONAL = 64
MAX_CACHED_HEADS = 512
MAX_CACHED_HEAD_SIZE = 1_024

ENGINES = ("httptools", "h11")


class HeadEngine(Protocol):
    """Reads one complete head that head_grammar.py accepts. Lowers the names and strips the values of headers.

    Raises ValueError for a head that it can't read.
    """

    name: str

    def read_request(self, raw: bytes) -> tuple[str, bytes, Headers]:
        """Method, target, headers."""

    def read_response(self, raw: bytes) -> Headers: ...


def best_engine() -> HeadEngine:
    """httptools if it is installed, else h11."""
    return engine("httptools" if find_spec("httptools") else "h11")


@cache
def engine(name: str) -> HeadEngine:
    if name not in ENGINES:
        raise ValueError(f"no HTTP engine {name!r}; there are {', '.join(ENGINES)}")
    module = import_module(f"holdfast.http.codec_{name}")
    return cast(HeadEngine, module.ENGINE)


class RequestHead(NamedTuple):
    method: str
    target: bytes
    headers: Headers
    http_version: str
    keep_alive: bool
    content_length: int | None
    chunked: bool
    expect_continue: bool


CachedHead = TypeVar("CachedHead", RequestHead, ResponseHead)


class HeadCache(Generic[CachedHead]):
    """Parsed heads by their bytes. They are shared: nobody may change one.

    Heads repeat: an app sends the same ones again and again, a receiver as long as its `Date` is the same. Parsing two
    heads was a tenth of a webhook's cost. If every head is new, the lookup costs a fiftieth of that. Refusals are not
    cached.
    """

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[bytes, CachedHead] = {}

    def find(self, raw: bytes) -> CachedHead | None:
        return self._heads.get(raw)

    def keep(self, raw: bytes, head: CachedHead) -> None:
        """A full cache is emptied first."""
        if len(raw) > MAX_CACHED_HEAD_SIZE:
            return
        if len(self._heads) >= MAX_CACHED_HEADS:
            self._heads.clear()
        self._heads[raw] = head


class RequestParser:
    """Reads the requests of one connection, one after another.

    After each `feed`, `head` is None until the head is complete, and `body` is valid once `complete` is true. Bytes of
    the next request are kept until `next_message()`. A parser that raised `ProtocolError` can't be used again.
    """

    def __init__(
        self,
        engine: HeadEngine,
        *,
        max_head: int,
        max_headers: int,
        max_body: int,
        head_cache: HeadCache[RequestHead] | None = None,
    ) -> None:
        """Parsers that share a `head_cache` must have the same engine and limits."""
        self._engine = engine
        self._head_cache = head_cache or HeadCache()
        self._max_headers = max_headers
        self._max_body = max_body
        self._head_buffer = HeadBuffer(max_head, check_request_start)
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
        """Whether a part of the current request has arrived."""
        return self.head is not None or bool(self._head_buffer)

    @property
    def received(self) -> int:
        """The size of an incomplete body so far."""
        return len(self._body.body) if self._body is not None else 0

    def take_body(self) -> bytes:
        """Returns the body and releases it here."""
        body, self.body = self.body, b""
        return body

    def drop_body(self) -> None:
        """Releases an incomplete body, for a request that is refused."""
        self._body = None

    def next_message(self) -> None:
        """Forgets the current request and continues with the bytes after it."""
        leftover, self._leftover = self._leftover, b""
        self._reset()
        if leftover:
            self.feed(leftover)

    def feed(self, data: bytes) -> None:
        if self.complete:
            self._leftover += data
            return
        if self.head is None:
            if self._blank < 2 and not self._head_buffer:
                data = self._skip_blank_line(data)
            if not data or (split := self._head_buffer.split(data)) is None:
                return
            head, data = split
            self.head = self._read_head(head)
            if self._take_whole_body(self.head, data):
                return
            self._body = self._decoder(self.head)
        assert self._body is not None
        self.body_started = self.body_started or bool(data)
        self._body.feed(data)
        if self._body.complete:
            self.complete, self.body, self._leftover = True, bytes(self._body.body), self._body.leftover
            self._body = None  # the response may take long, and one copy is enough

    def _skip_blank_line(self, data: bytes) -> bytes:
        # RFC 9112, 2.2: old clients send an empty line too many after a body.
        while self._blank < 2 and data and data[0] == b"\r\n"[self._blank]:
            self._blank += 1
            data = data[1:]
        if data and self._blank == 1:
            raise ProtocolError(400, "this is not an HTTP request")
        return data

    def _read_head(self, raw: bytes) -> RequestHead:
        head = self._head_cache.find(raw)
        if head is None:
            head = self._read_new_head(raw)
            self._head_cache.keep(raw, head)
        return head

    def _read_new_head(self, raw: bytes) -> RequestHead:
        framing = check_request(raw, self._max_headers, MAX_URL)
        if framing.content_length is not None and framing.content_length > self._max_body:
            raise ProtocolError(413, f"the body is larger than {self._max_body} bytes")
        try:
            method, target, headers = self._engine.read_request(with_plain_coding(raw) if framing.chunked else raw)
        except ValueError as error:
            raise ProtocolError(400, f"malformed request: {error}") from error
        return RequestHead(method, target, headers, *framing[:5])

    def _decoder(self, head: RequestHead) -> Body:
        if head.chunked:
            return ChunkedBody(self._max_body)
        return SizedBody(head.content_length or 0, self._max_body)

    def _take_whole_body(self, head: RequestHead, data: bytes) -> bool:
        """The common case: there is no body, or it came with the head."""
        length = head.content_length or 0
        if head.chunked or len(data) < length:
            return False
        self.body, self._leftover = data[:length], data[length:]
        self.complete = True
        return True


class ResponseParser:
    """Reads one response. Skips informational ones (1xx).

    Raises `BadAnswer`, without an address, until the head is complete. After that nothing raises, because the outcome
    is decided: a body with broken framing or over `max_body` sets `broken`, and `body` holds the part before. A success
    with odd framing is `broken` at once: its body is not needed, and its end might never come.
    """

    def __init__(
        self,
        engine: HeadEngine,
        *,
        max_body: int,
        to_head_request: bool = False,
        head_cache: HeadCache[ResponseHead] | None = None,
    ) -> None:
        self._engine = engine
        self._head_cache = head_cache
        self._max_body = max_body
        self._to_head_request = to_head_request
        self._head_buffer: HeadBuffer | None = None
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
        """The headers of the final head. Those of a success are parsed on demand: delivery never needs them."""
        if self._headers is None:
            chunked = self.head is not None and self.head.chunked
            self._headers = self._engine.read_response(with_plain_coding(self._raw) if chunked else self._raw)
        return self._headers

    @property
    def body(self) -> bytes:
        return bytes(self._body.body) if self._body is not None else b""

    @property
    def reusable(self) -> bool:
        """Whether the connection can carry another exchange."""
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
        """Reads heads up to the final one. Returns the bytes after it."""
        while self.head is None and data:
            if self._head_buffer is None:
                # The common case, without a buffer: the head came whole.
                end = data.find(END_OF_HEAD, 0, MAX_ANSWER_HEAD) + 4
                if end > 3:
                    self._read_head(data[:end])
                    data = data[end:]
                    continue
                self._head_buffer = HeadBuffer(MAX_ANSWER_HEAD, check_response_start)
            if (split := self._head_buffer.split(data)) is None:
                return b""
            raw, data = split
            self._read_head(raw)
        return data

    def _read_head(self, raw: bytes) -> None:
        head = self._check(raw)
        status = head.status
        if status == 101:
            raise ProtocolError(400, "the answer switches protocols without a request for it")
        if status < 200:
            self._informational += 1
            if self._informational > MAX_INFORMATIONAL:
                raise ProtocolError(400, f"more than {MAX_INFORMATIONAL} informational answers")
            return
        self._raw = without_framing(raw) if head.odd else raw
        self.head = head
        if status >= 300:
            _ = self.headers  # if the engine refuses them, this is a bad answer now and not an error later
        if self._to_head_request or status == 204 or status == 304:
            self._body = SizedBody(0, self._max_body)
        elif head.chunked:
            self._body = ChunkedBody(self._max_body)
        elif head.content_length is not None:
            self._body = SizedBody(head.content_length, self._max_body)
        else:
            self._body = BodyUntilEnd(self._max_body)
        self.broken = head.odd and status < 300 and not self._body.complete

    def _check(self, raw: bytes) -> ResponseHead:
        if self._head_cache is None:
            return check_response(raw, MAX_ANSWER_HEADERS)
        head = self._head_cache.find(raw)
        if head is None:
            head = check_response(raw, MAX_ANSWER_HEADERS)
            self._head_cache.keep(raw, head)
        return head

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
