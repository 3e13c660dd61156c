"""How requests are parsed, by both engines."""

import pytest

from holdfast.http.codec import ENGINES, RequestHead, best_engine, engine

HOST = b"Host: a\r\n"


def request(line: bytes = b"POST /x HTTP/1.1", *headers: bytes, body: bytes = b"", host: bytes = HOST) -> bytes:
    return line + b"\r\n" + host + b"".join(header + b"\r\n" for header in headers) + b"\r\n" + body


VALID = {
    "get": request(b"GET / HTTP/1.1"),
    "sized": request(b"POST /https://a.example/b?c=%20d HTTP/1.1", b"Content-Length: 5", body=b"hello"),
    "no body": request(b"DELETE /x HTTP/1.1"),
    "zero length": request(b"PUT /x HTTP/1.1", b"Content-Length: 0"),
    "leading zeros": request(b"PUT /x HTTP/1.1", b"Content-Length: 0003", body=b"abc"),
    "chunked": request(
        b"POST /x HTTP/1.1", b"Transfer-Encoding: Chunked", body=b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n"
    ),
    "chunked with white space": request(
        b"POST /x HTTP/1.1", b"Transfer-Encoding:\t chunked \t", body=b"3\r\nabc\r\n0\r\n\r\n"
    ),
    "trailers": request(b"POST /x HTTP/1.1", b"Transfer-Encoding: chunked", body=b"1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n"),
    "http/1.0": request(b"POST /x HTTP/1.0", b"Content-Length: 2", body=b"ok", host=b""),
    "http/1.0 kept": request(b"GET /x HTTP/1.0", b"Connection: Keep-Alive"),
    "close": request(b"GET /x HTTP/1.1", b"Connection: foo , CLOSE"),
    "absolute": request(b"POST http://a.example:81/b?c HTTP/1.1"),
    "connect": request(b"CONNECT a.example:443 HTTP/1.1"),
    "asterisk": request(b"OPTIONS * HTTP/1.1"),
    "upgrade": request(b"GET /x HTTP/1.1", b"Connection: Upgrade", b"Upgrade: websocket"),
    "expect": request(b"POST /x HTTP/1.1", b"Expect: 100-Continue", b"Content-Length: 1", body=b"x"),
    "odd values": request(b"GET /x HTTP/1.1", b"X-Empty:", b"X-Tab:\t a \xe9 b\t ", b"x!#$%&'*+-.^_`|~0: 1"),
    "blank line first": b"\r\n" + request(b"GET / HTTP/1.1"),
}

