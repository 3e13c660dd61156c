"""The status listener: reads only, for probes, scrapers and people on this machine. It shows no path of a target."""

from dataclasses import replace

from holdfast.http.codec import RequestHead
from holdfast.http.server import Request, Response, StreamingResponse
from holdfast.operate.insight import Insight
from holdfast.operate.page import page
from holdfast.operate.probes import Probes, refuse_body
from holdfast.operate.routing import Call, Route, Router, answer, problem

_BROWSERS_SAY = frozenset((b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"))
_UNSHARED = [(b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin")]
"""On every answer: a browser gives it to no page of another site, and takes it for nothing else than it is."""


class StatusListener:
    """Handler and gate of the status listener. `hosts` are the names that it answers to, lower case, without a port."""

    def __init__(self, insight: Insight, probes: Probes, hosts: frozenset[str]) -> None:
        self._insight = insight
        self.hosts = hosts
        self._router = Router(
            [
                Route("GET", "/", page),
                *probes.routes,
                Route("GET", "/status", self._status),
                Route("GET", "/circuits", self._circuits),
                Route("GET", "/circuits/{}", self._circuit),
                Route("GET", "/messages/{}", self._message),
                Route("GET", "/page.json", self._page_data),
            ]
        )

    def gate(self, head: RequestHead) -> None:
        """A page in a browser must not reach this, neither through a name that was pointed here nor from elsewhere."""
        said = {name: value.decode("latin-1").lower() for name, value in head.headers if name in _BROWSERS_SAY}
        host = said.get(b"host", "")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if name.strip("[]") not in self.hosts:
            raise problem(403, "wrong-host", f"This status listener does not answer to {host or 'no Host'}.")
        if _is_from_elsewhere(said, host):
            raise problem(403, "cross-site", "This status listener does not answer what a page of another site asks.")
        refuse_body(head)

    async def __call__(self, request: Request) -> Response | StreamingResponse:
        answered = await self._router(request)
        return replace(answered, headers=[*answered.headers, *_UNSHARED])

    async def _status(self, call: Call) -> Response:
        return answer(await self._insight.status())

    async def _circuits(self, call: Call) -> Response:
        return answer(await self._insight.circuits(call.query, masked=True))

    async def _circuit(self, call: Call) -> Response:
        return answer(await self._insight.circuit(call.name, masked=True))

    async def _message(self, call: Call) -> Response:
        return answer(await self._insight.message(call.name, masked=True))

    async def _page_data(self, call: Call) -> Response:
        return answer(self._insight.page())


def _is_from_elsewhere(said: dict[bytes, str], host: str) -> bool:
    """Whether a browser asks for a page of another origin. Following a link to here is allowed: the link's page sees
    nothing of the answer.
    """
    is_followed_link = said.get(b"sec-fetch-mode") == "navigate" and said.get(b"sec-fetch-dest") == "document"
    if said.get(b"sec-fetch-site", "none") not in ("none", "same-origin") and not is_followed_link:
        return True
    return b"origin" in said and said[b"origin"].partition("://")[2] != host
