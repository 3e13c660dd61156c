"""Everything that this room raises, in one place.

    Exception
    ├── ProtocolError          a peer's request breaks HTTP or a limit; `status` is the answer to it
    ├── Problem                (problem.py) a refusal by whoever uses the server
    ├── AddressBusy            too many exchanges with an address are under way; nothing was sent
    └── ExchangeError          no answer was had; `kind` is a word for records
        ├── ExchangeTimeout    "timeout"   the total deadline passed; `stage` says during what
        ├── ConnectError       "connect"   no address could be dialled; `errno` of the last one
        ├── ProxyError         "proxy"     no tunnel; `here`: the proxy is at fault, not the target; `status` it gave
        ├── TlsError           "tls"       handshake or certificate, or records without end and nothing in them
        │   └── TlsEnded       "tls"       an alert instead of an answer, or a record that can't be read
        ├── ConnectionReset    "reset"     closed or reset before the answer's head was complete
        └── BadAnswer          "protocol"  what came is not an HTTP/1.1 answer

Errors of the resolver that a transport was given pass through it untouched and are not in this tree.
"""

from __future__ import annotations

from typing import ClassVar, Literal

Stage = Literal["resolve", "connect", "reach_proxy", "proxy", "tls", "send", "answer"]
"""How far an exchange has come. A deadline that passes in `reach_proxy` is a `ProxyError`: no fault of the target's."""


class ProtocolError(Exception):
    """A request that can't be served as sent. The connection is closed after the answer."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.status}: {self.detail}"


class AddressBusy(Exception):
    """Nothing was dialled: `address` has as many exchanges under way as it may."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


class ExchangeError(Exception):
    """The exchange ended without an answer; `address` is the one connected to, or tried last."""

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
    """Ends a connection like a reset does; a client certificate that is missing is told in this way."""


class ConnectionReset(ExchangeError):
    kind = "reset"


class BadAnswer(ExchangeError):
    kind = "protocol"
