"""One HTTP exchange with a gateway, or a Failure that says in one line why there was none."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

import httpx

from holdfast.cli.failure import Failure

CONNECT_PATIENCE = 5.0
ANSWER_PATIENCE = 30.0
ANOTHER = "of a gateway with another config: --config FILE, or HOLDFAST_CONFIG"

Headers = Sequence[tuple[bytes, bytes]]


class Peer:
    """A gateway by one way in. `where` is how people are told of it: a socket's path or an address."""

    def __init__(self, where: str, base: str, socket: str | None = None) -> None:
        self._where = where
        self._base = base
        # Plain HTTP on this machine: no authorities to load, and no proxy variable of the environment to follow.
        transport = httpx.HTTPTransport(verify=False, trust_env=False, uds=socket)
        self._client = httpx.Client(transport=transport, trust_env=False)

    def __enter__(self) -> "Peer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def exchange(
        self,
        method: str,
        path: str,
        headers: Headers = (),
        content: bytes = b"",
        patience: float | None = ANSWER_PATIENCE,
    ) -> httpx.Response:
        """A 2xx answer. The request has these headers and no others: a webhook's go on to its receiver."""
        with self._trouble_told(patience):
            response = self._client.send(self._request(method, path, headers, content, patience))
        if not response.is_success:
            raise self._refusal(response)
        return response

    def lines(self, path: str) -> Iterator[bytes]:
        """The lines of a 2xx answer as they come, however long the next one takes."""
        request = self._request("GET", path, (), b"", None)
        with self._trouble_told(None):
            response = self._client.send(request, stream=True)
        try:
            if not response.is_success:
                with self._trouble_told(None):
                    response.read()
                raise self._refusal(response)
            yield from self._split(response)
        finally:
            response.close()

    def _split(self, response: httpx.Response) -> Iterator[bytes]:
        rest: list[bytes] = []
        try:
            for piece in response.iter_bytes():
                first, *more = piece.split(b"\n")
                rest.append(first)
                for each in more:
                    yield b"".join(rest)
                    rest = [each]
        except httpx.TransportError as error:
            raise Failure(
                f"the gateway on {self._where} broke off: it stopped, or nobody read here for too long"
            ) from error

    def _request(
        self, method: str, path: str, headers: Headers, content: bytes, patience: float | None
    ) -> httpx.Request:
        timeout = httpx.Timeout(patience, connect=CONNECT_PATIENCE)
        return httpx.Request(
            method, self._base + path, headers=list(headers), content=content, extensions={"timeout": timeout.as_dict()}
        )

    @contextmanager
    def _trouble_told(self, patience: float | None) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            raise Failure(self._trouble(error, patience)) from error

    def stranger(self) -> Failure:
        return Failure(f"what listens on {self._where} does not answer like a holdfast gateway")

    def _refusal(self, response: httpx.Response) -> Failure:
        try:
            problem = response.json()
        except ValueError:
            problem = None
        if not isinstance(problem, dict) or not isinstance(problem.get("detail"), str):
            return self.stranger()
        detail = problem["detail"]
        candidates = [str(each) for each in problem.get("candidates", ())]
        is_told = all(candidate in detail for candidate in candidates)
        return Failure(detail) if is_told else Failure(detail, *(f"  {candidate}" for candidate in candidates))

    def _trouble(self, error: httpx.TransportError, patience: float | None) -> str:
        cause = next((each for each in _causes(error) if isinstance(each, OSError)), None)
        if isinstance(error, httpx.ConnectTimeout):
            return f"no gateway is running: no answer from {self._where} within {CONNECT_PATIENCE:.0f} s"
        if isinstance(error, httpx.TimeoutException) and patience is not None:
            return f"the gateway on {self._where} did not answer within {patience:.0f} s"
        if isinstance(cause, FileNotFoundError):
            return f"no gateway is running: there is no socket {self._where} ({ANOTHER})"
        if isinstance(cause, ConnectionRefusedError):
            return f"no gateway is running: nobody listens on {self._where}"
        if isinstance(cause, PermissionError):
            return f"not permitted to use {self._where}: run this as the user that the gateway runs as, or as root"
        if isinstance(error, httpx.ConnectError):
            return f"can't reach a gateway on {self._where}: {error}"
        return f"the gateway on {self._where} broke off: {error}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what is behind it: httpx keeps the system's own error at the far end."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__
