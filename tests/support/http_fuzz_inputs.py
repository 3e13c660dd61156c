"""Random bytes of clients and servers for http_fuzz.py: valid messages, odd ones, and damaged ones."""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

BYTEWISE = 8
"""One in this many inputs is also fed byte by byte, which is slow."""

# Each is a pair: valid values and odd ones.
REQUEST_LINES = (
    [
        b"POST /x HTTP/1.1", b"POST /x HTTP/1.1", b"PUT /x?y HTTP/1.1", b"POST /x HTTP/1.0", b"GET / HTTP/1.1",
        b"HEAD / HTTP/1.1", b"DELETE /x HTTP/1.1", b"PATCH /%2e%2e/x HTTP/1.1", b"TRACE / HTTP/1.1",
        b"CONNECT a:443 HTTP/1.1", b"POST http://a/ HTTP/1.1", b"POST https://u@[::1]:81?x HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
    ],
    [
        b"post / HTTP/1.1", b"POST / HTTP/2.0", b"PRI * HTTP/2.0", b"POST / HTTP/1.2", b"M-SEARCH * HTTP/1.1",
        b"POST /x", b"POST  /x HTTP/1.1", b"POST /x HTTP/1.1 ", b"GET / RTSP/1.0", b"POST * HTTP/1.1",
        b"CONNECT / HTTP/1.1", b"GET ftp://a/ HTTP/1.1",
    ],
)  # fmt: skip
STATUS_LINES = (
    [
        b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK", b"HTTP/1.1 500 Oh", b"HTTP/1.1 200", b"HTTP/1.1 200 ",
        b"HTTP/1.0 200 OK", b"HTTP/1.1 100 Continue", b"HTTP/1.1 103 Hints", b"HTTP/1.1 204 None",
        b"HTTP/1.1 304 Same", b"HTTP/1.1 302 Found", b"HTTP/1.1 410 Gone", b"HTTP/1.0 503 Busy", b"HTTP/1.1 799 What",
        b"HTTP/1.1 500 \xe9t\xe9 \t!",
    ],
    [
        b"HTTP/1.1 101 Switch", b"HTTP/2 200 OK", b"HTTP/1.1 099 Low", b"HTTP/1.1  200 OK", b"HTTP/1.1 20 OK",
        b"ICY 200 OK", b"HTTP/1.1 2000 OK", b"HTTP/1.1\t200 OK", b"http/1.1 200 OK", b"HTTP/1.1 200\0OK",
    ],
)  # fmt: skip
LENGTHS = (
    [b"5", b"5", b"5", b"0", b"05", b"2"],
    [
        b"5, 5", b"5,6", b"+5", b"-5", b"0x5", b"5.0", b"5 5", b"", b"1e1", b"\xb2", b"99999999999999999999",
        b"18446744073709551616", b"18446744073709551621", b"9223372036854775808", b"4294967301", b"0" * 30 + b"5",
    ],
)  # fmt: skip
CODINGS = (
    [b"chunked", b"chunked", b"Chunked", b"CHUNKED", b"chunkeD"],
    [
        b"chunked, identity", b"identity, chunked", b"gzip", b"gzip, chunked", b"identity", b"chunked;x=y", b"chunked,",
        b",chunked", b"xchunked", b"chunkedx", b'"chunked"', b"", b"chunked chunked", b"chunked, chunked",
    ],
)  # fmt: skip
CONNECTIONS = [
    b"close", b"keep-alive", b"Keep-Alive", b"upgrade", b"Upgrade, close", b"close, keep-alive", b"TE", b"closed", b"",
    b"close,", b"transfer-encoding", b"content-length", b"keep-alive;close", b"\xe9, close", b"close close",
]  # fmt: skip
OTHERS = (
    [
        b"X: y", b"x-empty:", b"Upgrade: h2c", b"Upgrade: websocket", b"Upgrade:", b"Expect: 100-continue",
        b"TE: trailers",
        b"Expect: 100-Continue", b"Expect: 200-ok", b"Trailer: T", b"Proxy-Connection: close", b"Keep-Alive: timeout=5",
        b"HTTP2-Settings: AAMAAABkAAQAAP__", b"Sec-WebSocket-Key: x", b"Date: x", b"Allow: GET", b"X:" + b"y" * 60,
        b"X: \xe9\xff", b"!#$%&'*+-.^_`|~0: 1", b"Content_Length: 5", b"X-Transfer-Encoding: chunked", b"X: a:b: c",
    ],
    [
        b"Host: a", b"host:b", b"Host:", b"X: a\0", b"X: a\x0bb", b" folded", b"\tfolded", b"X(: y", b"X", b":",
        b"X : y", b"Transfer-Encoding : chunked", b"Content-Length : 5", b"Content-Length\0: 5",
        b"Transfer-Encoding:\x0bchunked", b"Transfer-Encoding: chunked\x00", b"Content-Length: 5\x0c", b"\xe9: 1",
        b"Content-Length: 5\rX: y", b"X: y\nContent-Length: 5", b"X: y\r\n\tContent-Length: 5",
        b"Transfer-Encoding:\r\n chunked",
    ],
)  # fmt: skip
SPACES = [b" ", b" ", b"", b"\t", b"  ", b" \t", b"\t "], [b"\x0b", b"\x0c", b"\xa0", b"\0"]
CHUNK_LINES = (
    [b"5", b"5", b"5", b"05", b"00005", b"5;x", b'5;x="y;z"', b"5 ;x", b"5\t;x", b"5;\xff"],
    [
        b"a", b"A", b"0", b"00", b"5 ", b" 5", b"+5", b"-5", b"0x5", b"", b"ffffffffffffffff1", b"fffffffffffffff",
        b"ffffffffffffffff", b"10000000000000005", b"5;" + b"x" * 300, b"5\n", b"5;\r", b"5;x\0", b"5_0", b"\xb5",
        b"0;x", b"5,5", b"5\r\n ", b"4",
    ],
)  # fmt: skip
TRAILERS = (
    [b"", b"", b"T: u\r\n", b"Host: evil\r\n", b"Content-Length: 9\r\n"],
    [b"T u\r\n", b"T: u\r\n v\r\n", b"T: u\n", b"T: \0\r\n"],
)
LINE_ENDS = [b"\n", b"\r", b"\r\r\n", b"\n\r", b"\r\n\r\n", b"\r\n\n", b" \r\n", b"\r\n ", b"\r\n\t", b"\0\r\n"]
MORSELS = [
    b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b",", b";", b"\x00", b"\x0b", b"\x7f", b"\xff", b"\x80", b"0", b"1", b"-",
    b"+", b"#", b"?", b"@", b"[", b"]", b"%", b"//", b"\\", b'"', b"\r\n\r\n", b"Host: b\r\n", b"Content-Length: 5\r\n",
    b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"Upgrade: x\r\n",
    b"HTTP/1.0", b"HTTP/1.1", b"chunked", b"HTTP/1.1 100 Continue\r\n\r\n", b"0\r\n\r\n",
]  # fmt: skip
VALUE_BYTES = bytes([9, *range(32, 127), *range(128, 256)])
TARGET_BYTES = bytes(each for each in range(33, 127) if each != ord("#"))


