"""Random receivers: each has a kind of trouble, and alternates between it and normal answers."""

import errno
from collections.abc import Callable
from random import Random
from typing import Any

from holdfast.core.errors import EgressDenied, NameNotResolved
from holdfast.http.exceptions import BadAnswer, ConnectError, ConnectionReset
from tests.sim.world import Request, asks_for, date_at, hang, slow

FAILING = (500, 404, 301, ConnectionReset("closed"), BadAnswer("no HTTP"), ConnectError("refused", None, 111))
HERE = (
    EgressDenied("private"),
    ConnectError("no route", None, errno.ENETUNREACH),
    NameNotResolved("try again", here=True),
)
HERE_ERRNO = errno.ENETUNREACH


def asks_for_peace(chance: Random, unit: float) -> Callable[[Request], Any]:
    """Retry-After in seconds, as a date, in the past, or absurd; with a status that holds the host or another."""

    def answer(request: Request) -> Any:
        status = chance.choice((429, 503, 503, 500))
        seconds = int(unit * chance.choice((1, 20, 200, 5_000))) + 1
        value = chance.choice((str(seconds), date_at(request.at + seconds), date_at(-1_000), "soon", "9" * 30))
        return asks_for(status, value)

    return answer


def flaky(chance: Random) -> Callable[[Request], Any]:
    return lambda request: chance.choice((200, 200, 500))


def tempers(chance: Random, unit: float) -> dict[str, tuple[Any, ...]]:
    """What a receiver of each temper does when it is not fine."""
    slowness = (slow(unit * 10), slow(unit * 10, 500), slow(unit * 4))
    peace = asks_for_peace(chance, unit)
    return {
        "fine": (200, slow(unit * 2)),
        "slow": slowness,
        "bursts": FAILING,
        "flaky": (flaky(chance),),
        "hanging": (hang, hang, slow(unit * 10)),
        "asking": (peace,),
        "here": HERE,
        "mixed": (*FAILING, *HERE, *slowness, hang, peace, flaky(chance)),
    }


class Receiver:
    """One host through a world of so many seconds; one in four is dead from some moment on, for most of the time."""

    def __init__(self, chance: Random, horizon: float, unit: float) -> None:
        known = tempers(chance, unit)
        temper = chance.choice(tuple(known))
        moments = sorted(chance.uniform(0, horizon) for _ in range(chance.randrange(2, 16)))
        self._changes = [(moment, chance.choice((200, *known[temper]))) for moment in moments]
        if chance.random() < 0.25:
            death = chance.uniform(0, horizon * 0.6)
            self._changes = [change for change in self._changes if change[0] < death]
            self._changes += [(death, chance.choice(FAILING)), (death + horizon * chance.uniform(0.2, 0.9), 200)]
        self.healed = False

    def __call__(self, request: Request) -> Any:
        mode: Any = 200
        for since, changed in self._changes:
            if since <= request.at and not self.healed:
                mode = changed
        return mode(request) if callable(mode) else mode
