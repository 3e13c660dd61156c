"""Paths to handlers: a table of method, path and handler, the same for both of the operators' listeners."""

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote

from holdfast.core.errors import CommitFailed, Fenced, StoreAway
from holdfast.http.problem import Problem
from holdfast.http.server import Request, Response, StreamingResponse

JSON_TYPE = (b"content-type", b"application/json")


class Call(NamedTuple):
    """A request as a handler sees it: what the path names, the query, and the JSON of the body."""

    name: str
    query: Mapping[str, str]
    body: Mapping[str, Any]


Handler = Callable[[Call], Awaitable[Response | StreamingResponse]]


class Route(NamedTuple):
    """`path` may have one `{}` segment, which stands for one percent-encoded name."""

    method: str
    path: str
    handler: Handler


class Router:
    """Finds the handler of a request, or says what is wrong with it."""

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
                return await _answered(route.handler, Call(name, _query(query), _body(request)))
            allowed.append(route.method)
        if allowed:
            raise problem(405, "method-not-allowed", f"{path} takes {', '.join(allowed)}.", allow=", ".join(allowed))
        raise problem(404, "not-found", f"There is nothing at {path}.")


async def _answered(handler: Handler, call: Call) -> Response | StreamingResponse:
    with store_problems():
        return await handler(call)


@contextmanager
def store_problems() -> Iterator[None]:
    """What the store could not do, as whoever asked for it is told."""
    try:
        yield
    except Fenced as error:
        detail = "Another replica has just taken over what was asked for, and nothing of it was done. Repeat it."
        raise problem(503, "moved", detail) from error
    except StoreAway as error:
        detail = f"The database is away ({error}); what was asked for may or may not be done. Repeat it in a while."
        raise problem(503, "store-away", detail) from error
    except CommitFailed as error:
        detail = f"The disk failed ({error}), and the gateway ends; what was asked for may or may not be done."
        raise problem(503, "store-failed", detail) from error


def _match(pattern: list[str], segments: list[str]) -> str | None:
    """What the `{}` of the pattern stands for; empty when it has none; None when the path is another one."""
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


def _query(text: str) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(text, keep_blank_values=True).items()}


def _body(request: Request) -> Mapping[str, Any]:
    """Only a POST says something by its body; others may have one, which means nothing."""
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
    return Response(status, [JSON_TYPE], json.dumps(document).encode() + b"\n")


def problem(status: int, slug: str, detail: str, *, allow: str | None = None, **extra: Any) -> Problem:
    headers = [(b"allow", allow.encode())] if allow else []
    title = slug.replace("-", " ").capitalize()
    return Problem(status, title, detail, type=f"urn:holdfast:problem:{slug}", headers=headers, extra=extra)
