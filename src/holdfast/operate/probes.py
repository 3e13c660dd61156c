"""Health, readiness and metrics: what the probe listener serves, to anyone who reaches it, and the status listener too.

Nothing here names a message, and a host only while its circuit is not enabled.
"""

from holdfast.http.codec import RequestHead
from holdfast.http.server import Response
from holdfast.operate.insight import Insight
from holdfast.operate.metrics import CONTENT_TYPE, Metrics
from holdfast.operate.routing import Call, Route, answer, problem


def refuse_body(head: RequestHead) -> None:
    """For listeners that are only read from: a body that never ends would keep a place there."""
    if head.chunked or head.content_length:
        raise problem(413, "body-not-taken", "Nothing here takes a body; send the request without one.")


class Probes:
    def __init__(self, insight: Insight, metrics: Metrics) -> None:
        self._insight = insight
        self._metrics = metrics
        self.routes = [
            Route("GET", "/healthz", self._healthz),
            Route("GET", "/readyz", self._readyz),
            Route("GET", "/metrics", self._scrape),
        ]

    async def _healthz(self, call: Call) -> Response:
        healthy, document = self._insight.health()
        return answer(document, 200 if healthy else 503)

    async def _readyz(self, call: Call) -> Response:
        ready, document = self._insight.readiness(strict="strict" in call.query)
        return answer(document, 200 if ready else 503)

    async def _scrape(self, call: Call) -> Response:
        return Response(200, [(b"content-type", CONTENT_TYPE)], await self._metrics.scrape())
