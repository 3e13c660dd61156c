"""Both engines, fed the same damaged bytes, must read the same: verdict, values, and where messages end."""

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.http.codec import ENGINES, engine

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


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_requests(read_requests, data):
    raw = data.draw(damaged(REQUESTS))
    pieces = data.draw(cut(raw))
    readings = [read_requests(engine(name), feed) for name in ENGINES for feed in ([raw], pieces)]
    assert readings.count(readings[0]) == len(readings)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_responses(read_response, data):
    raw = data.draw(damaged(RESPONSES))
    pieces = data.draw(cut(raw))
    readings = [read_response(engine(name), feed, end=True) for name in ENGINES for feed in ([raw], pieces)]
    assert readings.count(readings[0]) == len(readings)