def pick(dice: Random, kinds: tuple[list[bytes], list[bytes]], good: float = 0.9) -> bytes:
    return dice.choice(kinds[0] if dice.random() < good else kinds[1])


def message(dice: Random, first_lines: tuple[list[bytes], list[bytes]]) -> bytes:
    """Mostly valid: bytes after the first fault are never read."""
    line = pick(dice, first_lines)
    if dice.random() < 0.1 and line.startswith(b"POST /"):
        line = b"POST /%s HTTP/1.1" % bytes(dice.choices(TARGET_BYTES, k=dice.randint(1, 12)))
    fields = [other_field(dice) for _ in range(dice.choice((0, 0, 1, 1, 2, 3)))]
    framing = dice.random()
    if framing < 0.35:
        fields.append(framing_field(dice, b"Content-Length", pick(dice, LENGTHS)))
        content = b"hello"
    elif framing < 0.7:
        fields.append(framing_field(dice, b"Transfer-Encoding", pick(dice, CODINGS)))
        content = chunks(dice)
    else:
        for _ in range(dice.choice((0, 1, 2))):
            name, values = dice.choice(((b"Content-Length", LENGTHS), (b"Transfer-Encoding", CODINGS)))
            fields.append(framing_field(dice, name, pick(dice, values, 0.5)))
        content = dice.choice((b"", b"hello", chunks(dice), dice.randbytes(dice.randint(0, 12))))
    dice.shuffle(fields)
    if first_lines is REQUEST_LINES and dice.random() < 0.98:
        fields.insert(0, b"Host: a")
    return b"\r\n".join([line, *fields]) + b"\r\n\r\n" + content


def framing_field(dice: Random, name: bytes, value: bytes) -> bytes:
    if dice.random() < 0.3:
        name = dice.choice((name.lower(), name.upper(), name.swapcase()))
    before, after = (pick(dice, SPACES, 0.97) for _ in range(2))
    return name + b":" + before + value + (after if dice.random() < 0.4 else b"")


def other_field(dice: Random) -> bytes:
    kind = dice.random()
    if kind < 0.3:
        return framing_field(dice, b"Connection", dice.choice(CONNECTIONS))
    if kind < 0.5:
        return framing_field(dice, b"X-Any", bytes(dice.choices(VALUE_BYTES, k=dice.randint(0, 8))))
    return pick(dice, OTHERS)


