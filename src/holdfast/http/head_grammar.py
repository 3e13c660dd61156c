"""The grammar of heads: where a head ends, and everything that is refused in one, before an engine sees it.

Engines differ in what they tolerate: bare LF, folded lines, unknown methods, repeated lengths, chunked on HTTP/1.0. So
a raw head must match one strict pattern, and the fields that decide about framing are read and checked here. An engine
gets only heads that all engines read in the same way. Refusals are `ProtocolError`s in both directions.

A request with contradictory framing is refused. A response with contradictory framing is marked `odd` instead: its
status counts, the end of its body is a best guess, and its connection is not used again.

A verdict depends on the bytes alone, never on how they were split into reads.
"""

import re
import sys
from collections.abc import Callable
from typing import NamedTuple

from holdfast.http.exceptions import ProtocolError

METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT"})
MAX_LENGTH_DIGITS = 18
MAX_POSITION = sys.maxsize
END_OF_HEAD = b"\r\n\r\n"

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_FIELD_CONTENT = _TOKEN + rb"++:[\t\x20-\x7e\x80-\xff]*+"
_FIELD = _FIELD_CONTENT + rb"\r\n"
_REQUEST = re.compile(rb"(" + _TOKEN + rb"++) ([\x21\x22\x24-\x7e]++) HTTP/1\.([01])\r\n(?:" + _FIELD + rb")*+\r\n")
_RESPONSE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: [\t\x20-\x7e\x80-\xff]*+)?\r\n(?:" + _FIELD + rb")*+\r\n")
_FRAMING_FIELD = re.compile(
    rb"\n(host|content-length|transfer-encoding|connection|expect):[ \t]*+([^\r]*+)", re.IGNORECASE
)
_LENGTH_OR_CODING = re.compile(rb"\n(?:content-length|transfer-encoding):[^\r]*+\r(?=\n)", re.IGNORECASE)
_CODING = re.compile(rb"(?<=\ntransfer-encoding:)[^\r]*+", re.IGNORECASE)
_ABSOLUTE = re.compile(rb"https?://(?:[\w\-.~!$&'()*+,;=:%]*@)?[\w\-.~!$&'()*+,;=:%\[\]]+(?:[/?].*)?", re.IGNORECASE)
_AUTHORITY = re.compile(rb"(?:[\w\-.~]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")

_FIELD_LINE = re.compile(_FIELD_CONTENT)
_BARE_LF = re.compile(rb"(?<!\r)\n")
_VERSION = re.compile(rb"HTTP/[0-9]+\.[0-9]+")
_REQUEST_START = re.compile(_TOKEN)


class Framing(NamedTuple):
    """The end of a message's body, and whether its connection stays open."""

    http_version: str
    keep_alive: bool
    content_length: int | None
    chunked: bool
    expect_continue: bool
    odd: bool = False
    """The framing fields of a response contradict each other or are malformed."""


class ResponseHead(NamedTuple):
    status: int
    http_version: str
    keep_alive: bool
    content_length: int | None
    chunked: bool
    odd: bool


class _FramingFields(NamedTuple):
    """The raw values of the fields that decide about framing."""

    hosts: int
    lengths: list[bytes]
    codings: list[bytes]
    connection: bytes
    expect: bytes


def check_request(raw: bytes, max_headers: int, max_url: int) -> Framing:
    matched = _REQUEST.fullmatch(raw)
    if matched is None:
        raise _fault_of_request(raw)
    method, target, minor = matched.groups()
    if len(target) > max_url:
        raise ProtocolError(414, f"the URL is longer than {max_url} bytes")
    _check_number_of_headers(raw, max_headers)
    if method not in METHODS:
        raise ProtocolError(405, "unknown method")
    if target[0] != 0x2F or method == b"CONNECT":
        _check_target_form(method, target)
    fields = _framing_fields(raw)
    framing = _framing(fields, minor == b"1")
    if fields.hosts != 1 and (fields.hosts > 1 or minor == b"1"):
        raise ProtocolError(400, "exactly one Host header is needed")
    return framing


def check_response(raw: bytes, max_headers: int) -> ResponseHead:
    matched = _RESPONSE.fullmatch(raw)
    if matched is None:
        check_response_start(raw)
        raise ProtocolError(400, _fault_of_fields(raw) or "malformed status line")
    _check_number_of_headers(raw, max_headers)
    fields, is_http_1_1 = _framing_fields(raw), matched[1] == b"1"
    try:
        framing = _framing(fields, is_http_1_1)
    except ProtocolError:
        framing = _odd_framing(fields, is_http_1_1)
    return ResponseHead(int(matched[2]), *framing[:4], framing.odd)


def without_framing(raw: bytes) -> bytes:
    """Removes the fields that delimit the body from a head: engines refuse those of an odd response."""
    return _LENGTH_OR_CODING.sub(b"", raw)


def with_plain_coding(raw: bytes) -> bytes:
    """Normalises the coding of a chunked head: engines differ in the white space and case that they accept."""
    return _CODING.sub(b" chunked", raw)


def check_request_start(raw: bytes | bytearray, scanned: int = 0, end: int = MAX_POSITION) -> None:
    """Refuses bytes that can't become a request, so that nobody waits for the end of such a head.

    Bytes before `scanned` were checked before. Those from `end` on exceed the limit of a head.
    """
    if not _REQUEST_START.match(raw):
        raise ProtocolError(400, "this is not an HTTP request")
    _check_line_ends(raw, scanned, end)


