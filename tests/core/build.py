"""Builders for messages, hosts, lanes and start orders. Times are milliseconds; `NOW` is the start of a minute."""

from collections.abc import Iterable, Iterator
from itertools import count

from holdfast.config import build
from holdfast.core.circuit import Circuit, CircuitState
from holdfast.core.lane import Host, Lane
from holdfast.core.message import AttemptKind, Entry, Message, Place, Standing
from holdfast.core.start_order import Start, StartOrder

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
NOW = 28_333_333 * MINUTE

RULES = build({}).circuit

_numbers = count(1)


def entry(lane: str = "h:443", *, born: int = NOW, due: int = 0, retry: int = 0, held: bool = False) -> Entry:
    message = Message(
        id=next(_numbers).to_bytes(16, "big"),
        lane=lane,
        host=lane,
        scheme="https",
        authority=lane,
        path=b"/",
        method="POST",
        headers=(),
        body=b"",
        accepted_at=born,
        born=born,
    )
    standing = Standing.RETRY if retry or due else Standing.ACTIVE
    return Entry(message, Place(standing, born, due, retry, retry, held))


def entries(number: int, **of: int) -> list[Entry]:
    return [entry(**of) for _ in range(number)]


def host(
    name: str = "h:443",
    *,
    per_host: int = 16,
    limit: int | None = None,
    interval: float = 0.0,
    answers: bool | None = True,
) -> Host:
    return Host(name, per_host, per_host if limit is None else limit, interval, answers=answers)


def lane(
    of: Host | str = "h:443",
    *,
    key: str | None = None,
    fresh: int = 0,
    due: int = 0,
    state: CircuitState = CircuitState.ENABLED,
) -> Lane:
    on = of if isinstance(of, Host) else host(of)
    made = Lane(key or on.name, on, Circuit(state=state), hydrated=True)
    made.fresh.extend(entries(fresh))
    made.due.extend(entries(due, due=NOW, retry=1))
    return made


def start_order(*lanes: Lane, first_attempts: int = 256, retries: int = 64) -> StartOrder:
    made = StartOrder(RULES, first_attempts=first_attempts, retries=retries)
    for each in lanes:
        made.touch(each, NOW)
    return made


def picks(of: StartOrder, now: int = NOW) -> Iterator[Start]:
    """The attempts that may start now, one after another."""
    while (start := of.pick(now)) is not None:
        yield start


def hosts_of(starts: Iterable[Start]) -> list[str]:
    return [start.lane.host.name for start in starts]


def kinds_of(starts: Iterable[Start]) -> list[AttemptKind]:
    return [start.kind for start in starts]
