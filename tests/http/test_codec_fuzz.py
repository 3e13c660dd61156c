"""Both engines, fed the same damaged bytes, must read the same: verdict, values, and where messages end."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.http.codec import ENGINES, engine

EXAMPLES = 300
KINDS = ["built", "damaged"]
REQUESTS = [
    b"POST /https://a.example/b?c HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nT: u\r\n\r\n",
    b"POST http://a.example:81/x HTTP/1.1\r\nHost: a\r\nConnection: close, upgrade\r\nUpgrade: h2c\r\n\r\n",
    b"CONNECT a.example:443 HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n",
    b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.1\r\nHost: b\r\n\r\n",
]
RESPONSES = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nhello",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    b"HTTP/1.0 500 Oh\r\nUpgrade: x\r\n\r\nuntil close",
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
]
# What makes parsers disagree: line ends, separators, framing fields, digits, and any byte at all.
MORSELS = [
    b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b",", b";", b"\x00", b"\x0b", b"\x7f", b"\xff", b"0", b"1", b"-", b"+",
    b"#", b"?", b"@", b"[", b"]", b"%", b"//", b"\r\n\r\n", b"Host: b\r\n",
    b"Content-Length: 5\r\n", b"Content-Length: 0\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: CHUNKED\r\n", b"Transfer-Encoding: gzip\r\n",
    b"Connection: close\r\n", b"Connection: upgrade\r\n", b"Upgrade: x\r\n", b"HTTP/1.0", b"HTTP/1.1", b"chunked",
]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data)))
        morsel = draw(st.sampled_from(MORSELS) | st.binary(min_size=1, max_size=3))
        kind = draw(st.sampled_from(["insert", "replace", "delete", "repeat"]))
        if kind == "insert":
            data = data[:place] + morsel + data[place:]
        elif kind == "replace":
            data = data[:place] + morsel + data[place + len(morsel) :]
        elif kind == "delete":
            data = data[:place] + data[place + draw(st.integers(1, 8)) :]
        else:
            end = min(len(data), place + draw(st.integers(1, 40)))
            data = data[:end] + data[place:]
    return data


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=4)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True) if a < b]


# Heads and bodies put together from parts, good and bad: framing that no damage to a good message comes upon.
REQUEST_LINES = [
    b"POST /x HTTP/1.1", b"POST /x HTTP/1.0", b"GET / HTTP/1.1", b"HEAD / HTTP/1.1", b"CONNECT a:443 HTTP/1.1",
    b"POST http://a/ HTTP/1.1", b"OPTIONS * HTTP/1.1", b"post / HTTP/1.1", b"POST / HTTP/2.0", b"PRI * HTTP/2.0",
]  # fmt: skip
STATUS_LINES = [
    b"HTTP/1.1 200 OK", b"HTTP/1.1 200", b"HTTP/1.0 200 OK", b"HTTP/1.1 100 Continue", b"HTTP/1.1 103 Hints",
    b"HTTP/1.1 101 Switch", b"HTTP/1.1 204 None", b"HTTP/1.1 304 Same", b"HTTP/1.1 503 Busy", b"HTTP/2 200 OK",
    b"HTTP/1.1 099 Low", b"HTTP/1.1  200 OK",
]  # fmt: skip
FIELDS = [
    b"X: y", b"Content-Length: 5", b"content-length: 5", b"Content-Length: 05", b"Content-Length: 0",
    b"Transfer-Encoding: chunked", b"transfer-encoding: Chunked", b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: gzip", b"Transfer-Encoding: identity", b"Connection: close", b"Connection: keep-alive",
    b"Connection: upgrade", b"Upgrade: h2c", b"Expect: 100-continue", b"Trailer: T",
    b"Host: a", b"host:b", b"Content-Length: 5, 5", b"Content-Length: +5", b"Content-Length:",
    b"Content-Length: 99999999999999999999", b"Transfer-Encoding : chunked", b"Transfer-Encoding:\x0bchunked",
    b"X:" + b"y" * 60, b"X: \xe9", b"X: a\0", b" folded", b"X(: y", b"X", b":",
]  # fmt: skip
CHUNK_LINES = [
    b"5", b"05", b"a", b"A", b"0", b"00", b"5;x", b'5;x="y;z"', b"5 ;x", b"5 ", b" 5", b"+5", b"-5", b"0x5", b"",
    b"ffffffffffffffff1", b"fffffffffffffff", b"5;" + b"x" * 300, b"5\n", b"5;\r",
]  # fmt: skip
LINE_ENDS = [b"\r\n"] * 12 + [b"\n", b"\r", b"\r\r\n", b"\r\n\r\n"]
# From framing that is fine by itself, and often not in pairs, to everything.
GROUPS = [(FIELDS[:7], LINE_ENDS[:1]), (FIELDS[:16], LINE_ENDS[:1]), (FIELDS, LINE_ENDS)]


@st.composite
def built(draw: st.DrawFn, first_lines: list[bytes]) -> bytes:
    """One to three messages in a row: with few faults, or what is behind the first of them would never be read."""
    pieces: list[bytes] = []
    for _ in range(draw(st.integers(1, 3))):
        fields, ends = draw(st.sampled_from(GROUPS))
        first_line = draw(st.just(first_lines[0]) | st.sampled_from(first_lines))
        for line in [first_line, b"Host: a", *draw(st.lists(st.sampled_from(fields), max_size=4))]:
            pieces += [line, draw(st.sampled_from(ends))]
        pieces.append(draw(st.sampled_from(ends)))
        pieces.append(draw(st.just(b"hello") | chunks() | st.binary(max_size=12)))
    return b"".join(pieces)


@st.composite
def chunks(draw: st.DrawFn) -> bytes:
    end = draw(st.sampled_from(LINE_ENDS))
    pieces = [
        draw(st.sampled_from(CHUNK_LINES)) + end + draw(st.sampled_from([b"hello", b"0123456789", b"hi"])) + b"\r\n"
        for _ in range(draw(st.integers(0, 3)))
    ]
    trailers = draw(st.sampled_from([b"", b"T: u\r\n", b"Host: evil\r\n", b"T u\r\n", b"T: u\r\n v\r\n"]))
    return b"".join([*pieces, draw(st.sampled_from([b"0\r\n", b"00;x\r\n", b"0\n"])), trailers, b"\r\n"])


def feeds(data: st.DataObject, raw: bytes) -> list[list[bytes]]:
    """At once, cut in a few places, and a byte at a time."""
    return [[raw], data.draw(cut(raw)), [raw[place : place + 1] for place in range(len(raw))]]


@pytest.mark.parametrize("kind", [built(REQUEST_LINES), damaged(REQUESTS) | st.binary(max_size=80)], ids=KINDS)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_requests(read_requests, kind, data):
    raw = data.draw(kind)
    limits = data.draw(st.sampled_from([{}, {}, {"max_head": 100}, {"max_body": 4}]))
    readings = [read_requests(engine(name), feed, **limits) for name in ENGINES for feed in feeds(data, raw)]
    assert readings.count(readings[0]) == len(readings)


@pytest.mark.parametrize("kind", [built(STATUS_LINES), damaged(RESPONSES) | st.binary(max_size=80)], ids=KINDS)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_responses(read_response, kind, data):
    raw = data.draw(kind)
    options = {"end": data.draw(st.booleans()), "to_head_request": data.draw(st.booleans())}
    readings = [read_response(engine(name), feed, **options) for name in ENGINES for feed in feeds(data, raw)]
    assert readings.count(readings[0]) == len(readings)


@settings(max_examples=EXAMPLES)
@given(raw=built(REQUEST_LINES))
def test_a_request_that_is_read_ends_where_its_framing_says(read_requests, raw):
    """As long as bodies have a length: leading blank lines aside, what was read is what the bytes began with."""
    for head, body in read_requests(engine("h11"), [raw])[:-1]:
        if head.chunked:
            assert head.content_length is None
            break
        raw = raw[raw.index(b" HTTP/1.") :]
        end = raw.index(b"\r\n\r\n") + 4
        assert body == raw[end : end + (head.content_length or 0)]
        assert len(body) == (head.content_length or 0)
        raw = raw[end + len(body) :]