def chunks(dice: Random) -> bytes:
    end = dice.choice(LINE_ENDS) if dice.random() < 0.05 else b"\r\n"
    pieces = []
    for _ in range(dice.choice((0, 1, 1, 2))):
        pieces += [pick(dice, CHUNK_LINES), end, b"hello" if dice.random() < 0.9 else b"0123456789", b"\r\n"]
    last = b"0\r\n" if dice.random() < 0.9 else dice.choice((b"00;x\r\n", b"0\n", b"0 \r\n"))
    return b"".join([*pieces, last, pick(dice, TRAILERS), b"\r\n"])


def insert(dice: Random, raw: bytes) -> bytes:
    place = dice.randint(0, len(raw))
    morsel = dice.choice(MORSELS) if dice.random() < 0.7 else dice.randbytes(dice.randint(1, 3))
    return raw[:place] + morsel + raw[place + dice.choice((0, 0, 1, len(morsel))) :]


def delete(dice: Random, raw: bytes) -> bytes:
    place = dice.randint(0, len(raw))
    return raw[:place] + raw[place + dice.randint(1, 8) :]


def repeat(dice: Random, raw: bytes) -> bytes:
    place = dice.randint(0, len(raw))
    return raw[: place + dice.randint(1, 40)] + raw[place:]


def end_a_line_otherwise(dice: Random, raw: bytes) -> bytes:
    return _at(dice, raw, b"\r\n", lambda _: dice.choice(LINE_ENDS))


def space_a_colon_otherwise(dice: Random, raw: bytes) -> bytes:
    return _at(dice, raw, b":", lambda _: dice.choice((b"", b"", b" ", b"\t")) + b":" + pick(dice, SPACES))


def pad_a_line(dice: Random, raw: bytes) -> bytes:
    return _at(dice, raw, b"\r\n", lambda end: pick(dice, SPACES) + end)


def repeat_a_line(dice: Random, raw: bytes) -> bytes:
    lines = raw.split(b"\r\n")
    lines.insert(dice.randrange(len(lines)), dice.choice(lines))
    return b"\r\n".join(lines)


def swap_lines(dice: Random, raw: bytes) -> bytes:
    lines = raw.split(b"\r\n")
    one, other = dice.randrange(len(lines)), dice.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return b"\r\n".join(lines)


def change_a_number(dice: Random, raw: bytes) -> bytes:
    return _at(dice, raw, b"5", lambda _: pick(dice, LENGTHS, 0.3))


def change_case(dice: Random, raw: bytes) -> bytes:
    place = dice.randint(0, len(raw))
    end = place + dice.randint(1, 12)
    return raw[:place] + raw[place:end].swapcase() + raw[end:]


def _at(dice: Random, raw: bytes, wanted: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Changes one occurrence of `wanted`."""
    pieces = raw.split(wanted)
    if len(pieces) == 1:
        return raw
    place = dice.randrange(1, len(pieces))
    return wanted.join(pieces[:place]) + change(wanted) + wanted.join(pieces[place:])


DAMAGES = [
    insert, delete, repeat, end_a_line_otherwise, space_a_colon_otherwise, pad_a_line, pad_a_line, repeat_a_line,
    swap_lines, change_a_number, change_case,
]  # fmt: skip


class Input(NamedTuple):
    """Bytes of a client or a server. They are split at `cuts`. `options` are for the reader."""

    is_answer: bool
    raw: bytes
    cuts: tuple[int, ...]
    bytewise: bool
    options: dict[str, int]

    @property
    def feeds(self) -> list[list[bytes]]:
        """Whole, in pieces, and perhaps byte by byte."""
        raw, cuts = self.raw, sorted(min(cut, len(self.raw)) for cut in self.cuts)
        pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True) if a < b]
        bytewise = [[raw[place : place + 1] for place in range(len(raw))]] if self.bytewise else []
        return [[raw], pieces, *bytewise]


def draw(dice: Random) -> Input:
    is_answer = dice.random() < 0.5
    raw = b"".join(
        message(dice, STATUS_LINES if is_answer else REQUEST_LINES) for _ in range(dice.choice((1, 1, 2, 3)))
    )
    for _ in range(dice.choice((0, 0, 1, 1, 1, 2, 4))):
        raw = dice.choice(DAMAGES)(dice, raw)
    cuts = tuple(dice.randint(0, len(raw)) for _ in range(dice.randint(1, 4)))
    options: dict[str, int]
    if is_answer:
        options = {"end": dice.random() < 0.5, "to_head_request": dice.random() < 0.2}
    else:
        options = dice.choice(({}, {}, {}, {"max_head": 160}, {"max_body": 4}))
    return Input(is_answer, raw, cuts, dice.randrange(BYTEWISE) == 0, options)
