"""The status listener: reads only, for probes, scrapers and people on this machine. It shows no path of a target."""

from holdfast.http.codec import RequestHead
from holdfast.http.server import Request, Response, StreamingResponse
from holdfast.operate.insight import Insight
from holdfast.operate.page import page
from holdfast.operate.probes import Probes
from holdfast.operate.routing import Call, Route, Router, answer, problem


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
        """A page in a browser must not reach this through a name that was pointed here."""
        host = next((value for name, value in head.headers if name == b"host"), b"").decode("latin-1").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if name.strip("[]") not in self.hosts:
            raise problem(403, "wrong-host", f"This status listener does not answer to {host or 'no Host'}.")

    async def __call__(self, request: Request) -> Response | StreamingResponse:
        return await self._router(request)

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
