"""A gateway in virtual time: everything but sockets, disk and threads, with scripted receivers."""

import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any, ClassVar

import trio
import trio.testing

from holdfast.config import Config, build
from holdfast.core.circuit import Circuit, CircuitState
from holdfast.core.errors import CommitFailed
from holdfast.core.message import Message, MessageId, MessageState, id_text, parse_id
from holdfast.core.start_order import attempts_per_address
from holdfast.core.store_rules import StoreRules
from holdfast.delivery.lane_cache import LaneCache
from holdfast.http.dial import Origin
from holdfast.http.exceptions import ExchangeTimeout
from holdfast.http.pool import AddressLimit
from holdfast.process.gateway import Gateway
from holdfast.store.embedded.ledger import Ledger
from holdfast.store.port import Accept, DeadFilter, Duplicate, IdempotencyKey, MessageView, ReplayDead
from tests.store.memory import MemoryEngine, Session
from tests.support.answers import GivenAnswer
from tests.support.trio_clock import TrioClock

START = 1_800_000_000_000
"""Aligned to no bucket on purpose."""

HOST = "a.test:80"
MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR
SPAN = 173_585.6
"""48 h 13 min 5.6 s, the schedule's own."""

NO_TRIPS = {"min_attempts": 0, "disable_after": 0, "freeze_after": 0, "freeze_at": 0}
"""A `circuit` section for worlds in which a host may fail as it likes."""
TRIPS_AT_3 = {"min_attempts": 0, "disable_after": 3}
"""One in which three failures in a row disable, so that few messages do."""


@dataclass(frozen=True)
class Request:
    """What a receiver saw: seconds since the world began, which message, and how many were open with this one."""

    at: float
    host: str
    id: str
    beside: int = 1
    path: str = "/hook"


Script = Callable[[Request], Any]


async def hang(request: Request) -> int:
    await trio.sleep_forever()
    return 200


def slow(seconds: float, status: int = 200) -> Callable[[Request], Awaitable[int]]:
    async def answer(request: Request) -> int:
        await trio.sleep(seconds)
        return status

    return answer


def until(moment: float, before: Any, after: Any = 200) -> Script:
    """A receiver that changes at a moment."""

    def answer(request: Request) -> Any:
        chosen = after if request.at >= moment else before
        return chosen(request) if callable(chosen) else chosen

    return answer


def asks_for(status: int, retry_after: str | float) -> GivenAnswer:
    """An answer with Retry-After: so many seconds, or as it stands."""
    return GivenAnswer(status, [(b"retry-after", str(retry_after).encode())], b"", "192.0.2.1:80")


def date_at(seconds: float) -> str:
    """A moment of the world as HTTP writes dates."""
    return formatdate(START / 1000 + seconds, usegmt=True)


class WatchedEngine(MemoryEngine):
    """Counts how often it is read."""

    def __init__(self, max_size: int = 1 << 30) -> None:
        super().__init__(max_size)
        self.reads = 0

    @property
    def max_size(self) -> int:
        return self._max_size

    @max_size.setter
    def max_size(self, size: int) -> None:
        self._max_size = size

    def read(self) -> Session:
        self.reads += 1
        return super().read()


