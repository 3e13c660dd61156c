"""The four forms in which a request names its target: a prefixed URL, a route, a header, the proxy form.

A request may use several of them only if they name the same target.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from holdfast.config import IngestSettings, RouteSettings
from holdfast.config.hosts import ascii_name
from holdfast.core import target as grammar
from holdfast.core.target import BadTarget, Target, make_target, matches_host
from holdfast.ingest.access import OwnAddress
from holdfast.ingest.refusals import (
    BAD_TARGET,
    DOT_SEGMENTS,
    NO_TARGET,
    NOT_PROXIED,
    TWO_TARGETS,
    UNKNOWN_ROUTE,
    Refused,
)

ROUTE_PREFIX = b"/to/"

# Any scheme, so that a wrong one gets its own refusal. Some clients turn two slashes into one.
_PREFIXED = re.compile(rb"/([a-z][a-z0-9+.-]*):/{1,2}(.*)", re.IGNORECASE | re.DOTALL)

MAX_DECODINGS = 8

_CODE_POINT = re.compile(rb"%u([0-9a-f]{4})", re.IGNORECASE)
# ASCII in two, three or four bytes of UTF-8, which lenient decoders accept.
_OVERLONG = re.compile(rb"(?:([\xc0\xc1])|\xe0([\x80\x81])|\xf0\x80([\x80\x81]))([\x80-\xbf])")
# Normalisation and old code pages turn these characters into ASCII.
_LOOKALIKES = str.maketrans(
    {
        **dict.fromkeys("．․﹒", "."),
        **dict.fromkeys("‥︰", ".."),
        **dict.fromkeys("／⁄∕", "/"),
        **dict.fromkeys("＼﹨∖", "\\"),
        **dict.fromkeys("；﹔", ";"),
        **dict.fromkeys("％﹪", "%"),
    }
)
# With blanks around the dots, and up to a character where a receiver may cut the segment. Takes linear time: a match
# starts at a separator and ends before the next one.
_DOT_SEGMENT = re.compile(r"(?:\A|[/\\])[\0-\x20\x7f]*\.[\0-\x20\x7f]*(?:\.[\0-\x20\x7f]*)?(?:\Z|[/\\;?#\0\r\n])")


class NamedTarget(NamedTuple):
    """A target, and the name of its route."""

    target: Target
    route: str | None


class TargetForms:
    def __init__(self, own_address: OwnAddress, ingest: IngestSettings, routes: Mapping[str, RouteSettings]) -> None:
        self._own_address = own_address
        self._ingest = ingest
        self._routes = {name.encode(): (name, route.url.encode()) for name, route in routes.items()}

    def resolve(self, url: bytes, header: bytes | None) -> NamedTarget:
        """Returns the target of a request line's URL and `Holdfast-Target`. Raises Refused."""
        absolute = None if url[:1] == b"/" else parse_target(url)
        if absolute is not None and not self._own_address.is_target(absolute):
            named: NamedTarget | None = self._by_proxy(absolute)
        else:
            url = url if absolute is None else absolute.path
            named = self._by_path(url)
        if header is None:
            if named is None:
                raise Refused(NO_TARGET, self._explain_forms())
            return named
        return self._with_header(url, named, parse_target(header))

    def _with_header(self, url: bytes, named: NamedTarget | None, by_header: Target) -> NamedTarget:
        if named is None and url != b"/":
            raise Refused(
                NO_TARGET,
                "With Holdfast-Target the request's path is / and has no query; put both into the header.",
            )
        if named is not None and named.target != by_header:
            raise Refused(TWO_TARGETS, "The URL and Holdfast-Target name different targets; leave one of them out.")
        return named or NamedTarget(by_header, None)

    def _by_path(self, url: bytes) -> NamedTarget | None:
        if url.startswith(ROUTE_PREFIX):
            return self._by_route(url[len(ROUTE_PREFIX) :])
        prefixed = _PREFIXED.fullmatch(url)
        if prefixed is None:
            return None
        return NamedTarget(parse_target(b"%s://%s" % prefixed.groups()), None)

    def _by_route(self, rest: bytes) -> NamedTarget:
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
        return NamedTarget(parse_target(_append(base, slash + extra, question_mark + query)), route)

    def _by_proxy(self, target: Target) -> NamedTarget:
        if not matches_host(target.host, self._ingest.proxy_hosts):
            raise Refused(
                NOT_PROXIED,
                f'"{target.host}" is not in ingest.proxy_hosts: add it there, or prefix the URL '
                f"as in http://{self._own_address.listening}/{target.scheme}://{target.authority}/.",
            )
        if target.scheme == "http" and matches_host(target.host, self._ingest.upgrade_to_https):
            port = 443 if target.port == 80 else target.port
            target = make_target("https", target.host, port, target.path)
        return NamedTarget(target, None)

    def _explain_forms(self) -> str:
        here = f"http://{self._own_address.listening}"
        return (
            "The request names no target. Name it in one of four ways: "
            f"prefix the URL, {here}/https://api.example.com/hooks/7; "
            f"a route from the config, {here}/to/billing; "
            f"a header, {here}/ with Holdfast-Target: https://api.example.com/hooks/7; "
            f"or as HTTP proxy, http_proxy={here} for hosts in ingest.proxy_hosts."
        )


def parse_target(url: bytes | str) -> Target:
    """The target that a URL names, or Refused with what to change."""
    try:
        return grammar.parse_target(url, ascii_name)
    except BadTarget as error:
        raise Refused(BAD_TARGET, f"The target {error}.") from None


def _has_dot_segment(path: bytes) -> bool:
    """Whether some receiver may read a segment as `.` or `..`: a path behind a route must not leave the route.

    Receivers decode once or more, resolve dots before or after that, cut parameters off, and trim. A dot segment after
    some of these steps is also one after all of them, so only the last reading is judged. A path that can still be
    decoded after `MAX_DECODINGS` steps counts as having one.
    """
    for _ in range(MAX_DECODINGS):
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
    """Decodes a path once, and replaces lookalike characters."""
    path = unquote_to_bytes(_CODE_POINT.sub(_encoded, path))
    if path.isascii():
        return path
    text = _OVERLONG.sub(_short_form, path).decode("utf-8", "surrogateescape")
    return text.translate(_LOOKALIKES).encode("utf-8", "surrogateescape")


def _encoded(found: re.Match[bytes]) -> bytes:
    return chr(int(found[1], 16)).encode("utf-8", "surrogatepass")


def _short_form(found: re.Match[bytes]) -> bytes:
    high = (found[1] or found[2] or found[3])[0] & 1
    return bytes((high << 6 | found[4][0] & 0x3F,))


def _append(base: bytes, extra: bytes, query: bytes) -> bytes:
    """Adds path and query to the URL of a route. `extra` starts with its slash, `query` with its question mark."""
    location, mark, own_query = base.partition(b"?")
    if extra:
        location = location.removesuffix(b"/") + extra
    if own_query and len(query) > 1:
        return location + mark + own_query + b"&" + query[1:]
    return location + (mark + own_query if own_query or not query else query)
