"""Makes one attempt: writes the request, sends it through a transport, and turns the result into an Outcome.

Errors of the transport become outcomes here and nowhere else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import trio

from holdfast.core.errors import EgressDenied, NameNotResolved, SecretMissing
from holdfast.core.message import ErrorKind, Message, id_text
from holdfast.core.outcome import Outcome, is_success, of_answer, of_error
from holdfast.delivery.egress import ROUTE_ZONE
from holdfast.delivery.signing import SIGNED_HEADERS, Signer
from holdfast.delivery.tls import ClientCertificate
from holdfast.http.dial import Origin
from holdfast.http.exceptions import ConnectError, ExchangeError, ProxyError
from holdfast.http.transport import Answer

MAX_ORIGINS = 1024
"""Origins that are cached. Apps can name any number of them."""

_ALWAYS_WITH_LENGTH = frozenset({"POST", "PUT", "PATCH"})


class Carrier(Protocol):
    """The part of a transport that the courier needs."""

    async def exchange(self, origin: Origin, head: bytes, body: bytes, deadline: float) -> Answer: ...


@dataclass(frozen=True, slots=True)
class RouteTerms:
    """What a route changes for its messages. `host` is the route's own host:port.

    The egress exemption and the client certificate hold for that host only; the signature is on every message of the
    route.
    """

    host: str
    timeout: int | None = None
    signer: Signer | None = None
    certificate: ClientCertificate | None = None


class Courier:
    """Makes attempts, any number at once."""

    def __init__(self, carrier: Carrier, timeout: int, user_agent: str, routes: Mapping[str, RouteTerms]) -> None:
        self._carrier = carrier
        self.configure(timeout, user_agent, routes)

    def configure(self, timeout: int, user_agent: str, routes: Mapping[str, RouteTerms]) -> None:
        self._timeout = timeout
        self._user_agent = b"user-agent: " + user_agent.encode("latin-1") + b"\r\n"
        self._routes = routes
        self._origins: dict[tuple[str, str, str], Origin] = {}

    async def carry(self, message: Message, now: int, wall: int) -> Outcome:
        """Make one attempt, beginning `now`. `wall` is the same moment by the wall clock, like the receiver's: it is in
        the signature, and a Retry-After with a date is read by it.
        """
        route = self._routes.get(message.route) if message.route else None
        began = trio.current_time()
        deadline = began + ((route.timeout if route else None) or self._timeout) / 1000
        try:
            head = self._head(message, route, wall)
            answer = await self._carrier.exchange(self._origin(message, route), head, message.body, deadline)
        except ExchangeError as error:
            return _of_exchange_error(error)
        except EgressDenied as error:
            return of_error(ErrorKind.EGRESS_DENIED, str(error))
        except NameNotResolved as error:
            return of_error(ErrorKind.DNS, str(error), here=error.here)
        except SecretMissing as error:
            return of_error(ErrorKind.SECRET, f"the message could not be signed: {error}")
        if is_success(answer.status):
            return of_answer(answer.status, (), b"", answer.address, now, wall)
        took = int((trio.current_time() - began) * 1000)
        return of_answer(answer.status, answer.headers, answer.body, answer.address, now + took, wall + took)

    def _origin(self, message: Message, route: RouteTerms | None) -> Origin:
        zone = ""
        if route is not None and route.host == message.host:
            zone = route.certificate.zone if route.certificate is not None else ROUTE_ZONE
        key = message.scheme, message.host, zone
        origin = self._origins.get(key)
        if origin is None:
            if len(self._origins) >= MAX_ORIGINS:
                self._origins.clear()
            origin = self._origins[key] = _read_origin(*key)
        return origin

    def _head(self, message: Message, route: RouteTerms | None, wall: int) -> bytes:
        headers = message.headers
        signer = route.signer if route is not None else None
        if signer is not None:
            headers = tuple(header for header in headers if header[0] not in SIGNED_HEADERS)
        elif message.signed and route is None:
            raise SecretMissing(f'it was accepted for the signed route "{message.route}", now gone from the config')
        given = dict(headers)
        parts = [
            b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (message.method.encode(), message.path, message.authority.encode())
        ]
        parts += [name + b": " + value + b"\r\n" for name, value in headers]
        id = given.get(b"webhook-id")
        if id is None:
            id = id_text(message.id).encode()
            parts.append(b"webhook-id: %b\r\n" % id)
        if signer is not None:
            parts.append(signer.headers(id, wall, message.body))
        if b"user-agent" not in given:
            parts.append(self._user_agent)
        if message.body or message.method in _ALWAYS_WITH_LENGTH:
            parts.append(b"content-length: %d\r\n" % len(message.body))
        parts.append(b"\r\n")
        return b"".join(parts)


def _read_origin(scheme: str, name: str, zone: str) -> Origin:
    host, _, port = name.rpartition(":")
    return Origin(scheme, host.strip("[]"), int(port), zone)


def _of_exchange_error(error: ExchangeError) -> Outcome:
    number = error.errno if isinstance(error, ConnectError) else None
    here = isinstance(error, ProxyError) and error.here
    return of_error(ErrorKind(error.kind), error.detail, address=error.address, number=number, here=here)
