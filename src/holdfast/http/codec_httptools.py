"""The fast engine: httptools, a binding of Node's llhttp."""

import httptools

from holdfast.http.request_response import Headers


class _HeadCollector:
    """Receives one head from a parser."""

    __slots__ = ("headers", "target")

    def __init__(self) -> None:
        self.target = b""
        self.headers: Headers = []

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value.rstrip(b" \t")))


class HttptoolsEngine:
    name = "httptools"

    def read_request(self, raw: bytes) -> tuple[str, bytes, Headers]:
        collector = _HeadCollector()
        parser = httptools.HttpRequestParser(collector)
        _feed(parser, raw)
        return parser.get_method().decode("ascii"), collector.target, collector.headers

    def read_response(self, raw: bytes) -> Headers:
        collector = _HeadCollector()
        _feed(httptools.HttpResponseParser(collector), raw)
        return collector.headers


def _feed(parser: httptools.HttpRequestParser | httptools.HttpResponseParser, raw: bytes) -> None:
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        # CONNECT or an Upgrade header: the head is complete, and the rest is not for this engine.
        pass
    except httptools.HttpParserError as error:
        raise ValueError(str(error)) from error


ENGINE = HttptoolsEngine()
