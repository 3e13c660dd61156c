"""What operators may ask for: queries and bodies read into filters, every fault said as a problem."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from holdfast.core.circuit import CircuitState
from holdfast.core.message import LANE_NAME_LIMIT, DeadReason, MessageId, State, parse_id
from holdfast.operate.routing import problem

PAGE = 100
LONGEST_PAGE = 1_000

Choice = TypeVar("Choice", State, CircuitState, DeadReason)

_NUMBER = re.compile(r"[0-9]{1,9}")
_CIRCUIT_NAME = re.compile(rf"[!-~]{{1,{LANE_NAME_LIMIT}}}")


def text(name: str, value: object) -> str | None:
    """What a query or a body says as text, None for nothing."""
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
    value = query.get("limit") or str(PAGE)
    if not _NUMBER.fullmatch(value) or not 1 <= int(value) <= LONGEST_PAGE:
        raise problem(400, "bad-query", f"limit is a number from 1 to {LONGEST_PAGE}.")
    return int(value)


def after_id(value: str | None) -> MessageId | None:
    if not value:
        return None
    id = parse_id(value)
    if id is None:
        raise problem(400, "bad-query", "after is the id of a message, as `next` gives it.")
    return id


def moment(name: str, value: object, otherwise: int) -> int:
    """A moment as RFC 3339, in milliseconds."""
    given = text(name, value)
    if given is None:
        return otherwise
    try:
        parsed = datetime.fromisoformat(given)
    except ValueError:
        raise problem(400, "bad-query", f"{name} is a time such as 2026-01-31T12:00:00Z.") from None
    return max(0, round(parsed.replace(tzinfo=parsed.tzinfo or UTC).timestamp() * 1000))


def circuit_name(value: str) -> str:
    """A host or a key that a circuit may have; anything else is unknown before it reaches the store, which may refuse
    more than another.
    """
    if not _CIRCUIT_NAME.fullmatch(value):
        raise problem(404, "unknown-host", "There is no circuit of such a name.")
    return value


def flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise problem(400, "bad-body", f"{name} is true or false.")
    return value


def at_most(body: Mapping[str, Any]) -> int | None:
    """How many messages a call in bulk may touch; None for all."""
    value = body.get("limit")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise problem(400, "bad-body", "limit is a number from 1.")
    return value


def only(body: Mapping[str, Any], *names: str) -> None:
    """A misspelled filter must not widen what a call in bulk touches."""
    unknown = sorted(set(body) - set(names))
    if unknown:
        known = f"known are {', '.join(names)}" if names else "this call takes none"
        raise problem(400, "bad-body", f"{unknown[0]} is not known here; {known}.")
