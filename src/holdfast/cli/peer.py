"""One HTTP exchange with a gateway, or a Failure that says in one line why there was none.

It uses the standard library's client: a general one takes longer to import than most commands take to run.
"""

import http.client
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from holdfast.cli.addresses import dialled
from holdfast.cli.failure import Failure

CONNECT_PATIENCE = 5.0
ANSWER_PATIENCE = 30.0
ANOTHER = "of a gateway with another config: --config FILE, or HOLDFAST_CONFIG"

_PIECE = 64 << 10
_WITH_BODY = ("POST", "PUT", "PATCH")

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Response:
    """A 2xx answer."""

    headers: http.client.HTTPMessage
    content: bytes

    def json(self) -> Any:
        """ValueError if it is none."""
        return _document(self.content)


class Peer:
    """A gateway by one way in: an address, or the path of a Unix socket. Each exchange has its own connection."""

    def __init__(self, where: str, *, is_socket: bool = False) -> None:
        self._where = where
        self._is_socket = is_socket
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> "Peer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hang_up()

    def exchange(
        self,
        method: str,
        path: str,
        headers: Headers = (),
        content: bytes = b"",
        patience: float | None = ANSWER_PATIENCE,
    ) -> Response:
        """A 2xx answer. The request has these headers and no others: a webhook's go on to its receiver."""
        answer = self._ask(method, path, headers, content, patience)
        with self._trouble_told(patience):
            return Response(answer.headers, answer.read())

    def lines(self, path: str) -> Iterator[bytes]:
        """The lines of a 2xx answer as they come, however long the next one takes."""
        answer = self._ask("GET", path, (), b"", None)
        rest: list[bytes] = []
        try:
            while piece := answer.read1(_PIECE):
                first, *more = piece.split(b"\n")
                rest.append(first)
                for each in more:
                    yield b"".join(rest)
                    rest = [each]
        except (OSError, http.client.HTTPException) as error:
            raise Failure(
                f"the gateway on {self._where} broke off: it stopped, or nobody read here for too long"
            ) from error
        finally:
            self._hang_up()

    def stranger(self) -> Failure:
        return Failure(f"what listens on {self._where} does not answer like a holdfast gateway")

    def _ask(
        self, method: str, path: str, headers: Headers, content: bytes, patience: float | None
    ) -> http.client.HTTPResponse:
        """The head of a 2xx answer."""
        connection = self._connect()
        with self._trouble_told(patience):
            connection.sock.settimeout(patience)
            # Who refuses a body may do so without reading it to its end: the answer says why.
            with suppress(BrokenPipeError, ConnectionResetError):
                self._send(connection, method, path, headers, content)
            answer = connection.getresponse()
            if not 200 <= answer.status < 300:
                raise self._refusal(answer.read())
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        self._hang_up()
        self._connection = http.client.HTTPConnection("localhost")
        try:
            self._connection.sock = self._dial()
        except TimeoutError:
            raise Failure(
                f"no gateway is running: no answer from {self._where} within {CONNECT_PATIENCE:.0f} s"
            ) from None
        except OSError as error:
            raise Failure(self._unreachable(error)) from error
        return self._connection

    def _dial(self) -> socket.socket:
        if not self._is_socket:
            return socket.create_connection(dialled(self._where), CONNECT_PATIENCE)
        dialling = socket.socket(socket.AF_UNIX)
        try:
            dialling.settimeout(CONNECT_PATIENCE)
            dialling.connect(self._where)
        except OSError:
            dialling.close()
            raise
        return dialling

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

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()

    @contextmanager
    def _trouble_told(self, patience: float | None) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise Failure(f"the gateway on {self._where} did not answer within {patience or 0:.0f} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise Failure(f"the gateway on {self._where} broke off: {error}") from error

    def _refusal(self, content: bytes) -> Failure:
        try:
            problem = _document(content)
        except ValueError:
            problem = None
        if not isinstance(problem, dict) or not isinstance(problem.get("detail"), str):
            return self.stranger()
        detail = problem["detail"]
        candidates = [str(each) for each in problem.get("candidates", ())]
        is_told = all(candidate in detail for candidate in candidates)
        return Failure(detail) if is_told else Failure(detail, *(f"  {candidate}" for candidate in candidates))

    def _unreachable(self, error: OSError) -> str:
        if isinstance(error, FileNotFoundError):
            return f"no gateway is running: there is no socket {self._where} ({ANOTHER})"
        if isinstance(error, ConnectionRefusedError):
            return f"no gateway is running: nobody listens on {self._where}"
        if isinstance(error, PermissionError):
            return f"not permitted to use {self._where}: run this as the user that the gateway runs as, or as root"
        return f"can't reach a gateway on {self._where}: {error}"


def _document(content: bytes) -> Any:
    """ValueError if it is no JSON, or such as nobody means: whoever listens there may be no gateway."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
