"""The contract of response reading, held by both engines."""

import pytest

from holdfast.http.codec import ENGINES, engine


def response(line: bytes = b"HTTP/1.1 200 OK", *headers: bytes, body: bytes = b"") -> bytes:
    return line + b"\r\n" + b"".join(header + b"\r\n" for header in headers) + b"\r\n" + body


# name: raw, status, body, complete without the connection's end, reusable
VALID = {
    "sized": (response(b"HTTP/1.1 200 OK", b"Content-Length: 5", body=b"hello"), 200, b"hello", True, True),
    "chunked": (
        response(b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked", body=b"2;a=b\r\nhi\r\n0\r\nT: 1\r\n\r\n"),
        200,
        b"hi",
        True,
        True,
    ),
    "until close": (response(b"HTTP/1.1 200 OK", body=b"hello"), 200, b"hello", False, False),
    "204": (response(b"HTTP/1.1 204 No Content"), 204, b"", True, True),
    "304 with length": (response(b"HTTP/1.1 304 Not Modified", b"Content-Length: 5"), 304, b"", True, True),
    "close": (
        response(b"HTTP/1.1 200 OK", b"Connection: close", b"Content-Length: 2", body=b"ok"),
        200,
        b"ok",
        True,
        False,
    ),
    "http/1.0": (response(b"HTTP/1.0 200 OK", b"Content-Length: 2", body=b"ok"), 200, b"ok", True, False),
    "http/1.0 kept": (
        response(b"HTTP/1.0 200 OK", b"Connection: keep-alive", b"Content-Length: 2", body=b"ok"),
        200,
        b"ok",
        True,
        True,
    ),
    "no reason": (response(b"HTTP/1.1 200", b"Content-Length: 0"), 200, b"", True, True),
    "empty reason": (response(b"HTTP/1.1 200 ", b"Content-Length: 0"), 200, b"", True, True),
    "odd reason": (response(b"HTTP/1.1 299 \xe9t\xe9 \t!", b"Content-Length: 0"), 299, b"", True, True),
    "odd status": (response(b"HTTP/1.1 799 What", b"Content-Length: 0"), 799, b"", True, True),
    "1xx before": (
        response(b"HTTP/1.1 100 Continue")
        + response(b"HTTP/1.1 103 Early Hints", b"Link: x")
        + response(b"HTTP/1.1 201 Created", b"Content-Length: 1", body=b"x"),
        201,
        b"x",
        True,
        True,
    ),
    "redirect": (
        response(b"HTTP/1.1 302 Found", b"Location: http://169.254.169.254/", b"Content-Length: 0"),
        302,
        b"",
        True,
        True,
    ),
    "bytes after it": (
        response(b"HTTP/1.1 200 OK", b"Content-Length: 2", body=b"okHTTP/1.1 200 OK\r\n"),
        200,
        b"ok",
        True,
        False,
    ),
    "bytes after 204": (response(b"HTTP/1.1 204 No Content", body=b"x"), 204, b"", True, False),
}

GARBAGE = {
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "html": b"<html>\r\n\r\n",
    "lower case": b"http/1.1 200 OK\r\n\r\n",
    "HTTP/2": b"HTTP/2 200\r\n\r\n",
    "HTTP/0.9": b"HTTP/0.9 200 OK\r\n\r\n",
    "blank line first": b"\r\nHTTP/1.1 200 OK\r\n\r\n",
    "bare LF": b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
    "two digits": response(b"HTTP/1.1 20 OK"),
    "four digits": response(b"HTTP/1.1 2000 OK"),
    "status below 100": response(b"HTTP/1.1 099 OK"),
    "NUL in reason": response(b"HTTP/1.1 200 O\x00K"),
    "folded": response(b"HTTP/1.1 200 OK", b"X: y", b" z"),
    "space before colon": response(b"HTTP/1.1 200 OK", b"X : y"),
    "control in value": response(b"HTTP/1.1 200 OK", b"X: \x07"),
    "length and coding": response(b"HTTP/1.1 200 OK", b"Content-Length: 1", b"Transfer-Encoding: chunked"),
    "two lengths": response(b"HTTP/1.1 200 OK", b"Content-Length: 1", b"Content-Length: 2"),
    "bad length": response(b"HTTP/1.1 200 OK", b"Content-Length: -1"),
    "huge length": response(b"HTTP/1.1 200 OK", b"Content-Length: 9999999999999999999999"),
    "other coding": response(b"HTTP/1.1 200 OK", b"Transfer-Encoding: gzip, chunked"),
    "chunked on 1.0": response(b"HTTP/1.0 200 OK", b"Transfer-Encoding: chunked"),
    "101": response(b"HTTP/1.1 101 Switching Protocols", b"Connection: upgrade", b"Upgrade: x"),
    "1xx without end": response(b"HTTP/1.1 102 Processing") * 65,
    "head too large": response(b"HTTP/1.1 200 OK", b"X: " + b"y" * 65536),
    "too many headers": response(b"HTTP/1.1 200 OK", *[b"X: y"] * 257),
}

BROKEN_BODIES = {
    "bad chunk size": (response(b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked", body=b"2\r\nhi\r\nzz\r\n"), b"hi"),
    "bare LF in chunks": (response(b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked", body=b"2\r\nhi\n"), b"hi"),
    "over the limit": (response(b"HTTP/1.1 200 OK", b"Content-Length: 5000", body=b"x" * 4097), b"x" * 4096),
    "over the limit in chunks": (
        response(b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked", body=b"2000\r\n" + b"x" * 4097),
        b"x" * 4096,
    ),
    "over the limit until close": (response(b"HTTP/1.1 200 OK", body=b"x" * 4097), b"x" * 4096),
}


@pytest.mark.parametrize(("raw", "status", "body", "complete", "reusable"), VALID.values(), ids=VALID)
def test_valid_answers_however_they_are_cut(each_engine, read_response, splits, raw, status, body, complete, reusable):
    whole = read_response(each_engine, [raw])
    head, read_body, is_complete, broken, _, is_reusable = whole
    assert (head.status, read_body, is_complete, broken, is_reusable) == (
        status,
        body,
        complete,
        False,
        reusable,
    )
    for pieces in splits(raw):
        assert read_response(each_engine, pieces) == whole


@pytest.mark.parametrize("raw", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_refused_however_it_is_cut(each_engine, read_response, splits, raw):
    whole = read_response(each_engine, [raw])
    assert whole[0] == "bad"
    for pieces in splits(raw):
        assert read_response(each_engine, pieces) == whole


@pytest.mark.parametrize(("raw", "body"), BROKEN_BODIES.values(), ids=BROKEN_BODIES)
def test_a_broken_body_keeps_the_head_and_what_was_read(each_engine, read_response, splits, raw, body):
    for pieces in [[raw], *splits(raw)]:
        head, read_body, complete, broken, _, reusable = read_response(each_engine, pieces)
        assert (head.status, read_body, complete, broken, reusable) == (200, body, False, True, False)


@pytest.mark.parametrize("raw", [raw for raw, *_ in VALID.values()] + list(GARBAGE.values()))
def test_engines_read_the_same(read_response, raw):
    first, second = (read_response(engine(name), [raw]) for name in ENGINES)
    assert first == second


def test_the_end_completes_only_a_body_without_a_length(each_engine, read_response):
    *_, complete, broken, _, reusable = read_response(each_engine, [VALID["until close"][0]], end=True)
    assert (complete, broken, reusable) == (True, False, False)
    for name in ("sized", "chunked"):
        raw = VALID[name][0][:-1]
        head, _, complete, broken, _, reusable = read_response(each_engine, [raw], end=True)
        assert (head.status, complete, broken, reusable) == (200, False, True, False)


def test_the_end_within_a_head_leaves_no_head(each_engine, read_response):
    raw = VALID["sized"][0]
    for cut in range(raw.index(b"\r\n\r\n") + 4):
        assert read_response(each_engine, [raw[:cut]], end=True)[0] is None


def test_an_answer_to_head_has_no_body(each_engine, read_response):
    raw = response(b"HTTP/1.1 200 OK", b"Content-Length: 5")
    *_, complete, _, _, reusable = read_response(each_engine, [raw], to_head_request=True)
    assert (complete, reusable) == (True, True)
