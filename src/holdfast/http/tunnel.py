"""A tunnel through a forward proxy: one CONNECT over a connection to it, and what its answer means.

The proxy is asked for an address, never for a name: it must not resolve again what was resolved and checked here.
After a 2xx the connection is the target's. `ProxyError.here` tells a proxy that is of no use for any target (gone, not
HTTP, 407) from one that could not, or would not, reach this one.
"""

from __future__ import annotations

from contextlib import suppress
from http import HTTPStatus

from holdfast.http.codec import Engine, ResponseParser
from holdfast.http.connection import READ_SIZE, Dialled
from holdfast.http.errors import BadAnswer, ProxyError


async def open_tunnel(proxy: Dialled, target: str, authorization: bytes | None, engine: Engine) -> Dialled:
    """Goes on to `target`, an "ip:port", over a connection to a proxy, which is closed if that fails."""
    try:
        status = await _ask(proxy, target, _request(target, authorization), engine)
        if not 200 <= status <= 299:
            raise ProxyError(
                f"the proxy {proxy.address} answered {_named(status)}", target, here=status == 407, status=status
            )
    except BaseException:
        proxy.wire.close()
        raise
    return proxy._replace(address=target)


def _request(target: str, authorization: bytes | None) -> bytes:
    name = target.encode("ascii")
    credentials = b"proxy-authorization: %b\r\n" % authorization if authorization is not None else b""
    return b"CONNECT %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (name, name, credentials)


async def _ask(proxy: Dialled, target: str, request: bytes, engine: Engine) -> int:
    """The final status. What follows a 2xx would be the target's, which has not been asked anything yet."""
    # A 2xx to CONNECT has no body whatever it says, and of any other only the head is read: as if to HEAD.
    parser = ResponseParser(engine, max_body=0, to_head_request=True)
    detail = "closed the connection before its answer was complete"
    try:
        # A proxy that closed may have said why before.
        with suppress(OSError):
            await proxy.wire.send_all(request)
        while parser.head is None and (data := await proxy.wire.receive(READ_SIZE)):
            parser.feed(data)
    except OSError as error:
        detail = f"gave no answer: {error.strerror or error}"
    except BadAnswer as error:
        raise ProxyError(f"the proxy {proxy.address} does not speak HTTP: {error.detail}", target, here=True) from error
    if parser.head is None:
        raise ProxyError(f"the proxy {proxy.address} {detail}", target, here=True)
    status = parser.head.status
    if 200 <= status <= 299 and parser.leftover:
        detail = f"something came through the proxy {proxy.address} before anything was sent"
        raise ProxyError(detail, target, here=False, status=status)
    return status


def _named(status: int) -> str:
    """With our own words for it: what a proxy writes there can be anything."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
