"""The cache of parsed heads."""

import pytest

from holdfast.http.codec import MAX_CACHED_HEAD_SIZE, MAX_CACHED_HEADS, HeadCache, RequestParser, ResponseParser
from holdfast.http.exceptions import ProtocolError


def request(parser: RequestParser, raw: bytes) -> object:
    parser.feed(raw)
    read = parser.head, parser.body
    parser.next_message()
    return read


def test_a_cached_head_is_used_with_another_body(each_engine):
    head_cache = HeadCache()
    for _ in range(2):
        parser = RequestParser(each_engine, max_head=9_000, max_headers=9, max_body=99, head_cache=head_cache)
        for body in (b"one", b"two"):
            head, got = request(parser, b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nX-Y: z\r\n\r\n" + body)
            assert (head.method, head.target, head.content_length, got) == ("POST", b"/a", 3, body)
            assert head.headers == [(b"host", b"a"), (b"content-length", b"3"), (b"x-y", b"z")]
    assert len(head_cache._heads) == 1


def test_a_refused_head_is_refused_again(each_engine):
    head_cache = HeadCache()
    for _ in range(3):
        parser = RequestParser(each_engine, max_head=9_000, max_headers=9, max_body=2, head_cache=head_cache)
        with pytest.raises(ProtocolError, match="larger than 2"):
            parser.feed(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n")


def test_a_cached_response_head_serves_get_and_head(each_engine):
    head_cache, raw = HeadCache(), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
    for to_head, rest in ((True, b""), (False, b"ok"), (True, b"")):
        parser = ResponseParser(each_engine, max_body=9, to_head_request=to_head, head_cache=head_cache)
        parser.feed(raw + rest)
        assert (parser.head.status, parser.headers, parser.body) == (200, [(b"content-length", b"2")], rest)
        assert parser.complete
        assert parser.reusable


def test_the_cache_is_bounded():
    head_cache: HeadCache[int] = HeadCache()
    for number in range(3 * MAX_CACHED_HEADS):
        head_cache.keep(b"%d" % number, number)
        assert head_cache.find(b"%d" % number) == number
        assert len(head_cache._heads) <= MAX_CACHED_HEADS
    head_cache.keep(b"x" * (MAX_CACHED_HEAD_SIZE + 1), 1)
    assert head_cache.find(b"x" * (MAX_CACHED_HEAD_SIZE + 1)) is None
