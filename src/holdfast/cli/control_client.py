"""HTTP requests to a gateway. Every failure is a CommandError with one line that says why.

It uses the standard library's client: others take longer to import than most commands take to run.
"""

import argparse
import http.client
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self
from urllib.parse import quote, urlencode

from holdfast.cli.arguments import load_config, parse_address
from holdfast.cli.command_error import CommandError
from holdfast.cli.output import gateway_time

CONNECT_TIMEOUT = 5.0
ANSWER_TIMEOUT = 30.0
BULK_TIMEOUT = 600.0
"""For a request that may go through all messages before it is answered."""

PAGE = 200
"""Items per request of a list: few enough to show the first at once, enough to make a million bearable."""

_READ_SIZE = 64 << 10
_WITH_BODY = ("POST", "PUT", "PATCH")

Headers = Sequence[tuple[bytes, bytes]]
Document = dict[str, Any]


@dataclass(frozen=True)
class HttpAnswer:
    """A 2xx answer."""

    headers: http.client.HTTPMessage
    content: bytes

    def json(self) -> Any:
        """None if the content is not JSON."""
        return _parse_json(self.content)


class HttpClient:
    """Talks to an address, or to the path of a Unix socket. Each request has its own connection."""

    def __init__(self, where: str, *, is_socket: bool = False) -> None:
        self._where = where
        self._is_socket = is_socket
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def exchange(
        self, method: str, path: str, headers: Headers, content: bytes = b"", timeout: float | None = ANSWER_TIMEOUT
    ) -> HttpAnswer:
        """Returns a 2xx answer. Adds no header but Host and Content-Length: a webhook's go on to its receiver."""
        answer = self._request(method, path, headers, content, timeout)
        with self._errors_named(timeout):
            return HttpAnswer(answer.headers, answer.read())

    def lines(self, path: str) -> Iterator[bytes]:
        """Yields the lines of a 2xx answer as they arrive, without a timeout between them."""
        answer = self._request("GET", path, (), b"", None)
        rest: list[bytes] = []
        try:
            while piece := answer.read1(_READ_SIZE):
                first, *more = piece.split(b"\n")
                rest.append(first)
                for each in more:
                    yield b"".join(rest)
                    rest = [each]
        except (OSError, http.client.HTTPException) as error:
            reason = "it stopped, or the output was not read for too long"
            raise CommandError(f"the gateway on {self._where} closed the connection: {reason}") from error
        finally:
            self._close()

    def not_a_gateway(self) -> CommandError:
        return CommandError(f"the server on {self._where} does not answer like a holdfast gateway")

    def _request(
        self, method: str, path: str, headers: Headers, content: bytes, timeout: float | None
    ) -> http.client.HTTPResponse:
        """Returns a 2xx answer whose body is still to be read."""
        connection = self._connect()
        with self._errors_named(timeout):
            connection.sock.settimeout(timeout)
            # A gateway may refuse a body without reading all of it: the answer says why.
            with suppress(BrokenPipeError, ConnectionResetError):
                self._send(connection, method, path, headers, content)
            answer = connection.getresponse()
            if not 200 <= answer.status < 300:
                raise self._refusal(answer.read())
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        self._close()
        self._connection = http.client.HTTPConnection("localhost")
        try:
            self._connection.sock = self._dial()
        except OSError as error:
            raise CommandError(self._unreachable(error)) from error
        return self._connection

    def _dial(self) -> socket.socket:
        if not self._is_socket:
            return socket.create_connection(parse_address(self._where), CONNECT_TIMEOUT)
        unix = socket.socket(socket.AF_UNIX)
        try:
            unix.settimeout(CONNECT_TIMEOUT)
            unix.connect(self._where)
        except OSError:
            unix.close()
            raise
        return unix

    def _unreachable(self, error: OSError) -> str:
        if isinstance(error, TimeoutError):
            return f"no gateway is running: no answer from {self._where} within {CONNECT_TIMEOUT:.0f} s"
        if isinstance(error, FileNotFoundError):
            hint = "name a gateway with another config by --config FILE or HOLDFAST_CONFIG"
            return f"no gateway is running: there is no socket {self._where} ({hint})"
        if isinstance(error, ConnectionRefusedError):
            return f"no gateway is running: nothing listens on {self._where}"
        if isinstance(error, PermissionError):
            return f"not permitted to use {self._where}: run this as the gateway's user or as root"
        return f"can't reach a gateway on {self._where}: {error}"

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, headers: Headers, content: bytes
    ) -> None:
        given = {name.lower() for name, _ in headers}
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        if b"host" not in given:
            connection.putheader("Host", "localhost" if self._is_socket else self._where)
        if b"content-length" not in given and (content or method in _WITH_BODY):
            connection.putheader("Content-Length", str(len(content)))
        for name, value in headers:
            connection.putheader(name, value)
        connection.endheaders(content)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    @contextmanager
    def _errors_named(self, timeout: float | None) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise CommandError(f"the gateway on {self._where} did not answer within {timeout or 0:.0f} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise CommandError(f"the gateway on {self._where} closed the connection: {error}") from error

    def _refusal(self, content: bytes) -> CommandError:
        problem = _parse_json(content)
        if not isinstance(problem, dict) or not isinstance(problem.get("detail"), str):
            return self.not_a_gateway()
        detail = problem["detail"]
        candidates = [str(each) for each in problem.get("candidates", ())]
        if all(candidate in detail for candidate in candidates):
            return CommandError(detail)
        return CommandError(detail, *(f"  {candidate}" for candidate in candidates))


class ControlClient(HttpClient):
    """The control socket that the options of a command name: `--socket`, else `listen.control` of the config.

    With `--socket` the config is not read, and may be invalid.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options.socket or str(load_config(options.config).listen.control), is_socket=True)

    def now(self) -> datetime:
        """The time by the gateway's clock. "2h ago" counts from there."""
        return gateway_time(self.get("/v1/status"))

    def get(self, path: str) -> Document:
        return self._document("GET", path)

    def post(self, path: str, body: Document, timeout: float | None = ANSWER_TIMEOUT) -> Document:
        """`timeout` is in seconds; None waits for as long as the gateway takes."""
        return self._document("POST", path, json.dumps(body).encode(), timeout)

    def delete(self, path: str) -> Document:
        return self._document("DELETE", path)

    def pages(
        self, collection: str, query: Mapping[str, str | None], limit: int | None = None
    ) -> Iterator[list[Document]]:
        """Yields the items of a list in pages, at most `limit` in all. Each page is requested when it is needed."""
        wanted = {name: value for name, value in query.items() if value is not None}
        left = limit
        while True:
            wanted["limit"] = str(PAGE if left is None else min(PAGE, left))
            document = self.get(f"/v1/{collection}?{urlencode(wanted, errors='surrogateescape')}")
            items: list[Document] = document[collection]
            if items:
                yield items
            if left is not None:
                left -= len(items)
            if document["next"] is None or left == 0:
                return
            wanted["after"] = document["next"]

    def _document(
        self, method: str, path: str, content: bytes = b"", timeout: float | None = ANSWER_TIMEOUT
    ) -> Document:
        headers = [(b"accept", b"application/json")]
        if content:
            headers.append((b"content-type", b"application/json"))
        document = self.exchange(method, path, headers, content, timeout).json()
        if not isinstance(document, dict):
            raise self.not_a_gateway()
        return document


def segment(name: str) -> str:
    """Quotes a circuit's key or a message's id for a path. A key may be a whole URL."""
    return quote(name, safe="", errors="surrogateescape")


def _parse_json(content: bytes) -> Any:
    """None if it is not JSON, or nested too deep: the server may not be a gateway."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None
