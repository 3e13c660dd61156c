"""The four ways to name a target: a prefixed URL, a named route, a header, the proxy form.

They may be combined only if they agree.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from holdfast.config import Ingest, Route
from holdfast.ingest.refusals import (
    DOT_SEGMENTS,
    NO_TARGET,
    NOT_PROXIED,
    TWO_TARGETS,
    UNKNOWN_ROUTE,
    Refused,
)
from holdfast.ingest.sidecar import Sidecar
from holdfast.ingest.target import Target, make_target, matches_host, parse_target

ROUTE_PREFIX = b"/to/"

# Any scheme, so that a wrong one is told as such; one slash is what some clients make of two.
_PREFIXED = re.compile(rb"/([a-z][a-z0-9+.-]*):/{1,2}(.*)", re.IGNORECASE | re.DOTALL)

MOST_DECODINGS = 8

_CODE_POINT = re.compile(rb"%u([0-9a-f]{4})", re.IGNORECASE)
# ASCII in two, three or four bytes of UTF-8, as lenient decoders take it.
_OVERLONG = re.compile(rb"(?:([\xc0\xc1])|\xe0([\x80\x81])|\xf0\x80([\x80\x81]))([\x80-\xbf])")
# What normalisation and old code pages make of these.
_LOOKS_LIKE = str.maketrans(
    {
        **dict.fromkeys("．․﹒", "."),
        **dict.fromkeys("‥︰", ".."),
        **dict.fromkeys("／⁄∕", "/"),
        **dict.fromkeys("＼﹨∖", "\\"),
        **dict.fromkeys("；﹔", ";"),
        **dict.fromkeys("％﹪", "%"),
    }
)
# Among blanks, and up to what a receiver may cut off. Linear: a try begins at a separator and ends before the next one.
_DOT_SEGMENT = re.compile(r"(?:\A|[/\\])[\0-\x20\x7f]*\.[\0-\x20\x7f]*(?:\.[\0-\x20\x7f]*)?(?:\Z|[/\\;?#\0\r\n])")


class Named(NamedTuple):
    """A target, and the name of the route that led to it."""

    target: Target
    route: str | None


class Naming:
    def __init__(self, sidecar: Sidecar, ingest: Ingest, routes: Mapping[str, Route]) -> None:
        self._sidecar = sidecar
        self._ingest = ingest
        self._routes = {name.encode(): (name, route.url.encode()) for name, route in routes.items()}

    def resolve(self, url: bytes, header: bytes | None) -> Named:
        """What a request line's URL and `Holdfast-Target` name together."""
        absolute = None if url[:1] == b"/" else parse_target(url)
        if absolute is not None and not self._sidecar.is_target(absolute):
            named: Named | None = self._by_proxy(absolute)
        else:
            url = url if absolute is None else absolute.path
            named = self._by_path(url)
        if header is None:
            if named is None:
                raise Refused(NO_TARGET, self._the_four_ways())
            return named
        return self._with_header(url, named, parse_target(header))

    def _with_header(self, url: bytes, named: Named | None, by_header: Target) -> Named:
        if named is None and url != b"/":
            raise Refused(
                NO_TARGET,
                "With Holdfast-Target the request's path is / and has no query; put both into the header.",
            )
        if named is not None and named.target != by_header:
            raise Refused(TWO_TARGETS, "The URL and Holdfast-Target name different targets; leave one of them out.")
        return named or Named(by_header, None)

    def _by_path(self, url: bytes) -> Named | None:
        if url.startswith(ROUTE_PREFIX):
            return self._by_route(url[len(ROUTE_PREFIX) :])
        prefixed = _PREFIXED.fullmatch(url)
        if prefixed is None:
            return None
        return Named(parse_target(b"%s://%s" % prefixed.groups()), None)

    def _by_route(self, rest: bytes) -> Named:
        path, question_mark, query = rest.partition(b"?")
        name, slash, extra = path.partition(b"/")
        if name not in self._routes:
            shown = name.decode("latin-1")
            raise Refused(
                UNKNOWN_ROUTE,
                f'There is no route "{shown}"; name one of the [routes.NAME] in the config of this sidecar.',
            )
        if (b"." in extra or b"%" in extra) and _has_dot_segment(extra):
            raise Refused(
                DOT_SEGMENTS,
                "The path behind a route has a segment that a receiver may read as . or ..; write the path without it.",
            )
        route, base = self._routes[name]
        return Named(parse_target(_append(base, slash + extra, question_mark + query)), route)

    def _by_proxy(self, target: Target) -> Named:
        if not matches_host(target.host, self._ingest.proxy_hosts):
            raise Refused(
                NOT_PROXIED,
                f'"{target.host}" is not in ingest.proxy_hosts: add it there, or prefix the URL '
                f"as in http://{self._sidecar.listening}/{target.scheme}://{target.authority}/.",
            )
        if target.scheme == "http" and matches_host(target.host, self._ingest.upgrade_to_https):
            port = 443 if target.port == 80 else target.port
            target = make_target("https", target.host, port, target.path)
        return Named(target, None)

    def _the_four_ways(self) -> str:
        here = f"http://{self._sidecar.listening}"
        return (
            "The request names no target. Name it in one of four ways: "
            f"prefix the URL, {here}/https://api.example.com/hooks/7; "
            f"a route from the config, {here}/to/billing; "
            f"a header, {here}/ with Holdfast-Target: https://api.example.com/hooks/7; "
            f"or as HTTP proxy, http_proxy={here} for hosts in ingest.proxy_hosts."
        )


def _has_dot_segment(path: bytes) -> bool:
    """Whether there is a segment that some receiver reads as `.` or `..`: what is behind a route can't leave it.

    Receivers decode once or more, resolve dots before or after that, cut parameters off, and trim. What is a dot
    segment after some of this is one after all of it, so only the last reading is judged. What can be decoded even then
    is taken for one.
    """
    for _ in range(MOST_DECODINGS):
        path, before = _decoded(path), path
        if path == before:
            break
    else:
        return True
    text = path.decode("utf-8", "ignore")
    if not text.isascii():
        text = "".join(character for character in text if character.isascii() or character.isprintable())
    return _DOT_SEGMENT.search(text) is not None


def _decoded(path: bytes) -> bytes:
    """A path decoded once, with lookalikes as the characters that they stand for."""
    path = unquote_to_bytes(_CODE_POINT.sub(_encoded, path))
    if path.isascii():
        return path
    text = _OVERLONG.sub(_short_form, path).decode("utf-8", "surrogateescape")
    return text.translate(_LOOKS_LIKE).encode("utf-8", "surrogateescape")


def _encoded(found: re.Match[bytes]) -> bytes:
    return chr(int(found[1], 16)).encode("utf-8", "surrogatepass")


def _short_form(found: re.Match[bytes]) -> bytes:
    high = (found[1] or found[2] or found[3])[0] & 1
    return bytes((high << 6 | found[4][0] & 0x3F,))


def _append(base: bytes, extra: bytes, query: bytes) -> bytes:
    """A route's URL with what a request adds: `extra` begins with its slash, `query` with its mark."""
    location, mark, own_query = base.partition(b"?")
    if extra:
        location = location.removesuffix(b"/") + extra
    if own_query and len(query) > 1:
        return location + mark + own_query + b"&" + query[1:]
    return location + (mark + own_query if own_query or not query else query)
