"""Brings messages that have arrived in this replica's shards to delivery, and paces notifications to other owners."""

from collections.abc import Awaitable, Callable, Collection, Container, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf

import trio

from holdfast.core.errors import StoreUnreachable
from holdfast.core.message import Entry, Message, MessageId
from holdfast.core.ownership import SHARDS, shard_of
from holdfast.store.port import Commit
from holdfast.store.postgres import arrivals
from holdfast.store.postgres.arrivals import CLOCKS_DIFFER
from holdfast.store.postgres.client import Client
from holdfast.store.postgres.shards import OwnedShards
from holdfast.store.postgres.state import WORKED_WITHIN, StoreState

HELD_FOR_EACH, HELD_AT_MOST = 0.01, 0.05
"""Seconds between two notifications of one replica: for each other replica that delivers, and at most."""


class ArrivalFeed:
    """Each message goes to delivery once, in the order of the commits."""

    def __init__(self, client: Client, state: StoreState, shards: OwnedShards) -> None:
        self._client = client
        self._state = state
        self._shards = shards
        self.known = Known()
        self._named: list[MessageId] = []
        self._own: dict[MessageId, Entry] = {}
        """Accepted here, and not to be sent before messages that others accepted earlier."""
        self._woken = trio.Event()

    def add(self, ids: list[MessageId]) -> None:
        """Messages have arrived: read those that are not known."""
        self._named += ids
        self._woken.set()

    def hold_back(self, entry: Entry) -> None:
        """A message that this replica accepted takes its turn among those that `add` has named."""
        self._own[entry.message.id] = entry

    def is_up_to_date(self, arrived_before: Sequence[MessageId]) -> bool:
        """Whether delivery has all that arrived before a commit. What it lacks is read."""
        unread = [id for id in arrived_before if id not in self.known]
        if unread:
            self.add(unread)
        return not self._named and not self._own

    def clear(self) -> None:
        self.known.clear()
        self._own.clear()

    async def find(self, shards: Collection[int], most: int) -> None:
        """Adds what has arrived in some shards and is not known. `most` is how many may have arrived."""
        find = partial(arrivals.unknown, shards=shards, known=self.known, limit=most)
        self.add(await self._client.run(find, within=WORKED_WITHIN))

    async def run(self) -> None:
        """Reads what was added, and reports it as a commit."""
        while True:
            await self._woken.wait()
            self._woken = trio.Event()
            ids, self._named = [id for id in self._named if id not in self.known], []
            own, self._own = self._own, {}
            if not ids and not own:
                continue
            try:
                with self.known.noting_left() as left:
                    found = await arrivals.read(self._client, ids, own, self.known, within=WORKED_WITHIN)
            except StoreUnreachable as error:
                self._state.disconnected(error)  # The first beat after it finds them.
                continue
            for id, fault in found.broken:
                self._state.report_unreadable("messages", id.hex(), fault)
            arrived = [entry for entry in found.entries if entry.message.id not in left and self.take(entry)]
            self._state.listener.committed(Commit(0, 0.0, arrived=arrived))

    def take(self, entry: Entry) -> bool:
        """Whether delivery takes a message. It does not if it has it already, or if its host is or goes elsewhere: the
        next owner finds it on disk.
        """
        message = entry.message
        if not self._shards.owns(message.host) or self._shards.is_leaving(message.host) or message.id in self.known:
            return False
        self.known.add(message, entry.place.born)
        return True


class Known:
    """Messages that have arrived and are in delivery's memory, with their shards."""

    def __init__(self) -> None:
        self._shards: dict[MessageId, int] = {}
        self._last: dict[int, bytes] = {}
        self._noted: list[set[MessageId]] = []
        self.younger: dict[MessageId, int] = {}
        """Messages that another replica's clock made older than an earlier one, with the `born` that they get."""

    def __contains__(self, id: object) -> bool:
        return id in self._shards

    def __len__(self) -> int:
        return len(self._shards)

    def add(self, message: Message, born: int) -> None:
        """Called in the order of commits. `born` is the stored one."""
        shard = self._shards[message.id] = shard_of(message.host)
        if message.is_delayed:
            return
        last, own = self._last.get(shard, b""), born.to_bytes(8, "big") + message.id
        ahead = int.from_bytes(last[:8], "big")
        if own > last:
            self._last[shard] = own
        elif ahead - born < CLOCKS_DIFFER:
            self.younger[message.id] = ahead + 1
            self._last[shard] = (ahead + 1).to_bytes(8, "big") + message.id

    def leave(self, id: MessageId) -> None:
        self._shards.pop(id, None)
        self.younger.pop(id, None)
        for noted in self._noted:
            noted.add(id)

    def forget(self, shards: Container[int]) -> None:
        for id in [id for id, shard in self._shards.items() if shard in shards]:
            self.leave(id)

    def clear(self) -> None:
        self.forget(range(SHARDS))

    @contextmanager
    def noting_left(self) -> Iterator[set[MessageId]]:
        """Collects messages that leave meanwhile: a read that began before may still return them."""
        left: set[MessageId] = set()
        self._noted.append(left)
        try:
            yield left
        finally:
            self._noted = [noted for noted in self._noted if noted is not left]


class Hints:
    """Paces the notifications to other owners. Each one wakes a session of every replica that delivers. So the more
    replicas there are, the longer messages are held, to share the next notification. The first after a pause is sent
    with the commit of its messages.
    """

    def __init__(
        self, send: Callable[[Sequence[MessageId], Sequence[int]], Awaitable[None]], replicas: Callable[[], int]
    ) -> None:
        self._send = send
        self._replicas = replicas
        self._held: dict[MessageId, int] = {}
        self._woken = trio.Event()
        self._last = -inf

    @property
    def _next(self) -> float:
        return self._last + min(HELD_AT_MOST, HELD_FOR_EACH * (self._replicas() - 1))

    def go_along(self) -> bool:
        """Whether a commit that begins now notifies. If not, its messages have to be held."""
        now = trio.current_time()
        if self._held or now < self._next:
            return False
        self._last = now
        return True

    def hold(self, message: Message) -> None:
        self._held[message.id] = shard_of(message.host)
        self._woken.set()

    async def run(self) -> None:
        while True:
            await self._woken.wait()
            await trio.sleep_until(self._next)
            held, self._held, self._woken = self._held, {}, trio.Event()
            self._last = trio.current_time()
            await self._send(list(held), list(held.values()))
