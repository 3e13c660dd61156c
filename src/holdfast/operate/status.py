"""The status listener: reads only, for probes, scrapers and people on this machine. It shows no path of a target."""

from holdfast.http.codec import RequestHead
from holdfast.http.server import Request, Response, StreamingResponse
from holdfast.operate.insight import Insight
from holdfast.operate.routing import Call, Route, Router, answer, problem


class StatusListener:
    """Handler and gate of the status listener. `hosts` are the names that it answers to, lower case, without a port."""

    def __init__(self, insight: Insight, hosts: frozenset[str]) -> None:
        self._insight = insight
        self._hosts = hosts
        self._router = Router(
            [
                Route("GET", "/healthz", self._healthz),
                Route("GET", "/readyz", self._readyz),
                Route("GET", "/status", self._status),
                Route("GET", "/circuits", self._circuits),
                Route("GET", "/circuits/{}", self._circuit),
                Route("GET", "/messages/{}", self._message),
                Route("GET", "/page.json", self._page_data),
            ]
        )

    def gate(self, head: RequestHead) -> None:
        """A page in a browser must not reach this through a name that was pointed here."""
        host = next((value for name, value in head.headers if name == b"host"), b"").decode("latin-1").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if name.strip("[]") not in self._hosts:
            raise problem(403, "wrong-host", f"This status listener does not answer to {host or 'no Host'}.")

    async def __call__(self, request: Request) -> Response | StreamingResponse:
        return await self._router(request)

    async def _healthz(self, call: Call) -> Response:
        healthy, document = self._insight.health()
        return answer(document, 200 if healthy else 503)

    async def _readyz(self, call: Call) -> Response:
        ready, document = self._insight.readiness(strict="strict" in call.query)
        return answer(document, 200 if ready else 503)

    async def _status(self, call: Call) -> Response:
        return answer(await self._insight.status())

    async def _circuits(self, call: Call) -> Response:
        return answer(await self._insight.circuits(call.query))

    async def _circuit(self, call: Call) -> Response:
        return answer(await self._insight.circuit(call.name))

    async def _message(self, call: Call) -> Response:
        return answer(await self._insight.message(call.name, masked=True))

    async def _page_data(self, call: Call) -> Response:
        return answer(self._insight.page())
