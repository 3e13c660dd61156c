"""Requests to the operators' listeners: the router, the parameters of queries and bodies, errors as problems."""

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, unquote

from holdfast.core.circuit import CircuitState
from holdfast.core.errors import CommitFailed, Fenced, StoreUnreachable
from holdfast.core.message import LANE_NAME_LIMIT, DeadReason, MessageId, MessageState, parse_id
from holdfast.http.exceptions import Problem
from holdfast.http.request_response import Request, Response, StreamingResponse

DEFAULT_PAGE = 100
LONGEST_PAGE = 1_000

Choice = TypeVar("Choice", MessageState, CircuitState, DeadReason)

_JSON_TYPE = (b"content-type", b"application/json")
_NUMBER = re.compile(r"[0-9]{1,9}")
_CIRCUIT_NAME = re.compile(rf"[!-~]{{1,{LANE_NAME_LIMIT}}}")


class Call(NamedTuple):
    """A request as a handler sees it: the name in the path, the query, and the JSON object in the body."""

    name: str
    query: Mapping[str, str]
    body: Mapping[str, Any]


Handler = Callable[[Call], Awaitable[Response | StreamingResponse]]


class Route(NamedTuple):
    """`path` may have one `{}` segment, which matches one percent-encoded name."""

    method: str
    path: str
    handler: Handler


class Router:
    """Calls the handler of a request; a request without one gets a problem."""

    def __init__(self, routes: list[Route]) -> None:
        self._routes = [(route, route.path.split("/")) for route in routes]

    async def __call__(self, request: Request) -> Response | StreamingResponse:
        path, _, query = request.target.decode("latin-1").partition("?")
        segments = path.split("/")
        method = "GET" if request.method == "HEAD" else request.method
        allowed = []
        for route, pattern in self._routes:
            name = _match(pattern, segments)
            if name is None:
                continue
            if route.method == method:
                parameters = {key: values[-1] for key, values in parse_qs(query, keep_blank_values=True).items()}
                with store_problems():
                    return await route.handler(Call(name, parameters, _body(request)))
            allowed.append(route.method)
        if allowed:
            raise problem(405, "method-not-allowed", f"{path} takes {', '.join(allowed)}.", allow=", ".join(allowed))
        raise problem(404, "not-found", f"There is nothing at {path}.")


def _match(pattern: list[str], segments: list[str]) -> str | None:
    """The name that `{}` stands for, or an empty string if the pattern has none. None if the path does not match."""
    if len(pattern) != len(segments):
        return None
    name = ""
    for expected, found in zip(pattern, segments, strict=True):
        if expected == "{}":
            name = unquote(found)
            if not name:
                return None
        elif expected != found:
            return None
    return name


def _body(request: Request) -> Mapping[str, Any]:
    """Only the body of a POST counts; other methods may have one, which is ignored."""
    if request.method != "POST" or not request.body:
        return {}
    try:
        document = json.loads(request.body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise problem(400, "bad-body", "The body has to be a JSON object.")
    return document


def answer(document: object, status: int = 200) -> Response:
    return Response(status, [_JSON_TYPE], json.dumps(document).encode() + b"\n")


# -- problems ----------------------------------------------------------------------------------------------------------


def problem(status: int, slug: str, detail: str, *, allow: str | None = None, **extra: Any) -> Problem:
    headers = [(b"allow", allow.encode())] if allow else []
    title = slug.replace("-", " ").capitalize()
    return Problem(status, title, detail, type=f"urn:holdfast:problem:{slug}", headers=headers, extra=extra)


@contextmanager
def store_problems() -> Iterator[None]:
    """Turns errors of the store into problems."""
    try:
        yield
    except Fenced as error:
        detail = "Another replica has just taken over this host, and nothing was done. Repeat the request."
        raise problem(503, "moved", detail) from error
    except StoreUnreachable as error:
        detail = f"The database is unreachable ({error}). The request may or may not be done. Repeat it in a while."
        raise problem(503, "store-away", detail) from error
    except CommitFailed as error:
        detail = f"The disk failed ({error}), and the gateway exits. The request may or may not be done."
        raise problem(503, "store-failed", detail) from error


# -- parameters --------------------------------------------------------------------------------------------------------


def text(name: str, value: object) -> str | None:
    """A parameter that is text; None if it is absent or empty."""
    if value in (None, ""):
        return None
    if not isinstance(value, str):
        raise problem(400, "bad-body", f"{name} is text.")
    return value


def choice(kind: type[Choice], name: str, value: object) -> Choice | None:
    given = text(name, value)
    if given is None:
        return None
    try:
        return kind(given)
    except ValueError:
        raise problem(400, "bad-query", f"{name} is one of {', '.join(kind)}.") from None


def page_limit(query: Mapping[str, str]) -> int:
    value = query.get("limit") or str(DEFAULT_PAGE)
    if not _NUMBER.fullmatch(value) or not 1 <= int(value) <= LONGEST_PAGE:
        raise problem(400, "bad-query", f"limit is a number from 1 to {LONGEST_PAGE}.")
    return int(value)


def after_id(value: str | None) -> MessageId | None:
    if not value:
        return None
    id = parse_id(value)
    if id is None:
        raise problem(400, "bad-query", "after is the id of a message, as in `next`.")
    return id


def moment(name: str, value: object, otherwise: int) -> int:
    """An RFC 3339 time in milliseconds."""
    given = text(name, value)
    if given is None:
        return otherwise
    try:
        parsed = datetime.fromisoformat(given)
    except ValueError:
        raise problem(400, "bad-query", f"{name} is a time such as 2026-01-31T12:00:00Z.") from None
    return max(0, round(parsed.replace(tzinfo=parsed.tzinfo or UTC).timestamp() * 1000))


def circuit_name(value: str) -> str:
    """A name that a circuit can have. Other names are refused here, since one store refuses more than another."""
    if not _CIRCUIT_NAME.fullmatch(value):
        raise problem(404, "unknown-host", "There is no circuit of such a name.")
    return value


def flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise problem(400, "bad-body", f"{name} is true or false.")
    return value


def bulk_limit(body: Mapping[str, Any]) -> int | None:
    """How many messages a bulk action may change; None for all."""
    value = body.get("limit")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise problem(400, "bad-body", "limit is a number from 1.")
    return value


def refuse_unknown(parameters: Mapping[str, Any], *known: str) -> None:
    """A misspelled filter must not widen a bulk action."""
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        names = f"known parameters are {', '.join(known)}" if known else "this call takes none"
        raise problem(400, "bad-body", f"{unknown[0]} is not known here; {names}.")
