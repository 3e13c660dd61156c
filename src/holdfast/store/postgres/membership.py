"""This replica's part in the fleet: it joins, renews its lease, takes and hands over shards, and hears of arrivals.

Shards move in three ways. One whose owner is dead or gone has none, and is taken by the replica that it belongs to.
One that belongs to another living replica is handed over once nothing of it is in flight or unwritten here. And a
replica that finds itself declared dead has lost all of them: it drops what it has in memory and joins anew, under
another number.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

import trio

from holdfast.clock import Clock
from holdfast.core.errors import CommitFailed, Fenced, StoreUnreachable, StoreUnusable
from holdfast.core.ownership import LAST_BEGIN, Liveness, owners_of_shards
from holdfast.store.postgres import migration, ownership, schema, shares
from holdfast.store.postgres.client import Client, NoAnswer
from holdfast.store.postgres.connection import Connection, Result, Work, outside_transaction
from holdfast.store.postgres.ownership import MOVED, Membership, Owned, Renewal, SharedTime
from holdfast.store.postgres.write_queue import TRY_AGAIN_AFTER

MEASURE_EVERY = 10
"""Beats between two looks at how full the store is and at what those who are gone left behind."""
KEEP_TIME_EVERY = 10_000
NUMBER_BITS, STEP_BITS = 61, 24
WITHIN = 3.0
"""Seconds in which the database has to answer: two tries fit into a lease."""
MIGRATED_WITHIN = 3_600.0
"""Seconds that the steps to other tables may take."""

_logger = logging.getLogger("holdfast.store")


class Listener(Protocol):
    """What the store does when something changes for this replica."""

    def joined(self, time: int) -> None:
        """This replica came into the fleet, whose time it takes."""

    def connected(self, renewal: Renewal, asked_at: int) -> int:
        """The lease was renewed. Returns by how much the fleet's time has jumped."""

    def disconnected(self, error: StoreUnreachable) -> None: ...

    def abort(self) -> None:
        """The database says nothing any more: no connection to it is of use."""

    def lost(self) -> None:
        """No shard is this replica's any more, and nothing that it has in memory."""

    async def shelve_arrived(self, shards: Mapping[int, int]) -> None:
        """Shards come, with their epochs: put what has arrived there into the queues."""

    async def gained(self, shards: Collection[int]) -> None:
        """Shards came."""

    def let_go(self) -> Collection[int]:
        """Begin nothing more in the shards that leave. Returns those in which something is still under way."""

    async def release(self, shards: Mapping[int, int]) -> None:
        """Give shards to other replicas."""

    def notified(self, payloads: Sequence[str]) -> None:
        """Of messages that were accepted elsewhere for this replica, of requests and answers."""

    def measured(self, used: int) -> None: ...

    async def look(self, renewal: Renewal) -> None:
        """A beat: look for what notifications did not tell."""


