"""This replica as a member of the fleet: it joins, renews its lease once a beat, and listens for notifications.

A replica that finds itself declared dead drops all that it has in memory and joins again under another number.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import trio

from holdfast.core.errors import CommitFailed, StoreUnreachable, StoreUnusable
from holdfast.core.ownership import LAST_BEGIN, Liveness
from holdfast.store.postgres import migration, ownership_tables, schema, shares
from holdfast.store.postgres.client import Client, NoAnswer
from holdfast.store.postgres.ownership_tables import BEAT_WITHIN, MOVED, Membership, Renewal, SharedTime
from holdfast.store.postgres.rows import Terms
from holdfast.store.postgres.shards import OwnedShards
from holdfast.store.postgres.state import TRY_AGAIN_AFTER, StoreState
from holdfast.store.postgres.transactions import Connection, Result, Work, outside_transaction

MEASURE_EVERY = 10
"""Beats between two measurements of how full the store is."""
KEEP_TIME_EVERY = 10_000
NUMBER_BITS, STEP_BITS = 61, 24
MIGRATED_WITHIN = 3_600.0
"""Seconds that the steps to other tables may take."""

_logger = logging.getLogger("holdfast.store")


class MemberEvents(Protocol):
    """What the store does when something changes for this replica."""

    def abort(self) -> None:
        """The database does not answer: drop every connection to it."""

    def lost(self) -> None:
        """This replica owns no shard any more, and nothing in its memory is valid."""

    def notified(self, payloads: Sequence[str]) -> None:
        """Notifications came: messages that others accepted for this replica, requests, or answers."""

    async def look(self, renewal: Renewal) -> None:
        """A beat was made: look for what lost notifications would have named."""


class Member:
    """All moments in here are by the clock's `uptime`."""

    def __init__(
        self,
        client: Client,
        state: StoreState,
        shards: OwnedShards,
        events: MemberEvents,
        random_bits: Callable[[int], int],
        *,
        name: str,
        delivers: bool,
        listens: bool,
        lease: int,
        renew_every: int,
    ) -> None:
        self._client = client
        self._state = state
        self._clock = state.clock
        self._shards = shards
        self._events = events
        self._random_bits = random_bits
        self._name = name
        self._delivers = delivers
        self._may_listen = listens
        self._lease, self._renew_every = lease, renew_every
        self._renewed_at = 0
        self._lives = Liveness(lease)
        self._beats = 0
        self._is_current = False
        self._beats_now = False
        self._has_to_listen = False
        self._steps_back = False
        self._woken = trio.Event()
        self.membership: Membership | None = None
        self.notifies = False
        """Whether the database can."""
        self.delivering = 1
        """How many replicas deliver."""

    @property
    def number(self) -> int:
        """0 while this replica is no member."""
        return 0 if self.membership is None else self.membership.number

    def terms(self, connection: int) -> Terms:
        """Of a transaction on the connection that writes new messages (0), or the one for outcomes (1)."""
        membership, state, number = self.membership, self._state, self.number
        if membership is not None and membership.run != state.rules.run:
            state.rules = replace(state.rules, run=membership.run)
        owners = self._shards.owners if self.notifies else {}
        writer, owned = 2 * number + connection, self._shards.owned.keys()
        return Terms(state.rules, number, writer, self._clock.now(), state.max_size, owners, owned)

    @property
    def begins_until(self) -> int:
        """The moment from which no attempt may begin, unless the lease is renewed before."""
        return self._renewed_at + self._lease - LAST_BEGIN if self.membership is not None else 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until cancelled. It has started once it has joined, or found the database unreachable. Raises
        CommitFailed.
        """
        async with trio.open_nursery() as nursery:
            self._shards.run_in(nursery)
            await self._join_or_beat()
            task_status.started()
            while True:
                await self._join_or_beat()

    async def _join_or_beat(self) -> None:
        """Joins, or waits for the next beat and renews. While the database is unreachable it tries again."""
        try:
            if self.membership is None:
                await self.join()
            else:
                await self._wait_for_beat()
                await self.beat()
        except StoreUnreachable as error:
            self._lives.forget()
            self._beats_now = self._has_to_listen = True  # Both until the database is back.
            if isinstance(error, NoAnswer):
                self._events.abort()
            self._state.disconnected(error)
            await trio.sleep(TRY_AGAIN_AFTER)
        except StoreUnusable as error:
            raise CommitFailed(str(error)) from error

    async def join(self) -> None:
        """Joins the fleet under a new number. Raises StoreUnreachable or StoreUnusable."""
        if await self._run(migration.version) != schema.VERSION:
            await self._client.run(outside_transaction(migration.bring_up_to_date), within=MIGRATED_WITHIN)
        number = self._random_bits(NUMBER_BITS)
        asked_at = self._clock.uptime()
        await self._listen(number)
        self.membership, time = await self._run(
            partial(ownership_tables.join, number=number, name=self._name, delivers=self._delivers, lease=self._lease)
        )
        self._renewed_at = asked_at
        self._state.follow_time(time, None)
        await self.beat()

    async def _listen(self, number: int) -> None:
        """Once a connection. A replica that owns nothing need not: a notification wakes every session that listens."""
        can_listen = partial(ownership_tables.can_listen, number=number, stays=self._delivers)
        self.notifies = self._may_listen and await self._run(can_listen)
        self._has_to_listen = False

    async def _run(self, work: Work[Result]) -> Result:
        return await self._client.run(work, within=BEAT_WITHIN)

    async def leave(self) -> None:
        """Leaves the fleet, so that others take over at once."""
        membership, self.membership = self.membership, None
        if membership is not None:
            await self._run(partial(ownership_tables.leave, membership=membership))

    def step_back(self, steps_back: bool) -> None:
        """Has others own the hosts while this process drains, if there are any; or takes part again."""
        self._steps_back = steps_back
        self._beats_now = True
        self._woken.set()

    def lose(self) -> None:
        """This replica was declared dead, or copied."""
        if self.membership is None:
            return
        _logger.warning("this replica was declared dead, and joins the fleet under another number")
        self.membership = None
        self._shards.clear()
        self._events.lost()

    async def beat(self) -> None:
        """Renews the lease, and does what the renewal finds."""
        membership = self.membership
        if membership is None:
            return
        asked_at = self._clock.uptime()
        self._beats_now = False
        if self._has_to_listen:
            await self._listen(membership.number)
        renewal = await self._renew(membership)
        if renewal.is_lost:
            self.lose()
            return
        membership.run, self.delivering = renewal.run, len(renewal.delivering)
        self._renewed_at = asked_at
        jump = self._state.connected(renewal, asked_at, self.begins_until, self._lease)
        await self._bury(renewal, asked_at)
        self._shards.owners = {shard: each.owner for shard, each in renewal.shards.items() if each.owner is not None}
        await self._share_out(membership, renewal)
        await self._measure()
        await self._keep_time(renewal, jump)
        await self._events.look(renewal)

    async def _share_out(self, membership: Membership, renewal: Renewal) -> None:
        if not self._delivers or not await self._deliveries_may_begin() or self.membership is not membership:
            return
        if not await self._shards.share_out(membership, renewal.shards, renewal.delivering):
            self.lose()

    async def _renew(self, membership: Membership) -> Renewal:
        delivers = self._delivers and not self._steps_back
        step = 1 + self._random_bits(STEP_BITS)
        values = ownership_tables.renewing(membership, delivers, self._lease, step)
        found = await self._client.execute(ownership_tables.RENEW, values, within=BEAT_WITHIN)
        return ownership_tables.renewed(membership, delivers, found)

    async def _bury(self, renewal: Renewal, asked_at: int) -> None:
        """Takes the shards of members that have not renewed for a lease."""
        dead = self._lives.dead(renewal.renewals, asked_at)
        if self._lives.has_silent_replica:
            await self._run(ownership_tables.cut_off)
        if dead:
            await self._run(partial(ownership_tables.bury, renewals=dead))

    async def _keep_time(self, renewal: Renewal, jump: int) -> None:
        """Stores the fleet's time, for all. A jump of the database's clock is not followed."""
        before, now = renewal.clock, self._clock.now()
        if 0 in self._shards.owned and (jump or now - before.last >= KEEP_TIME_EVERY):
            after = SharedTime(before.shift - jump, now)
            await self._run(partial(ownership_tables.keep_time, before=before, after=after))

    async def _deliveries_may_begin(self) -> bool:
        """Not while replicas are alive that deliver by an older version's rules."""
        if not self._is_current:
            catch_up = outside_transaction(migration.catch_up)
            self._is_current = await self._client.run(catch_up, within=MIGRATED_WITHIN)
        return self._is_current

    async def _measure(self) -> None:
        self._beats += 1
        if self._beats % MEASURE_EVERY == 1:
            self._state.room.measure(await self._run(_fold_and_measure))

    async def _wait_for_beat(self) -> None:
        """Listens, if the database notifies, until the lease is due for renewal or a shard has come."""
        next_beat = self._renewed_at + self._renew_every
        while self._clock.uptime() < next_beat and not self._beats_now:
            seconds = min(self._renew_every, next_beat - self._clock.uptime()) / 1000
            if not (self.notifies and self._delivers):
                with trio.move_on_after(seconds):
                    await self._woken.wait()
                    self._woken = trio.Event()
                continue
            payloads = await self._client.notifications(seconds)
            self._events.notified(payloads)
            if MOVED in payloads:
                return


def _fold_and_measure(connection: Connection) -> int:
    shares.fold(connection)
    used = shares.total(connection).bytes
    connection.commit()
    return used
