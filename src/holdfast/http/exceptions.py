"""The exceptions of this package.

    Exception
    ├── ProtocolError          a request that violates HTTP or a limit; `status` is the answer to it
    ├── Problem                a refusal by a handler or a gate, answered as a problem document (RFC 9457)
    ├── AddressBusy            too many exchanges with one address; nothing was sent
    └── ExchangeError          an exchange without an answer; records store its `kind`
        ├── ExchangeTimeout    "timeout"   the total deadline passed during `stage`
        ├── ConnectError       "connect"   no address could be dialled; `errno` of the last one
        ├── ProxyError         "proxy"     no tunnel; `here` if the proxy is at fault and not the target; its `status`
        ├── TlsError           "tls"       handshake or certificate, or endless records without data
        │   └── TlsEnded       "tls"       an alert instead of an answer, or an unreadable record
        ├── ConnectionReset    "reset"     closed or reset before the head of the answer was complete
        └── BadAnswer          "protocol"  not an HTTP/1.1 answer

A transport also passes on the errors of its resolver, which are not part of this tree.
"""

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, ClassVar, Literal

from holdfast.http.request_response import Response

Stage = Literal["resolve", "connect", "reach_proxy", "proxy", "tls", "send", "answer"]
"""The progress of an exchange. A timeout in `reach_proxy` is a `ProxyError`, as the target is not at fault."""

RETRY_SOON = ((b"retry-after", b"1"),)
"""For a refusal that ends as soon as another request does."""


class ProtocolError(Exception):
    """A request that can't be served as sent. The connection is closed after the answer."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.status}: {self.detail}"


class Problem(Exception):
    """Raised by a handler or a gate. The server sends its `response()`.

    `type` is a stable name such as "urn:holdfast:problem:no-target". `detail` says what to change. `extra` are further
    members of the document.
    """

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        *,
        type: str,
        headers: Sequence[tuple[bytes, bytes]] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(status, title, detail)
        self.status = status
        self.title = title
        self.detail = detail
        self.type = type
        self.headers = tuple(headers)
        self.extra = dict(extra or {})

    def __str__(self) -> str:
        return f"{self.status} {self.title}: {self.detail}"

    @property
    def document(self) -> dict[str, Any]:
        own = {"type": self.type, "title": self.title, "status": self.status, "detail": self.detail}
        return self.extra | own

    def response(self) -> Response:
        headers = [(b"content-type", b"application/problem+json"), *self.headers]
        return Response(self.status, headers, json.dumps(self.document).encode())


def problem_for_status(status: int, detail: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> Problem:
    """A problem whose type and title come from the status code."""
    title = HTTPStatus(status).phrase
    slug = title.lower().replace(" ", "-")
    return Problem(status, title, detail, type=f"urn:holdfast:problem:{slug}", headers=headers)


class AddressBusy(Exception):
    """Nothing was dialled: `address` is at its limit of exchanges."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


class ExchangeError(Exception):
    """An exchange without an answer. `address` is the connected one, or the last one tried."""

    kind: ClassVar[str]

    def __init__(self, detail: str, address: str | None = None) -> None:
        super().__init__(detail, address)
        self.detail = detail
        self.address = address

    def __str__(self) -> str:
        return f"{self.detail} ({self.address})" if self.address else self.detail


class ExchangeTimeout(ExchangeError):
    kind = "timeout"

    def __init__(self, detail: str, address: str | None = None, stage: Stage = "answer") -> None:
        super().__init__(detail, address)
        self.stage = stage


class ConnectError(ExchangeError):
    kind = "connect"

    def __init__(self, detail: str, address: str | None = None, errno: int | None = None) -> None:
        super().__init__(detail, address)
        self.errno = errno


class ProxyError(ExchangeError):
    kind = "proxy"

    def __init__(self, detail: str, address: str | None = None, *, here: bool, status: int | None = None) -> None:
        super().__init__(detail, address)
        self.here = here
        self.status = status


class TlsError(ExchangeError):
    kind = "tls"


class TlsEnded(TlsError):
    """Ends a connection like a reset. A server that misses a client certificate does this."""


class ConnectionReset(ExchangeError):
    kind = "reset"


class BadAnswer(ExchangeError):
    kind = "protocol"
