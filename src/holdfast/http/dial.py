"""How a connection is opened: to an address, to the first of several that answers, or through a forward proxy.

A proxy gets an address to connect to, never a name: it must not resolve again what was resolved and checked here.
After a 2xx the connection leads to the target.
"""

import errno
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any, NamedTuple

import trio

from holdfast.http.codec import HeadEngine, ResponseParser
from holdfast.http.exceptions import BadAnswer, ConnectError, ProxyError, Stage
from holdfast.http.wire import Wire

READ_SIZE = 16384

_NO_ROUTE = frozenset({errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})

Address = tuple[socket.AddressFamily, tuple[Any, ...]]


class Origin(NamedTuple):
    """Where requests go. `host` is an ASCII name or a literal address without brackets.

    Connections of different zones are never shared. A client certificate, for example, has a zone of its own.
    """

    scheme: str
    host: str
    port: int
    zone: str = ""


class Dialled(NamedTuple):
    """An open connection and its remote address, "ip:port"."""

    wire: Wire
    address: str


Progress = Callable[[str, Stage], None]
"""Called with the address that is being dialled, and the stage that this has reached. May raise AddressBusy."""

Dial = Callable[[Origin, Sequence[Address], float, Progress], Awaitable[Dialled]]
"""Opens a connection to one of the addresses of an origin, by a deadline."""


async def connect_directly(
    origin: Origin, addresses: Sequence[Address], deadline: float, progress: Progress
) -> Dialled:
    return await connect(addresses, deadline, progress)


async def connect(addresses: Sequence[Address], deadline: float, progress: Progress) -> Dialled:
    async def dial_one(address: Address, until: float) -> Dialled:
        family, name = address
        progress(format_address(name), "connect")
        try:
            return await _connect_one(family, name)
        except OSError as error:
            text = os.strerror(error.errno) if error.errno else str(error)
            raise ConnectError(text, format_address(name), error.errno) from error

    return await dial_first_reachable(addresses, deadline, dial_one)


async def dial_first_reachable(
    addresses: Sequence[Address], deadline: float, dial_one: Callable[[Address, float], Awaitable[Dialled]]
) -> Dialled:
    """Dials the addresses in turn. Each gets an equal share of the remaining time, the last one all of it.

    If none answers, the last error is raised. An error that means "no route" never replaces one from an address that
    could be reached. A proxy that is itself at fault ends the loop: it would fail for every address.
    """
    failure: ConnectError | ProxyError | None = None
    for position, address in enumerate(addresses):
        others = len(addresses) - position - 1
        now = trio.current_time()
        until = now + (deadline - now) / (others + 1)
        try:
            if not others:
                return await dial_one(address, deadline)
            with trio.move_on_at(until):
                return await dial_one(address, until)
            late = "the connection was not established in time"
            failure = ConnectError(late, format_address(address[1]), errno.ETIMEDOUT)
        except ConnectError as error:
            if failure is None or error.errno not in _NO_ROUTE:
                failure = error
        except ProxyError as error:
            if error.here:
                raise
            failure = error
    try:
        raise failure or ConnectError("there is no address to connect to")
    finally:
        del failure  # the error holds this frame: a reference back would keep the whole exchange until a collection


async def _connect_one(family: socket.AddressFamily, name: tuple[Any, ...]) -> Dialled:
    sock = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await sock.connect(name)
        address = format_address(sock.getpeername())
        return Dialled(Wire.from_trio(sock), address)
    except BaseException:
        sock.close()
        raise


def format_address(name: tuple[Any, ...]) -> str:
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def open_tunnel(proxy: Dialled, target: str, authorization: bytes | None, engine: HeadEngine) -> Dialled:
    """Turns a connection to a proxy into one to `target` ("ip:port"), by CONNECT. Closes it if that fails.

    Raises ProxyError. Its `here` is true if the proxy can serve no target: unreachable, not HTTP, 407.
    """
    try:
        status = await _request_tunnel(proxy, target, authorization, engine)
        if not 200 <= status <= 299:
            text = f"the proxy {proxy.address} answered {_status_text(status)}"
            raise ProxyError(text, target, here=status == 407, status=status)
    except BaseException:
        proxy.wire.close()
        raise
    return proxy._replace(address=target)


async def _request_tunnel(proxy: Dialled, target: str, authorization: bytes | None, engine: HeadEngine) -> int:
    """Sends CONNECT and returns the final status."""
    name = target.encode("ascii")
    credentials = b"proxy-authorization: %b\r\n" % authorization if authorization is not None else b""
    # A 2xx to CONNECT has no body, and of other answers only the head is needed: the same as for HEAD.
    parser = ResponseParser(engine, max_body=0, to_head_request=True)
    detail = "closed the connection before its answer was complete"
    try:
        # A proxy that closed the connection may have sent an answer before.
        with suppress(OSError):
            await proxy.wire.send_all(b"CONNECT %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (name, name, credentials))
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
        # The target would have sent this, but no request has reached it yet.
        detail = f"something came through the proxy {proxy.address} before anything was sent"
        raise ProxyError(detail, target, here=False, status=status)
    return status


def _status_text(status: int) -> str:
    """Never the proxy's own reason phrase, which can be anything."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