class Member:
    """All moments in here are by the clock's `uptime`."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        random_bits: Callable[[int], int],
        listener: Listener,
        *,
        name: str,
        delivers: bool,
        listens: bool,
        lease: int,
        renew_every: int,
    ) -> None:
        self._client = client
        self._clock = clock
        self._random_bits = random_bits
        self._listener = listener
        self._name = name
        self._delivers = delivers
        self._may_listen = listens
        self.lease, self._renew_every = lease, renew_every
        self._nursery: trio.Nursery | None = None
        self._gaining: set[int] = set()
        self._released: dict[int, int] = {}
        self._left = trio.Event()
        self._renewed_at = 0
        self._lives = Liveness(lease)
        self._beats = 0
        self._is_current = False
        self._is_called = False
        self._is_deaf = False
        self._steps_back = False
        self._woken = trio.Event()
        self.membership: Membership | None = None
        self.owned: dict[int, int] = {}
        """The shards of this replica, with their epochs."""
        self.leaving: dict[int, int] = {}
        """Those of them that go to other replicas, and to which."""
        self.owners: dict[int, int] = {}
        self.notifies = False
        """Whether the database can."""
        self.listening = 1
        """How many replicas deliver."""

    @property
    def begins_until(self) -> int:
        """The moment from which no attempt may begin, unless the lease is renewed before."""
        return self._renewed_at + self.lease - LAST_BEGIN if self.membership is not None else 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. It has started once it has joined, or found that the database can't be reached. Raises
        CommitFailed.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._hand_over)
            await self._go_on()
            task_status.started()
            while True:
                await self._go_on()

    async def _go_on(self) -> None:
        """Join, or wait for the next beat and renew. What can't be reached is tried again."""
        try:
            if self.membership is None:
                await self.join()
            else:
                await self._wait_for_beat()
                await self.beat()
        except StoreUnreachable as error:
            self._lives.forget()
            self._is_called = self._is_deaf = True  # Both until the database is back.
            if isinstance(error, NoAnswer):
                self._listener.abort()
            self._listener.disconnected(error)
            await trio.sleep(TRY_AGAIN_AFTER)
        except StoreUnusable as error:
            raise CommitFailed(str(error)) from error

    async def join(self) -> None:
        """Come into the fleet under a new number. Raises StoreUnreachable or StoreUnusable."""
        if await self._run(migration.version) != schema.VERSION:
            await self._client.run(outside_transaction(migration.bring_up_to_date), within=MIGRATED_WITHIN)
        number = self._random_bits(NUMBER_BITS)
        asked_at = self._clock.uptime()
        await self._listen(number)
        self.membership, time = await self._run(
            partial(ownership.join, number=number, name=self._name, delivers=self._delivers, lease=self.lease)
        )
        self._renewed_at = asked_at
        self._listener.joined(time)
        await self.beat()

    async def _listen(self, number: int) -> None:
        """Once a connection. A replica that owns nothing need not: a notification wakes every session that listens."""
        can_listen = partial(ownership.can_listen, number=number, stays=self._delivers)
        self.notifies = self._may_listen and await self._run(can_listen)
        self._is_deaf = False

    async def _run(self, work: Work[Result]) -> Result:
        return await self._client.run(work, within=WITHIN)

    async def leave(self) -> None:
        """Go out of the fleet, so that others take over at once."""
        membership, self.membership = self.membership, None
        if membership is not None:
            await self._run(partial(ownership.leave, membership=membership))

    def step_back(self, steps_back: bool) -> None:
        """Have others own the hosts while this process drains, if there are any; or take part again."""
        self._steps_back = steps_back
        self._is_called = True
        self._woken.set()

    def lose(self) -> None:
        """Declared dead, or copied."""
        if self.membership is None:
            return
        _logger.warning("this replica was declared dead, and joins the fleet under another number")
        self.membership = None
        self.owned.clear()
        self.leaving = {}
        self._gaining = set()
        self._released.clear()
        self._listener.lost()

    @property
    def are_moving(self) -> bool:
        """Whether any shards are."""
        return bool(self.leaving or self._gaining)

    def is_leaving(self, shard: int) -> bool:
        """Also while it is still to come."""
        return shard in self.leaving or shard in self._gaining

    def left(self) -> None:
        """Something of a shard that leaves has ended."""
        self._left.set()

    def released(self, shards: Mapping[int, int], to: Mapping[int, int]) -> None:
        """Shards are other replicas', as of the commit that is being told."""
        self._released |= shards
        self.owners |= to
        for shard in shards:
            self.owned.pop(shard, None)
            self.leaving.pop(shard, None)

    async def beat(self) -> None:
        membership = self.membership
        if membership is None:
            return
        asked_at = self._clock.uptime()
        self._is_called = False
        if self._is_deaf:
            await self._listen(membership.number)
        delivers = self._delivers and not self._steps_back
        step = 1 + self._random_bits(STEP_BITS)
        values = ownership.renewing(membership, delivers, self.lease, step)
        found = await self._client.execute(ownership.RENEW, values, within=WITHIN)
        renewal = ownership.renewed(membership, delivers, found)
        if renewal.is_lost:
            self.lose()
            return
        membership.run, self.listening = renewal.run, len(renewal.delivering)
        self._renewed_at = asked_at
        jump = self._listener.connected(renewal, asked_at)
        dead = self._lives.dead(renewal.renewals, asked_at)
        if self._lives.has_silent_replica:
            await self._run(ownership.cut_off)
        if dead:
            await self._run(partial(ownership.bury, renewals=dead))
        await self._share_out(membership, renewal.shards, renewal.delivering)
        await self._tidy()
        await self._keep_time(renewal, jump)
        await self._listener.look(renewal)

    async def _keep_time(self, renewal: Renewal, jump: int) -> None:
        """Of the fleet, for all; a jump of the database's clock is not followed."""
        before, now = renewal.clock, self._clock.now()
        if 0 in self.owned and (jump or now - before.last >= KEEP_TIME_EVERY):
            after = SharedTime(before.shift - jump, now)
            await self._run(partial(ownership.keep_time, before=before, after=after))

    async def _share_out(self, membership: Membership, shards: Mapping[int, Owned], delivering: frozenset[int]) -> None:
        """Take what belongs to this replica and has no owner; hand over what belongs to another."""
        number = membership.number
        self.owners = {shard: each.owner for shard, each in shards.items() if each.owner is not None}
        if not self._delivers or not await self._deliveries_may_begin() or self.membership is not membership:
            return
        mine = {shard: each.epoch for shard, each in shards.items() if each.owner == number}
        if not self.owned.keys() <= mine.keys() | self.leaving.keys():
            self.lose()
            return
        belongs = owners_of_shards(delivering)
        free = [shard for shard, each in shards.items() if each.owner is None and belongs.get(shard) == number]
        if free:
            mine |= await self._run(partial(ownership.take_free, number=number, shards=free))
            if self.membership is not membership:
                return
        # What was released while the renewal was under way may be shown as it was before.
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
        # What stays after all was let go of, like what comes.
        gained |= {shard: self.owned[shard] for shard in were_leaving if shard not in self.leaving}
        if gained:
            assert self._nursery is not None
            self._gaining.update(gained)
            self._nursery.start_soon(self._gain, membership, gained)
        self._left.set()

    async def _gain(self, membership: Membership, shards: Mapping[int, int]) -> None:
        """Own shards once what has arrived there is in the queues."""
        while self.membership is membership:
            try:
                await self._listener.shelve_arrived(shards)
                break
            except StoreUnreachable:
                await trio.sleep(TRY_AGAIN_AFTER)
            except Fenced:
                return
        if self.membership is membership:
            self.owned |= shards
            self.owners |= dict.fromkeys(shards, membership.number)
            self._gaining.difference_update(shards)
            with suppress(StoreUnreachable):  # The next beat finds what has arrived.
                await self._listener.gained(shards)

    async def _hand_over(self) -> None:
        """Give the shards that leave to their new owners, each as soon as nothing of it is under way."""
        while True:
            await self._left.wait()
            self._left = trio.Event()
            if self.leaving:
                busy = self._listener.let_go()
                ready = {shard: to for shard, to in self.leaving.items() if shard not in busy}
                with suppress(StoreUnreachable, Fenced):  # The next beat finds what is still to be done.
                    await self._listener.release(ready)

    async def _deliveries_may_begin(self) -> bool:
        """Not while replicas are alive that deliver by an older version's rules."""
        if not self._is_current:
            catch_up = outside_transaction(migration.catch_up)
            self._is_current = await self._client.run(catch_up, within=MIGRATED_WITHIN)
        return self._is_current

    async def _tidy(self) -> None:
        self._beats += 1
        if self._beats % MEASURE_EVERY == 1:
            self._listener.measured(await self._run(_fold_and_measure))

    async def _wait_for_beat(self) -> None:
        """Listen, where that is possible, until the lease wants to be renewed or a shard has come."""
        next_beat = self._renewed_at + self._renew_every
        while self._clock.uptime() < next_beat and not self._is_called:
            seconds = min(self._renew_every, next_beat - self._clock.uptime()) / 1000
            if not (self.notifies and self._delivers):
                with trio.move_on_after(seconds):
                    await self._woken.wait()
                    self._woken = trio.Event()
                continue
            payloads = await self._client.notifications(seconds)
            self._listener.notified(payloads)
            if MOVED in payloads:
                return


def _fold_and_measure(connection: Connection) -> int:
    shares.fold(connection)
    used = shares.total(connection).bytes
    connection.commit()
    return used
