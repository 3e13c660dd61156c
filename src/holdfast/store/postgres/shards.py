"""The shards that this replica owns, and how it takes and hands over some.

A shard moves in three ways. One whose owner is dead or gone has none; the replica that it belongs to takes it. One that
belongs to another living replica is handed over once nothing of it is in flight or unwritten here. And a replica that
was declared dead has lost all of them.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Protocol

import trio

from holdfast.core.errors import Fenced, StoreUnreachable
from holdfast.core.ownership import SHARDS, owners_of_shards, shard_of
from holdfast.store.postgres import ownership_tables
from holdfast.store.postgres.client import Client
from holdfast.store.postgres.ownership_tables import BEAT_WITHIN, Membership, Owned
from holdfast.store.postgres.state import TRY_AGAIN_AFTER


class ShardMoves(Protocol):
    """What the store does when shards move."""

    async def shelve_arrived(self, shards: Mapping[int, int]) -> None:
        """Shards come, given with their epochs: put the messages that have arrived there into the queues."""

    async def gained(self, shards: Collection[int]) -> None:
        """Shards came."""

    def let_go(self) -> Collection[int]:
        """Begin nothing more in the shards that leave. Returns those in which something is still under way."""

    async def release(self, shards: Mapping[int, int]) -> None:
        """Give shards to other replicas."""


class OwnedShards:
    """All shards are given with their epochs, which count their changes of owner."""

    def __init__(self, client: Client, moves: ShardMoves) -> None:
        self._client = client
        self._moves = moves
        self._membership: Membership | None = None
        self._nursery: trio.Nursery | None = None
        self._gaining: set[int] = set()
        self._released: dict[int, int] = {}
        self._left = trio.Event()
        self.owned: dict[int, int] = {}
        self.leaving: dict[int, int] = {}
        """Owned shards that go to other replicas, and to which."""
        self.owners: dict[int, int] = {}
        """The owner of each shard that has one, as last read."""

    def owns(self, host: str) -> bool:
        """Whether this replica delivers to a host."""
        return shard_of(host) in self.owned

    def is_leaving(self, host: str) -> bool:
        """Whether a host goes to another replica, or is still to come: nothing begins for it here."""
        if not self.leaving and not self._gaining:
            return False
        shard = shard_of(host)
        return shard in self.leaving or shard in self._gaining

    def left(self) -> None:
        """Something in a shard that leaves has ended."""
        self._left.set()

    def owner_of(self, host: str) -> int | None:
        return self.owners.get(shard_of(host))

    @property
    def are_complete(self) -> bool:
        """Whether every shard has an owner."""
        return len(self.owners) == SHARDS

    @property
    def staying(self) -> Collection[int]:
        return self.owned.keys() - self.leaving.keys()

    def clear(self) -> None:
        """This replica was declared dead."""
        self._membership = None
        self.owned.clear()
        self.leaving = {}
        self._gaining = set()
        self._released.clear()

    def released(self, shards: Mapping[int, int], to: Mapping[int, int]) -> None:
        """Shards are other replicas', as of a commit."""
        self._released |= shards
        self.owners |= to
        for shard in shards:
            self.owned.pop(shard, None)
            self.leaving.pop(shard, None)

    def run_in(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        nursery.start_soon(self._hand_over)

    async def share_out(self, membership: Membership, shards: Mapping[int, Owned], delivering: frozenset[int]) -> bool:
        """Takes the shards that belong to this replica and have no owner, and begins to hand over those that belong to
        another. Returns False if this replica has lost some that it did not give.
        """
        self._membership, number = membership, membership.number
        mine = {shard: each.epoch for shard, each in shards.items() if each.owner == number}
        if not self.owned.keys() <= mine.keys() | self.leaving.keys():
            return False
        belongs = owners_of_shards(delivering)
        free = [shard for shard, each in shards.items() if each.owner is None and belongs.get(shard) == number]
        if free:
            take = partial(ownership_tables.take_free, number=number, shards=free)
            mine |= await self._client.run(take, within=BEAT_WITHIN)
            if self._membership is not membership:
                return True
        # A renewal that was under way during a release may show a released shard as still owned.
        gained = {
            shard: epoch
            for shard, epoch in mine.items()
            if shard not in self.owned and shard not in self._gaining and epoch > self._released.get(shard, -1)
        }
        were_leaving = self.leaving
        self.leaving = {
            shard: to
            for shard in self.owned
            if (to := belongs.get(shard, number)) != number and shard not in self._gaining
        }
        # Delivery has let go of those that stay after all, so they come like new ones.
        gained |= {shard: self.owned[shard] for shard in were_leaving if shard not in self.leaving}
        if gained:
            assert self._nursery is not None
            self._gaining.update(gained)
            self._nursery.start_soon(self._gain, membership, gained)
        self._left.set()
        return True

    async def _gain(self, membership: Membership, shards: Mapping[int, int]) -> None:
        """Owns shards once the messages that have arrived there are in the queues."""
        while self._membership is membership:
            try:
                await self._moves.shelve_arrived(shards)
                break
            except StoreUnreachable:
                await trio.sleep(TRY_AGAIN_AFTER)
            except Fenced:
                return
        if self._membership is membership:
            self.owned |= shards
            self.owners |= dict.fromkeys(shards, membership.number)
            self._gaining.difference_update(shards)
            with suppress(StoreUnreachable):  # The next beat finds what has arrived.
                await self._moves.gained(shards)

    async def _hand_over(self) -> None:
        """Gives the shards that leave to their new owners, each as soon as nothing in it is under way."""
        while True:
            await self._left.wait()
            self._left = trio.Event()
            if self.leaving:
                busy = self._moves.let_go()
                ready = {shard: to for shard, to in self.leaving.items() if shard not in busy}
                with suppress(StoreUnreachable, Fenced):  # The next beat tries again.
                    await self._moves.release(ready)