HOSTILE = {
    "bare LF": (400, b"GET / HTTP/1.1\nHost: a\n\n"),
    "bare LF between headers": (400, b"GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n"),
    "bare CR": (400, request(b"GET / HTTP/1.1", b"X: a\rb")),
    "two blank lines first": (400, b"\r\n\r\n" + request(b"GET / HTTP/1.1")),
    "blank line of CR": (400, b"\r" + request(b"GET / HTTP/1.1")),
    "folded": (400, request(b"GET / HTTP/1.1", b"X: a", b" b")),
    "folded with tab": (400, request(b"GET / HTTP/1.1", b"X: a", b"\tb")),
    "space before colon": (400, request(b"GET / HTTP/1.1", b"X : a")),
    "no colon": (400, request(b"GET / HTTP/1.1", b"X")),
    "empty name": (400, request(b"GET / HTTP/1.1", b": a")),
    "NUL in value": (400, request(b"GET / HTTP/1.1", b"X: a\x00b")),
    "DEL in value": (400, request(b"GET / HTTP/1.1", b"X: a\x7fb")),
    "control in name": (400, request(b"GET / HTTP/1.1", b"X\x01: a")),
    "high byte in name": (400, request(b"GET / HTTP/1.1", b"X\xe9: a")),
    "empty method": (400, request(b" / HTTP/1.1")),
    "method with bracket": (400, request(b"GE(T / HTTP/1.1")),
    "unknown method": (405, request(b"BREW / HTTP/1.1")),
    "lower-case method": (405, request(b"get / HTTP/1.1")),
    "space in target": (400, request(b"GET /a b HTTP/1.1")),
    "two spaces": (400, request(b"GET  / HTTP/1.1")),
    "tab for space": (400, request(b"GET\t/ HTTP/1.1")),
    "control in target": (400, request(b"GET /\x01 HTTP/1.1")),
    "high byte in target": (400, request(b"GET /\xe9 HTTP/1.1")),
    "fragment": (400, request(b"GET /#a HTTP/1.1")),
    "relative target": (400, request(b"GET a/b HTTP/1.1")),
    "other scheme": (400, request(b"GET ftp://a/ HTTP/1.1")),
    "absolute without host": (400, request(b"GET http:///x HTTP/1.1")),
    "asterisk with GET": (400, request(b"GET * HTTP/1.1")),
    "connect to a path": (400, request(b"CONNECT /x HTTP/1.1")),
    "no version": (400, request(b"GET /")),
    "HTTP/0.9": (505, request(b"GET / HTTP/0.9")),
    "HTTP/1.2": (505, request(b"GET / HTTP/1.2")),
    "HTTP/2": (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "lower-case version": (400, request(b"GET / http/1.1")),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "length and coding": (
        400,
        request(b"POST / HTTP/1.1", b"Content-Length: 3", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    ),
    "two lengths": (400, request(b"POST / HTTP/1.1", b"Content-Length: 3", b"Content-Length: 3", body=b"abc")),
    "differing lengths": (400, request(b"POST / HTTP/1.1", b"Content-Length: 3", b"Content-Length: 4", body=b"abc")),
    "list of lengths": (400, request(b"POST / HTTP/1.1", b"Content-Length: 3, 3", body=b"abc")),
    "signed length": (400, request(b"POST / HTTP/1.1", b"Content-Length: +3", body=b"abc")),
    "negative length": (400, request(b"POST / HTTP/1.1", b"Content-Length: -3")),
    "hex length": (400, request(b"POST / HTTP/1.1", b"Content-Length: 0x3", body=b"abc")),
    "empty length": (400, request(b"POST / HTTP/1.1", b"Content-Length:")),
    "superscript length": (400, request(b"POST / HTTP/1.1", b"Content-Length: \xb3", body=b"abc")),
    "huge length": (413, request(b"POST / HTTP/1.1", b"Content-Length: 99999999999999999999999")),
    "length over limit": (413, request(b"POST / HTTP/1.1", b"Content-Length: 4097")),
    "other coding": (501, request(b"POST / HTTP/1.1", b"Transfer-Encoding: gzip")),
    "two codings": (400, request(b"POST / HTTP/1.1", b"Transfer-Encoding: gzip, chunked")),
    "chunked twice": (400, request(b"POST / HTTP/1.1", b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked")),
    "chunked first": (400, request(b"POST / HTTP/1.1", b"Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n")),
    "identity": (501, request(b"POST / HTTP/1.1", b"Transfer-Encoding: identity")),
    "hidden coding": (400, request(b"POST / HTTP/1.1", b"Transfer-Encoding: xchunked")),
    "chunked on 1.0": (400, request(b"POST / HTTP/1.0", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n")),
    "no host": (400, request(b"GET / HTTP/1.1", host=b"")),
    "two hosts": (400, request(b"GET / HTTP/1.1", b"hOST: b")),
    "too many headers": (431, request(b"GET / HTTP/1.1", *[b"X: y"] * 20)),
    "head too large": (431, request(b"GET / HTTP/1.1", b"X: " + b"y" * 4096)),
    "endless first line": (414, b"GET /" + b"x" * 5000),
}

HOSTILE_CHUNKS = {
    "bare LF after size": (400, b"3\nabc\r\n0\r\n\r\n"),
    "bare LF after data": (400, b"3\r\nabc\n0\r\n\r\n"),
    "bare LF in trailers": (400, b"0\r\nX: y\n\r\n"),
    "bare LF at the end": (400, b"0\r\n\n"),
    "data longer than size": (400, b"3\r\nabcd\r\n0\r\n\r\n"),
    "empty size": (400, b"\r\nabc\r\n"),
    "signed size": (400, b"+3\r\nabc\r\n0\r\n\r\n"),
    "0x size": (400, b"0x3\r\nabc\r\n0\r\n\r\n"),
    "space before size": (400, b" 3\r\nabc\r\n0\r\n\r\n"),
    "space after size": (400, b"3 \r\nabc\r\n0\r\n\r\n"),
    "size past 64 bits": (400, b"10000000000000003\r\nabc\r\n0\r\n\r\n"),
    "NUL in extension": (400, b"3;\x00\r\nabc\r\n0\r\n\r\n"),
    "long extension": (400, b"3;" + b"x" * 300 + b"\r\nabc\r\n0\r\n\r\n"),
    "many extensions": (400, (b"1;" + b"x" * 200 + b"\r\na\r\n") * 30),
    "bad trailer": (400, b"0\r\nX y\r\n\r\n"),
    "folded trailer": (400, b"0\r\nX: y\r\n z\r\n\r\n"),
    "endless trailers": (400, b"0\r\n" + b"X: y\r\n" * 2000),
    "too large": (413, b"800\r\n" + b"x" * 2048 + b"\r\n801\r\n" + b"x" * 2049 + b"\r\n0\r\n\r\n"),
}


def hostile_chunks(body: bytes) -> bytes:
    return request(b"POST / HTTP/1.1", b"Transfer-Encoding: chunked", body=body)


ALL_HOSTILE = HOSTILE | {name: (status, hostile_chunks(body)) for name, (status, body) in HOSTILE_CHUNKS.items()}


@pytest.mark.parametrize("raw", VALID.values(), ids=VALID)
def test_valid_requests_are_read_however_they_are_split(each_engine, read_requests, splits, raw):
    whole = read_requests(each_engine, [raw])
    assert len(whole) == 2
    assert whole[1] == "idle"
    for pieces in splits(raw):
        assert read_requests(each_engine, pieces) == whole


@pytest.mark.parametrize(("status", "raw"), ALL_HOSTILE.values(), ids=ALL_HOSTILE)
def test_hostile_requests_are_refused_however_they_are_split(each_engine, read_requests, splits, status, raw):
    whole = read_requests(each_engine, [raw])
    assert whole[-1][0] == status, whole
    assert len(whole) == 1
    for pieces in splits(raw):
        assert read_requests(each_engine, pieces) == whole


EVERYTHING = VALID | {name: raw for name, (_, raw) in ALL_HOSTILE.items()}


@pytest.mark.parametrize("raw", EVERYTHING.values(), ids=EVERYTHING)
def test_engines_read_requests_in_the_same_way(read_requests, raw):
    first, second = (read_requests(engine(name), [raw]) for name in ENGINES)
    assert first == second


def read_head(each_engine, read_requests, name) -> RequestHead:
    return read_requests(each_engine, [VALID[name]])[0][0]


def test_a_head_has_all_fields(each_engine, read_requests):
    head = read_head(each_engine, read_requests, "sized")
    assert head == RequestHead(
        method="POST",
        target=b"/https://a.example/b?c=%20d",
        headers=[(b"host", b"a"), (b"content-length", b"5")],
        http_version="1.1",
        keep_alive=True,
        expect_continue=False,
        content_length=5,
        chunked=False,
    )


def test_values_are_stripped_and_names_lowered(each_engine, read_requests):
    head = read_head(each_engine, read_requests, "odd values")
    assert head.headers[1:] == [(b"x-empty", b""), (b"x-tab", b"a \xe9 b"), (b"x!#$%&'*+-.^_`|~0", b"1")]


@pytest.mark.parametrize(
    ("name", "keep_alive"),
    [("get", True), ("close", False), ("http/1.0", False), ("http/1.0 kept", True), ("upgrade", True)],
)
def test_keep_alive_depends_on_version_and_connection_header(each_engine, read_requests, name, keep_alive):
    assert read_head(each_engine, read_requests, name).keep_alive is keep_alive


def test_expect_continue_is_read(each_engine, read_requests):
    assert read_head(each_engine, read_requests, "expect").expect_continue
    assert not read_head(each_engine, read_requests, "sized").expect_continue


def test_chunks_are_joined_and_their_extensions_and_trailers_dropped(each_engine, read_requests):
    assert read_requests(each_engine, [VALID["chunked"]])[0][1] == b"abc0123456789"
    head, body = read_requests(each_engine, [VALID["chunked with white space"]])[0]
    assert (dict(head.headers)[b"transfer-encoding"], body) == (b"chunked", b"abc")
    head, body = read_requests(each_engine, [VALID["trailers"]])[0]
    assert body == b"a"
    assert b"x-sum" not in dict(head.headers)


def test_pipelined_requests_are_read_one_after_another(each_engine, read_requests, splits):
    raw = VALID["sized"] + VALID["chunked"] + VALID["get"] + VALID["trailers"]
    whole = read_requests(each_engine, [raw])
    assert [outcome[1] for outcome in whole[:-1]] == [b"hello", b"abc0123456789", b"", b"a"]
    for pieces in splits(raw):
        assert read_requests(each_engine, pieces) == whole


def test_a_request_inside_a_body_stays_body(each_engine, read_requests):
    inner = VALID["get"]
    raw = request(b"POST / HTTP/1.1", b"Content-Length: %d" % len(inner), body=inner)
    assert [outcome[1] for outcome in read_requests(each_engine, [raw])[:-1]] == [inner]


def test_a_body_at_the_limit_is_accepted(each_engine, read_requests):
    raw = request(b"POST / HTTP/1.1", b"Content-Length: 4096", body=b"x" * 4096)
    assert len(read_requests(each_engine, [raw])[0][1]) == 4096
    chunked = hostile_chunks(b"1000\r\n" + b"x" * 4096 + b"\r\n0\r\n\r\n")
    assert len(read_requests(each_engine, [chunked])[0][1]) == 4096


def test_a_long_url_is_414(each_engine, read_requests):
    fits = request(b"GET /" + b"x" * 8191 + b" HTTP/1.1")
    too_long = request(b"GET /" + b"x" * 8192 + b" HTTP/1.1")
    assert read_requests(each_engine, [fits], max_head=32768)[-1] == "idle"
    assert read_requests(each_engine, [too_long], max_head=32768)[-1][0] == 414


def test_an_incomplete_request_has_no_head(each_engine, read_requests):
    raw = VALID["sized"]
    for cut in range(1, len(raw)):
        assert read_requests(each_engine, [raw[:cut]]) == ["started"]


def test_an_engine_is_chosen_by_name():
    assert best_engine() is engine("httptools")
    assert engine("h11").name == "h11"
    with pytest.raises(ValueError, match="no HTTP engine"):
        engine("nginx")
