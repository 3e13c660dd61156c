"""The transport for httpx clients, for use outside of the hot path."""

import math

import httpx
import trio

from holdfast.http.dial import Origin
from holdfast.http.exceptions import (
    BadAnswer,
    ConnectError,
    ConnectionReset,
    ExchangeError,
    ExchangeTimeout,
    ProxyError,
    TlsError,
)
from holdfast.http.transport import Transport

_DEFAULT_PORTS = {"http": 80, "https": 443}


class HttpxTransport(httpx.AsyncBaseTransport):
    """Uses the largest of httpx's four timeouts as the total deadline."""

    def __init__(self, transport: Transport, zone: str = "") -> None:
        self._transport = transport
        self._zone = zone

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.scheme not in _DEFAULT_PORTS:
            raise httpx.UnsupportedProtocol(f"the scheme must be http or https, not {request.url.scheme!r}")
        port = request.url.port or _DEFAULT_PORTS[request.url.scheme]
        origin = Origin(request.url.scheme, request.url.raw_host.decode("ascii").strip("[]"), port, self._zone)
        body = await request.aread()
        try:
            answer = await self._transport.exchange(origin, _head(request, body), body, _deadline(request))
        except ExchangeError as error:
            raise _translated(error, request) from error
        if not answer.complete:
            raise httpx.RemoteProtocolError("the body of the answer was cut off or too large", request=request)
        return httpx.Response(
            answer.status,
            headers=answer.headers,
            content=answer.body,
            extensions={"address": answer.address, "reused": answer.reused},
        )

    async def aclose(self) -> None:
        await self._transport.aclose()


def _head(request: httpx.Request, body: bytes) -> bytes:
    lines = [b"%s %s HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    chunked = "transfer-encoding" in request.headers
    for name, value in request.headers.raw:
        if name.lower() != b"transfer-encoding":
            lines.append(b"%s: %s" % (name, value))
    if chunked:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join([*lines, b"", b""])


def _deadline(request: httpx.Request) -> float:
    timeouts = request.extensions.get("timeout", {}).values()
    seconds = max((math.inf if timeout is None else timeout for timeout in timeouts), default=math.inf)
    return trio.current_time() + seconds


def _translated(error: ExchangeError, request: httpx.Request) -> httpx.TransportError:
    match error:
        case ExchangeTimeout(stage="resolve" | "connect" | "proxy" | "tls"):
            kind: type[httpx.TransportError] = httpx.ConnectTimeout
        case ExchangeTimeout(stage="send"):
            kind = httpx.WriteTimeout
        case ExchangeTimeout():
            kind = httpx.ReadTimeout
        case ProxyError():
            kind = httpx.ProxyError
        case ConnectError() | TlsError():
            kind = httpx.ConnectError
        case BadAnswer() | ConnectionReset():
            kind = httpx.RemoteProtocolError
        case _:
            kind = httpx.TransportError
    return kind(str(error), request=request)