@dataclass
class World:
    """`scripts` say how each host answers: a status, an GivenAnswer, an exception, or a function of the request."""

    config: Config
    engine: WatchedEngine = field(default_factory=WatchedEngine)
    scripts: dict[str, Any] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    open: Counter[str] = field(default_factory=Counter)
    began: float = field(default_factory=trio.current_time)
    clock: TrioClock = field(default_factory=lambda: TrioClock(START))
    chance: Callable[[], float] = lambda: 0.5
    addresses: dict[str, str] = field(default_factory=dict)
    """What hosts resolve to; others have an address of their own."""
    ledger_type: ClassVar[type[Ledger]] = Ledger
    shared: ClassVar[Any] = None
    takeover: ClassVar[float] = 0.0
    """Seconds after a start in which what a gateway that crashed had in memory is not sent again yet."""

    def __post_init__(self) -> None:
        delivery = self.config.delivery
        self.address_limit = AddressLimit(attempts_per_address(delivery.first_attempts, delivery.per_host))

    # -- the gateway -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def gateway(self, *, crash: bool = False) -> AsyncIterator["World"]:
        """Run the gateway; it can be entered again on the same store. Leaving is a clean shutdown, or a crash."""
        self.compose()
        async with trio.open_nursery() as store_nursery:
            await store_nursery.start(self.ledger.run)
            store_nursery.start_soon(self._end_when_broken, store_nursery)
            async with trio.open_nursery() as nursery:
                await nursery.start(self.delivery.run)
                yield self
                if crash:
                    getattr(self.ledger, "_state", self.ledger).failed = CommitFailed("the power went off")
                    store_nursery.cancel_scope.cancel()
                nursery.cancel_scope.cancel()
            store_nursery.cancel_scope.cancel()

    def compose(self) -> None:
        """Put a gateway together that has not begun to run."""
        self.started_at = self.clock.now()
        self.ledger = self.make_store()
        self.join(self.shared)

    def join(self, shared: Any) -> None:
        """Put the gateway's parts together around its store."""
        self.composed = Gateway(self.config, self.ledger, self, self.clock, self.chance, self.started_at, shared=shared)
        self.events, self.counters = self.composed.events, self.composed.counters
        self.delivery, self.dispatcher = self.composed.delivery, self.composed.dispatcher

    def make_store(self) -> Ledger:
        ledger = self.ledger_type(self.engine, self.store_rules(), self.clock, lambda bits: 0)
        ledger.open()
        return ledger

    def store_rules(self) -> StoreRules:
        return self.config.store_rules(self.started_at)

    async def _end_when_broken(self, nursery: trio.Nursery) -> None:
        """As the process exits after a commit that failed."""
        await self.ledger.broken.wait()
        nursery.cancel_scope.cancel()

    async def accept(self, host: str = HOST, **terms: Any) -> str:
        accept = self.accepting(host, **terms)
        result = await self.ledger.perform(accept)
        return id_text(result.id if isinstance(result, Duplicate) else accept.message.id)

    async def accept_many(self, number: int, host: str = HOST, **terms: Any) -> list[str]:
        """Messages that come all at once: they share their commits."""
        return await self.accept_for([host] * number, **terms)

    async def accept_for(self, hosts: list[str], **terms: Any) -> list[str]:
        accepts = [self.accepting(host, **terms) for host in hosts]
        for accept in accepts[:-1]:
            self.ledger.submit(accept)
        await self.ledger.perform(accepts[-1])
        return [id_text(accept.message.id) for accept in accepts]

    def accepting(
        self,
        host: str = HOST,
        *,
        delay: float = 0,
        path: str = "/hook",
        by_url: bool = False,
        body: bytes = b"{}",
        key: bytes | None = None,
    ) -> Accept:
        """`by_url`: its circuit is that of its URL, as ingest names it with `scope = "url"`."""
        now = self.clock.now()
        lane = f"http://{host}{path}" if by_url else host
        born = now + round(delay * 1000)
        message = Message(self.ledger.mint(now), lane, host, "http", host, path.encode(), "POST", (), body, now, born)
        return Accept(message, None if key is None else IdempotencyKey(key.rjust(16), bytes(16)))

    async def replay_dead(self, host: str = HOST) -> int:
        """What `--replay-dead` and `dead replay` do."""
        now = self.clock.now()
        swept = await self.ledger.perform(ReplayDead(DeadFilter(host, until=now + 1), now, 1_000))
        return int(swept.count)

    # -- the receivers -----------------------------------------------------------------------------------------------

    async def exchange(self, origin: Origin, head: bytes, body: bytes, deadline: float) -> GivenAnswer:
        host = f"{origin.host}:{origin.port}"
        found = re.search(rb"webhook-id: (\S+)", head)
        assert found is not None
        address = self.addresses.get(host, host)
        self.address_limit.enter(address)
        self.open[host] += 1
        request = Request(self.now, host, found[1].decode(), self.open[host], head.split()[1].decode())
        self.requests.append(request)
        try:
            return (await self._answer(request, deadline))._replace(address=address)
        except ExchangeTimeout as error:
            error.address = address
            raise
        finally:
            self.open[host] -= 1
            self.address_limit.leave(address)

    async def _answer(self, request: Request, deadline: float) -> GivenAnswer:
        script = self.scripts.get(request.host, 200)
        answer: Any = None
        with trio.CancelScope(deadline=deadline) as scope:
            answer = script(request) if callable(script) else script
            if isinstance(answer, Awaitable):
                answer = await answer
        if scope.cancelled_caught:
            raise ExchangeTimeout("no answer in time", "192.0.2.1:80")
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, GivenAnswer):
            return answer
        return GivenAnswer(answer, [], b"", "192.0.2.1:80")

    # -- what is seen of it ------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since the world began."""
        return round(trio.current_time() - self.began, 3)

    async def sleep_to(self, moment: float) -> None:
        await trio.sleep_until(self.began + moment)

    def times(self, id: str | None = None, host: str | None = None) -> list[float]:
        return [
            request.at
            for request in self.requests
            if (id is None or request.id == id) and (host is None or request.host == host)
        ]

    def ids(self, host: str = HOST) -> list[str]:
        return [request.id for request in self.requests if request.host == host]

    def most_open(self, at: float, host: str = HOST) -> int:
        """How many requests a host had open at most, of those that began at a moment."""
        return max(request.beside for request in self.requests if (request.at, request.host) == (at, host))

    @property
    def lanes(self) -> LaneCache:
        return self.delivery._lanes

    def looks(self, seconds: float) -> int:
        """How often a gateway with nothing to do looks whether there is something, in so much time."""
        return 0

    async def message_view(self, id: str) -> MessageView:
        view = await self.ledger.message_view(raw_id(id))
        assert view is not None
        return view

    async def state(self, id: str) -> MessageState:
        return (await self.message_view(id)).state

    async def states(self, ids: list[str]) -> Counter[MessageState]:
        return Counter([await self.state(id) for id in ids])

    async def circuit(self, key: str = HOST) -> Circuit:
        view = await self.ledger.circuit(key)
        assert view is not None
        return view.record.circuit

    async def circuit_state(self, key: str = HOST) -> CircuitState:
        return (await self.circuit(key)).state

    async def trip(self, host: str = HOST, number: int = 3) -> list[str]:
        """Have a host's circuit disabled by messages that fail; for worlds with TRIPS_AT_3."""
        await settle()
        script = self.scripts.get(host, 200)
        self.scripts[host] = 500
        ids = [await self.accept(host) for _ in range(number)]
        await settle()
        self.scripts[host] = script
        assert await self.circuit_state(host) is CircuitState.DISABLED
        return ids


class Maker:
    """Makes the worlds of a test, on the store that it is run with."""

    make: Callable[[Config], World] = World


def world(**sections: dict[str, Any]) -> World:
    return Maker.make(build(sections))


async def settle() -> None:
    """Let everything happen that happens at this moment."""
    await trio.testing.wait_all_tasks_blocked()


def raw_id(id: str) -> MessageId:
    parsed = parse_id(id)
    assert parsed is not None
    return parsed


def every(seconds: float, *, start: float, number: int) -> list[float]:
    """Moments at a fixed distance, to compare with those of requests."""
    return [round(start + seconds * index, 3) for index in range(number)]
