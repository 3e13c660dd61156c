"""Clients that record acknowledgements, receivers that record requests in order, and the checks on both.

One counter numbers all events, so "before" and "after" need no clock. Each run of the gateway identifies itself to the
receivers by its user agent.
"""

import http.client
import itertools
import subprocess
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.support import fork_server
from tests.support.harness import PATIENCE, Gateway, Received, Receiver, settings, until

Behaviour = Callable[[Received], int]


def agent(life: int) -> dict[str, str]:
    """The setting by which a gateway tells receivers which life of it they hear from."""
    return {"delivery__user_agent": f"life-{life}"}


def command(store: Path, *words: str, input: str = "", **keys: object) -> "subprocess.CompletedProcess[str]":
    """A command on a store that ends by itself."""
    return fork_server.run(*words, env=settings(store, **keys), input=input)


class Post(NamedTuple):
    """A webhook to send; with a key it is sent again until its fate is known."""

    target: str
    body: bytes
    key: str | None = None


class Acknowledged(NamedTuple):
    """`began` is when it was posted; `duplicate`: it was known by its key."""

    id: str
    life: int
    began: int
    key: str | None
    duplicate: bool


@dataclass
class Seen:
    """One request at a receiver. A thread there serves one connection, so it stands for it."""

    arrived: int
    connection: threading.Thread
    life: int
    id: str
    key: str | None
    status: int = 0

    @property
    def delivered(self) -> bool:
        return 200 <= self.status <= 299


@dataclass
class Book:
    """What clients and receivers know, over all lives of the gateway."""

    acknowledged: list[Acknowledged] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    unknown: deque[Post] = field(default_factory=deque)
    """Posts with a key whose answer never came."""
    killed: set[int] = field(default_factory=set)
    """Liveness that did not end by themselves."""
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def number(self) -> int:
        return next(self._numbers)

    def watch(self, receiver: Receiver, behave: Behaviour) -> None:
        """Have a receiver answer like this, and remember it here."""

        def answer(request: Received) -> int:
            life = int(request.headers["user-agent"].removeprefix("life-"))
            key = request.headers.get("idempotency-key")
            seen = Seen(self.number(), threading.current_thread(), life, request.id, key)
            self.seen.append(seen)
            seen.status = behave(request)
            return seen.status

        receiver.answer = answer

    # -- what must hold ----------------------------------------------------------------------------------------------

    @property
    def ids(self) -> set[str]:
        return {each.id for each in self.acknowledged}

    def missing(self) -> set[str]:
        """Acknowledged and not delivered."""
        return self.ids - {seen.id for seen in self.seen if seen.delivered}

    def wait_for_all(self) -> None:
        """Until everything acknowledged is delivered."""
        with suppress(AssertionError):
            until(lambda: not self.missing())
        missing = sorted(self.missing())
        assert not missing, f"{len(missing)} acknowledged and never delivered: {missing[:10]}"

    def recorded(self) -> dict[str, int]:
        """Ids whose delivery was surely on disk, with the life that made it.

        A connection that carries another request was given back, and its outcome handed to the store before that.
        Whatever is posted after that other request came is behind the outcome in the store's queue, which keeps its
        order: once such a post is acknowledged, the outcome is on disk.
        """
        last_began: Counter[int] = Counter()
        for each in self.acknowledged:
            if not each.duplicate:
                last_began[each.life] = max(last_began[each.life], each.began)
        connections: dict[threading.Thread, list[Seen]] = defaultdict(list)
        for seen in sorted(self.seen, key=lambda seen: seen.arrived):
            connections[seen.connection].append(seen)
        pairs = itertools.chain.from_iterable(map(itertools.pairwise, connections.values()))
        return {seen.id: seen.life for seen, after in pairs if seen.delivered and after.arrived < last_began[seen.life]}

    def repeats(self) -> int:
        """Deliveries of what had been delivered. Checks that each had a kill behind it, with its outcome in flight."""
        deliveries = [(seen.life, seen.id) for seen in self.seen if seen.delivered]
        twice = [pair for pair, times in Counter(deliveries).items() if times > 1]
        assert not twice, f"delivered twice within one life: {twice}"
        recorded = self.recorded()
        again = [seen for seen in self.seen if seen.life > recorded.get(seen.id, seen.life)]
        assert not again, f"sent again although their delivery was on disk: {again}"
        return len(deliveries) - len({id for _, id in deliveries})

    def in_flight_at_kills(self) -> int:
        """Deliveries whose outcome may not have been on disk when their life was ended."""
        recorded = self.recorded()
        return sum(
            seen.delivered and seen.life in self.killed and recorded.get(seen.id) != seen.life for seen in self.seen
        )

    def check_keys(self) -> int:
        """One key is one message, however often it was posted. Returns how many posts came again."""
        ids: dict[str, set[str]] = defaultdict(set)
        for each in itertools.chain[Acknowledged | Seen](self.acknowledged, self.seen):
            if each.key is not None:
                ids[each.key].add(each.id)
        several = {key: found for key, found in ids.items() if len(found) > 1}
        assert not several, f"one key, several messages: {several}"
        return sum(each.duplicate for each in self.acknowledged)


class Load:
    """Clients that post until they are stopped, the gateway is gone, or each has sent `at_most`."""

    def __init__(
        self, gateway: Gateway, book: Book, life: int, posts: Iterable[Iterable[Post]], at_most: int = 100
    ) -> None:
        self._gateway = gateway
        self._book = book
        self._life = life
        self._stop = threading.Event()
        self._some = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(itertools.islice(each, at_most),)) for each in posts]
        for thread in self._threads:
            thread.start()

    def wait_for_some(self) -> None:
        assert self._some.wait(PATIENCE)

    def stop(self) -> None:
        self._stop.set()
        self.wait()

    def wait(self) -> None:
        """Until all is sent."""
        for thread in self._threads:
            thread.join()

    def _send(self, posts: Iterable[Post]) -> None:
        client = http.client.HTTPConnection(self._gateway.ingest, timeout=PATIENCE)
        try:
            for post in posts:
                if self._stop.is_set() or not self._post(client, post):
                    return
        finally:
            client.close()

    def _post(self, client: http.client.HTTPConnection, post: Post) -> bool:
        """Whether there is still somebody to post to."""
        began = self._book.number()
        headers = {"idempotency-key": post.key} if post.key is not None else {}
        try:
            client.request("POST", f"/{post.target}", post.body, headers)
            answer = client.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            answer = None
        # Where ingest has a process of its own, it outlives a killed gateway for long enough to say so.
        if answer is None or answer.status == 503:
            if post.key is not None:
                self._book.unknown.append(post)
            return False
        assert answer.status == 202, answer.status
        id = answer.headers["holdfast-message-id"]
        duplicate = answer.headers["holdfast-duplicate"] == "true"
        self._book.acknowledged.append(Acknowledged(id, self._life, began, post.key, duplicate))
        self._some.set()
        return True
