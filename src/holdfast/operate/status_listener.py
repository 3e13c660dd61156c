"""The status listener and the probe listener: read-only, for probes, scrapers, and people with a browser.

Neither shows the path of a target. The probe listener answers anyone: it names no message, and a host only while its
circuit is not enabled.

The page is one static file with a strict content security policy. The policy names the page's style and script by their
hashes, so text from receivers and apps can never run as code. Trusted types forbid the page to turn text into markup.
"""

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path

from holdfast.http.codec import RequestHead
from holdfast.http.request_response import Request, Response, StreamingResponse
from holdfast.operate.gateway_queries import Queries
from holdfast.operate.metrics import CONTENT_TYPE, Metrics
from holdfast.operate.routing import Call, Route, Router, answer, problem

_BROWSER_HEADERS = frozenset((b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"))
_NOT_SHARED = [(b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin")]
"""On every answer: browsers do not guess its type, and do not give it to pages of other sites."""


def refuse_body(head: RequestHead) -> None:
    """For read-only listeners: a body that never ends would occupy a connection."""
    if head.chunked or head.content_length:
        raise problem(413, "body-not-taken", "Nothing here takes a body; send the request without one.")


class HealthRoutes:
    """Health, readiness and metrics, for both listeners."""

    def __init__(self, queries: Queries, metrics: Metrics) -> None:
        self._queries = queries
        self._metrics = metrics
        self.routes = [
            Route("GET", "/healthz", self._healthz),
            Route("GET", "/readyz", self._readyz),
            Route("GET", "/metrics", self._scrape),
        ]

    async def _healthz(self, call: Call) -> Response:
        healthy, document = self._queries.health()
        return answer(document, 200 if healthy else 503)

    async def _readyz(self, call: Call) -> Response:
        ready, document = self._queries.readiness(strict="strict" in call.query)
        return answer(document, 200 if ready else 503)

    async def _scrape(self, call: Call) -> Response:
        return Response(200, [(b"content-type", CONTENT_TYPE)], await self._metrics.scrape())


class StatusListener:
    """Handler and gate of the status listener. It answers to the names in `hosts`: lower case, without a port."""

    def __init__(self, queries: Queries, health: HealthRoutes, hosts: frozenset[str]) -> None:
        self._queries = queries
        self.hosts = hosts
        self._router = Router(
            [
                Route("GET", "/", self._page),
                *health.routes,
                Route("GET", "/status", self._status),
                Route("GET", "/circuits", self._circuits),
                Route("GET", "/circuits/{}", self._circuit),
                Route("GET", "/messages/{}", self._message),
                Route("GET", "/page.json", self._page_data),
            ]
        )

    def gate(self, head: RequestHead) -> None:
        """Refuse pages of other sites, and requests by a foreign name that resolves to this machine."""
        given = {name: value.decode("latin-1").lower() for name, value in head.headers if name in _BROWSER_HEADERS}
        host = given.get(b"host", "")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if name.strip("[]") not in self.hosts:
            raise problem(403, "wrong-host", f"This status listener does not answer to {host or 'no Host'}.")
        if _is_cross_site(given, host):
            raise problem(403, "cross-site", "This status listener does not answer requests from pages of other sites.")
        refuse_body(head)

    async def __call__(self, request: Request) -> Response | StreamingResponse:
        answered = await self._router(request)
        return replace(answered, headers=[*answered.headers, *_NOT_SHARED])

    async def _page(self, call: Call) -> Response:
        return PAGE

    async def _status(self, call: Call) -> Response:
        return answer(await self._queries.status())

    async def _circuits(self, call: Call) -> Response:
        return answer(await self._queries.circuits(call.query, masked=True))

    async def _circuit(self, call: Call) -> Response:
        return answer(await self._queries.circuit(call.name, masked=True))

    async def _message(self, call: Call) -> Response:
        return answer(await self._queries.message(call.name, masked=True))

    async def _page_data(self, call: Call) -> Response:
        return answer(self._queries.page())


def _is_cross_site(given: dict[bytes, str], host: str) -> bool:
    """Whether a page of another origin sends this request. Links to here are allowed: the linking page can't read the
    answer.
    """
    is_followed_link = given.get(b"sec-fetch-mode") == "navigate" and given.get(b"sec-fetch-dest") == "document"
    if given.get(b"sec-fetch-site", "none") not in ("none", "same-origin") and not is_followed_link:
        return True
    return b"origin" in given and given[b"origin"].partition("://")[2] != host


_HTML = Path(__file__).with_name("page.html").read_bytes()


def _hash(tag: bytes) -> str:
    """The hash of the only inline block of this tag, in the form that a policy needs."""
    (block,) = re.findall(rb"<%s>(.*?)</%s>" % (tag, tag), _HTML, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(block).digest()).decode()}'"


_POLICY = "; ".join(
    [
        "default-src 'none'",
        "connect-src 'self'",
        "img-src data:",  # the tab's icon, which shows the state
        f"style-src {_hash(b'style')}",
        f"script-src {_hash(b'script')}",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)

PAGE = Response(
    200,
    [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", _POLICY.encode()),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-cache"),
    ],
    _HTML,
)
