"""One attempt from start to outcome: writes the request, has it carried, and says what the end of it means.

Foreign errors are mapped to an Outcome here and only here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import trio

from holdfast.core.errors import EgressDenied, NameNotResolved
from holdfast.core.message import ErrorKind, Message, id_text
from holdfast.core.outcome import Outcome, of_answer, of_error
from holdfast.delivery.egress import ROUTE_ZONE
from holdfast.http.errors import ConnectError, ExchangeError
from holdfast.http.transport import Answer, Origin

_ALWAYS_WITH_LENGTH = frozenset({"POST", "PUT", "PATCH"})


class Carrier(Protocol):
    """What the courier needs of a transport."""

    async def exchange(self, origin: Origin, head: bytes, body: bytes, deadline: float) -> Answer: ...


@dataclass(frozen=True, slots=True)
class RouteTerms:
    """What a route changes for its messages: `host` is the route's own host:port, whose exemption it has."""

    host: str
    timeout: int | None = None


class Courier:
    """Carries messages, one attempt at a time and any number at once."""

    def __init__(self, carrier: Carrier, *, timeout: int, user_agent: str, routes: Mapping[str, RouteTerms]) -> None:
        self._carrier = carrier
        self.configure(timeout=timeout, user_agent=user_agent, routes=routes)

    def configure(self, *, timeout: int, user_agent: str, routes: Mapping[str, RouteTerms]) -> None:
        self._timeout = timeout
        self._user_agent = b"user-agent: " + user_agent.encode("latin-1") + b"\r\n"
        self._routes = routes

    async def carry(self, message: Message, now: int) -> Outcome:
        """Make one attempt. `now` is its start, which a Retry-After in seconds counts from."""
        origin, timeout = self._terms(message)
        began = trio.current_time()
        try:
            answer = await self._carrier.exchange(origin, self._head(message), message.body, began + timeout / 1000)
        except ExchangeError as error:
            return _of_exchange_error(error)
        except EgressDenied as error:
            return of_error(ErrorKind.EGRESS_DENIED, str(error))
        except NameNotResolved as error:
            return of_error(ErrorKind.DNS, str(error), here=error.here)
        ended = now + int((trio.current_time() - began) * 1000)
        return of_answer(answer.status, answer.headers, answer.body, answer.address, ended)

    def _terms(self, message: Message) -> tuple[Origin, int]:
        host, _, port = message.host.rpartition(":")
        route = self._routes.get(message.route) if message.route else None
        exempt = route is not None and route.host == message.host
        origin = Origin(message.scheme, host.strip("[]"), int(port), ROUTE_ZONE if exempt else "")
        return origin, (route.timeout if route else None) or self._timeout

    def _head(self, message: Message) -> bytes:
        names = {name for name, _ in message.headers}
        parts = [
            b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (message.method.encode(), message.path, message.authority.encode())
        ]
        parts += [b"%b: %b\r\n" % header for header in message.headers]
        if b"webhook-id" not in names:
            parts.append(b"webhook-id: %b\r\n" % id_text(message.id).encode())
        if b"user-agent" not in names:
            parts.append(self._user_agent)
        if message.body or message.method in _ALWAYS_WITH_LENGTH:
            parts.append(b"content-length: %d\r\n" % len(message.body))
        parts.append(b"\r\n")
        return b"".join(parts)


def _of_exchange_error(error: ExchangeError) -> Outcome:
    number = error.errno if isinstance(error, ConnectError) else None
    return of_error(ErrorKind(error.kind), error.detail, address=error.address, number=number)