def check_response_start(raw: bytes | bytearray, scanned: int = 0, end: int = MAX_POSITION) -> None:
    if not b"HTTP/1.".startswith(raw[:7]):
        raise ProtocolError(400, "this is not an HTTP/1 answer")
    _check_line_ends(raw, scanned, end)


def is_field_line(line: bytes) -> bool:
    """Whether a line without its CRLF is a well-formed header or trailer field."""
    return _FIELD_LINE.fullmatch(line) is not None


class HeadBuffer:
    """Collects bytes until a head is complete. Scans each byte once."""

    __slots__ = ("_buffer", "_check_start", "_limit")

    def __init__(self, limit: int, check_start: Callable[[bytes | bytearray, int, int], None]) -> None:
        self._limit = limit
        self._check_start = check_start
        self._buffer = bytearray()

    def __bool__(self) -> bool:
        return bool(self._buffer)

    def split(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Returns the head and the bytes after it, or None if the head is not complete yet."""
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


def _check_line_ends(raw: bytes | bytearray, scanned: int, end: int) -> None:
    if _BARE_LF.search(raw, scanned, end):
        raise ProtocolError(400, "line ends with LF instead of CRLF")


def _check_number_of_headers(raw: bytes, max_headers: int) -> None:
    if raw.count(b"\r\n") - 2 > max_headers:
        raise ProtocolError(431, f"more than {max_headers} headers")


def _check_target_form(method: bytes, target: bytes) -> None:
    if method == b"CONNECT":
        well_formed = _AUTHORITY.fullmatch(target) is not None
    elif target == b"*":
        well_formed = method == b"OPTIONS"
    else:
        well_formed = _ABSOLUTE.fullmatch(target) is not None
    if not well_formed:
        raise ProtocolError(400, "malformed request target")


def _framing_fields(raw: bytes) -> _FramingFields:
    hosts = 0
    lengths: list[bytes] = []
    codings: list[bytes] = []
    connection = expect = b""
    for name, value in _FRAMING_FIELD.findall(raw):
        key = name.lower()
        if key == b"host":
            hosts += 1
        elif key == b"content-length":
            lengths.append(value.rstrip(b" \t"))
        elif key == b"connection":
            connection += b"," + value.lower()
        elif key == b"transfer-encoding":
            codings.append(value.rstrip(b" \t"))
        else:
            expect = value.rstrip(b" \t").lower()
    return _FramingFields(hosts, lengths, codings, connection, expect)


def _framing(fields: _FramingFields, is_http_1_1: bool) -> Framing:
    lengths, codings = fields.lengths, fields.codings
    if codings:
        _check_coding(codings, lengths, is_http_1_1)
    return Framing(
        "1.1" if is_http_1_1 else "1.0",
        _keeps_alive(fields.connection, is_http_1_1),
        _length(lengths) if lengths else None,
        bool(codings),
        is_http_1_1 and fields.expect == b"100-continue",
    )


def _odd_framing(fields: _FramingFields, is_http_1_1: bool) -> Framing:
    """A best guess by RFC 9112, 6.3: a coding overrides a length, and a length may be repeated."""
    chunked = b", ".join(fields.codings).lower() == b"chunked"
    lengths = {length.strip(b" \t") for value in fields.lengths for length in value.split(b",")}
    digits = lengths.pop() if len(lengths) == 1 and not fields.codings else b""
    length = int(digits) if digits.isdigit() and len(digits) <= MAX_LENGTH_DIGITS else None
    return Framing("1.1" if is_http_1_1 else "1.0", False, length, chunked, False, odd=True)


def _check_coding(codings: list[bytes], lengths: list[bytes], is_http_1_1: bool) -> None:
    if lengths:
        raise ProtocolError(400, "Content-Length together with Transfer-Encoding")
    if not is_http_1_1:
        raise ProtocolError(400, "Transfer-Encoding on HTTP/1.0")
    coding = b", ".join(codings).lower()
    if coding != b"chunked":
        # With chunked and another coding, two readers may disagree about the end of the body.
        raise ProtocolError(400 if b"chunked" in coding else 501, "Transfer-Encoding other than chunked")


def _length(lengths: list[bytes]) -> int:
    if len(lengths) > 1:
        raise ProtocolError(400, "more than one Content-Length")
    digits = lengths[0]
    if not digits.isdigit():
        raise ProtocolError(400, "malformed Content-Length")
    if len(digits) > MAX_LENGTH_DIGITS:
        raise ProtocolError(413, "Content-Length is too large")
    return int(digits)


def _keeps_alive(connection: bytes, is_http_1_1: bool) -> bool:
    if not connection:
        return is_http_1_1
    tokens = {token.strip(b" \t") for token in connection.split(b",")}
    return b"close" not in tokens and (is_http_1_1 or b"keep-alive" in tokens)


def _fault_of_request(raw: bytes) -> ProtocolError:
    check_request_start(raw)
    if fault := _fault_of_fields(raw):
        return ProtocolError(400, fault)
    words = raw.partition(b"\r\n")[0].split(b" ")
    if len(words) == 3 and _VERSION.fullmatch(words[2]) and words[2] not in (b"HTTP/1.0", b"HTTP/1.1"):
        return ProtocolError(505, "only HTTP/1.0 and HTTP/1.1 are supported")
    return ProtocolError(400, "malformed request line")


def _fault_of_fields(raw: bytes) -> str | None:
    """The fault in the header lines of a head that the pattern refused, or None if the first line is at fault."""
    for line in raw.split(b"\r\n")[1:-2]:
        if line[:1] in (b" ", b"\t"):
            return "folded header line"
        if not _FIELD_LINE.fullmatch(line):
            return "malformed header line"
    return None
