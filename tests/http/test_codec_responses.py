"""How responses are parsed, by both engines."""

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
    "chunked with white space": (
        response(b"HTTP/1.1 500 Oh", b"Transfer-Encoding:\t CHUNKED \t", body=b"2\r\nhi\r\n0\r\n\r\n"),
        500,
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
    "101": response(b"HTTP/1.1 101 Switching Protocols", b"Connection: upgrade", b"Upgrade: x"),
    "1xx without end": response(b"HTTP/1.1 102 Processing") * 65,
    "head too large": response(b"HTTP/1.1 200 OK", b"X: " + b"y" * 65536),
    "too many headers": response(b"HTTP/1.1 200 OK", *[b"X: y"] * 257),
}

# Contradictory framing: the fields, the version, the bytes after the head, and the body that a 500 gets from them.
ODD = {
    "length and coding": (
        [b"Content-Length: 1", b"Transfer-Encoding: chunked"],
        b"1.1",
        b"2\r\nhi\r\n0\r\n\r\n",
        (b"hi", True),
    ),
    "chunked on 1.0": ([b"Transfer-Encoding: chunked"], b"1.0", b"2\r\nhi\r\n0\r\n\r\n", (b"hi", True)),
    "not chunked as it says": ([b"Content-Length: 2", b"Transfer-Encoding: chunked"], b"1.1", b"hi", (b"", False)),
    "a length twice": ([b"Content-Length: 2", b"content-length: 2"], b"1.1", b"hi", (b"hi", True)),
    "a list of one length": ([b"Content-Length: 2, 2"], b"1.1", b"hi", (b"hi", True)),
    "two lengths": ([b"Content-Length: 1", b"Content-Length: 2"], b"1.1", b"hi", (b"hi", False)),
    "bad length": ([b"Content-Length: -1"], b"1.1", b"hi", (b"hi", False)),
    "no length": ([b"Content-Length:"], b"1.1", b"hi", (b"hi", False)),
    "huge length": ([b"Content-Length: 9999999999999999999999"], b"1.1", b"hi", (b"hi", False)),
    "other coding": ([b"Transfer-Encoding: gzip, chunked"], b"1.1", b"hi", (b"hi", False)),
    "unknown coding": ([b"Transfer-Encoding: br", b"Content-Length: 2"], b"1.1", b"hi", (b"hi", False)),
    "chunked twice": ([b"Transfer-Encoding: chunked"] * 2, b"1.1", b"hi", (b"hi", False)),
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
def test_valid_responses_are_read_however_they_are_split(
    each_engine, read_response, splits, raw, status, body, complete, reusable
):
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
def test_garbage_is_refused_however_it_is_split(each_engine, read_response, splits, raw):
    whole = read_response(each_engine, [raw])
    assert whole[0] == "bad"
    for pieces in splits(raw):
        assert read_response(each_engine, pieces) == whole


@pytest.mark.parametrize(("raw", "body"), BROKEN_BODIES.values(), ids=BROKEN_BODIES)
def test_a_broken_body_keeps_the_head_and_the_part_before(each_engine, read_response, splits, raw, body):
    for pieces in [[raw], *splits(raw)]:
        head, read_body, complete, broken, _, reusable = read_response(each_engine, pieces)
        assert (head.status, read_body, complete, broken, reusable) == (200, body, False, True, False)


@pytest.mark.parametrize(("fields", "version", "rest", "read"), ODD.values(), ids=ODD)
@pytest.mark.parametrize("status", [b"200 OK", b"202 Accepted", b"500 Oh"])
def test_odd_framing_keeps_the_status_but_not_the_connection(
    each_engine, read_response, splits, fields, version, rest, read, status
):
    raw = response(b"HTTP/" + version + b" " + status, b"X: y", *fields, b"Retry-After: 7", body=rest)
    whole = read_response(each_engine, [raw])
    head, body, complete, broken, _, reusable = whole
    assert (head.status, reusable) == (int(status[:3]), False)
    assert head.headers == [(b"x", b"y"), (b"retry-after", b"7")]
    if status.startswith(b"5"):
        assert (body, complete) == read
    else:
        assert (body, complete, broken) == (b"", False, True), "the body of a success is not waited for"
    for pieces in splits(raw):
        assert read_response(each_engine, pieces) == whole


@pytest.mark.parametrize("options", [{"to_head_request": True}, {}], ids=["to HEAD", "204"])
def test_odd_framing_without_a_body_is_complete(each_engine, read_response, options):
    line = b"HTTP/1.1 200 OK" if options else b"HTTP/1.1 204 No Content"
    raw = response(line, b"Content-Length: 1", b"Content-Length: 2")
    *_, complete, broken, _, reusable = read_response(each_engine, [raw], **options)
    assert (complete, broken, reusable) == (True, False, False)


def test_an_odd_body_is_limited_like_any_other(each_engine, read_response):
    raw = response(b"HTTP/1.1 500 Oh", b"Content-Length: 1", b"Content-Length: 2", body=b"x" * 5000)
    _, body, complete, broken, _, _ = read_response(each_engine, [raw])
    assert (body, complete, broken) == (b"x" * 4096, False, True)


@pytest.mark.parametrize("raw", [raw for raw, *_ in VALID.values()] + list(GARBAGE.values()))
def test_engines_read_responses_in_the_same_way(read_response, raw):
    first, second = (read_response(engine(name), [raw]) for name in ENGINES)
    assert first == second


def test_the_end_completes_only_a_body_without_a_length(each_engine, read_response):
    *_, complete, broken, _, reusable = read_response(each_engine, [VALID["until close"][0]], end=True)
    assert (complete, broken, reusable) == (True, False, False)
    for name in ("sized", "chunked"):
        raw = VALID[name][0][:-1]
        head, _, complete, broken, _, reusable = read_response(each_engine, [raw], end=True)
        assert (head.status, complete, broken, reusable) == (200, False, True, False)


def test_an_incomplete_response_has_no_head(each_engine, read_response):
    raw = VALID["sized"][0]
    for cut in range(raw.index(b"\r\n\r\n") + 4):
        assert read_response(each_engine, [raw[:cut]], end=True)[0] is None


def test_a_response_to_head_has_no_body(each_engine, read_response):
    raw = response(b"HTTP/1.1 200 OK", b"Content-Length: 5")
    *_, complete, _, _, reusable = read_response(each_engine, [raw], to_head_request=True)
    assert (complete, reusable) == (True, True)
