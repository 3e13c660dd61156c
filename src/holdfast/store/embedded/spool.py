"""Where new messages go while the database that replicas share is away: a store on this machine's own disk.

They are acknowledged once they are there, and moved over when the database is back; nothing is delivered from here. A
host that still has something here gets nothing past it, so that its order holds; all others go straight to the
database. What the database may or may not have stored when it went away is put here under the same id, by which it is
known there.

A host that gets messages all the time would never have none left here. So while messages are moved, new ones that
belong behind them are held back: for each page that has gone at most half as many come in, and when little is left none
do, until that has gone and they can go to the database themselves.

What comes while the database was never heard of has the times of this machine's own clock, which may be wrong. So the
age of a message that was never tried counts from when it is moved, and it is held for no longer than it was to be.
"""

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Protocol

import trio

from holdfast.clock import Clock
from holdfast.core.errors import CommitFailed, StoreUnreachable
from holdfast.core.message import MessageId
from holdfast.core.store_rules import StoreRules
from holdfast.store.embedded.ledger import Ledger
from holdfast.store.port import (
    Accept,
    Acceptance,
    Accepted,
    Commit,
    Done,
    Forget,
    Hearing,
    Purge,
    Shelve,
    StoreListener,
)
from holdfast.store.transfer import PAGE, StoredMessage, TakeIn, Transferred, transfer_to_database

LITTLE = 2 * PAGE
TRY_AGAIN_AFTER = 0.25
WAIT_FOR_ROOM = 5.0
"""Seconds before what the database has no room for is offered again."""
LANES_A_PAGE = 1_000
PURGED_AT_ONCE = 1_000


class Database(Acceptance, Protocol):
    """The store that everything goes to in the end."""

    @property
    def away(self) -> bool: ...

    @property
    def take_in(self) -> TakeIn: ...


class _LedgerListener(StoreListener):
    """Passes on what the spool's own store reports. Nothing is delivered from it."""

    def __init__(self, spool: "Spool") -> None:
        self._spool = spool

    def committed(self, commit: Commit) -> None:
        self._spool.listener.committed(Commit(0, 0.0, commit.accepted))

    def record_unreadable(self, table: str, key: str, fault: str) -> None:
        self._spool.listener.record_unreadable(table, key, fault)

    def store_failed(self, error: CommitFailed) -> None:
        self._spool.listener.store_failed(error)


class Spool:
    """An Acceptance in front of a database. Nobody else writes to its `ledger`."""

    def __init__(self, database: Database, ledger: Ledger, rules: StoreRules, clock: Clock) -> None:
        self._database = database
        self.ledger = ledger
        self._rules = rules
        self._clock = clock
        self._hosts: Counter[str] = Counter()
        self._lanes: set[str] = set()
        self._held: deque[Accept] | None = None
        self._is_last = False
        self._filled, self._emptied = trio.Event(), trio.Event()
        self._emptied.set()
        self.since: int | None = None
        """When what is here began to come; None while nothing is."""
        self.listener = StoreListener()
        ledger.listener = _LedgerListener(self)

    @property
    def count(self) -> int:
        return self._hosts.total()

    @property
    def full(self) -> bool:
        return self.ledger.full

    @property
    def failed(self) -> CommitFailed | None:
        return self.ledger.failed

    @property
    def broken(self) -> trio.Event:
        return self.ledger.broken

    def configure(self, rules: StoreRules) -> None:
        """Other numbers from the next group on."""
        self._rules = rules
        self.ledger.configure(rules)

    async def wait_empty(self) -> None:
        await self._emptied.wait()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; what is not moved by then stays on disk, for the next start."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.ledger.run)
            if self.failed is None:
                await self._look()
                nursery.start_soon(self._keep_moving)
            task_status.started()

    # -- coming in ---------------------------------------------------------------------------------------------------

    def mint(self, now: int) -> MessageId:
        return self._database.mint(now)

    def submit(self, operation: Accept) -> None:
        if self._database.away or operation.message.host in self._hosts:
            self.put(operation)
        else:
            operation.done = _Trial(self, operation, operation.done)
            self._database.submit(operation)

    def put(self, operation: Accept) -> None:
        """Keep it here, once there is a chance to get rid of it."""
        if self._held is None:
            self._keep(operation)
        else:
            self._held.append(operation)

    def _keep(self, operation: Accept) -> None:
        message = operation.message
        self._hosts[message.host] += 1
        self.ledger.last_id = max(self.ledger.last_id, message.id)
        operation.done = _Spooled(self, message.host, operation.done)
        self.ledger.submit(operation)

    def is_here(self) -> None:
        """One more is on disk."""
        if self.since is None:
            self._begin(self._clock.now(), 0)

    def _begin(self, since: int, found: int) -> None:
        self.since = since
        self._emptied = trio.Event()
        self._filled.set()
        self.listener.spool_filled(found)

    def is_not_here(self, host: str) -> None:
        """One has gone, or was not taken."""
        self._hosts[host] -= 1
        if self._hosts[host] <= 0:
            del self._hosts[host]

    async def _look(self) -> None:
        """What an earlier run has left here."""
        found = await self.ledger.statistics()
        if not found.waiting and not found.dead:
            return
        after: str | None = None
        while True:
            page, after = await self.ledger.circuits(None, after, LANES_A_PAGE)
            for view in page:
                if view.waiting:
                    self._hosts[view.record.host] += view.waiting
            if after is None:
                break
        self._begin(found.oldest_waiting_at or self._clock.now(), found.waiting + found.dead)

    # -- going out ---------------------------------------------------------------------------------------------------

    async def _keep_moving(self) -> None:
        while self.failed is None:
            await self._filled.wait()
            await self._empty()

    async def _empty(self) -> None:
        moved = Transferred()
        while True:
            pause = await self._move(moved)
            if not self._filled.is_set() or self.failed is not None:
                return
            await trio.sleep(pause)

    async def _move(self, moved: Transferred) -> float:
        """Once through all that is here. Returns after how many seconds to go on."""
        if self._database.away:
            return TRY_AGAIN_AFTER
        self._held = deque()
        self._is_last = sum(count for host, count in self._hosts.items() if host not in moved.left) <= LITTLE
        try:
            # What was submitted until now is on disk after this.
            await self.ledger.perform(Shelve([]))
            await transfer_to_database(self.ledger, self._take_in, moved, self._arrived)
            if self._is_last and not moved.full:
                self._finish(moved)
        except StoreUnreachable:
            return TRY_AGAIN_AFTER
        except CommitFailed:
            # Either store's, and each tells of it. The database keeps its own going or ends the process.
            return WAIT_FOR_ROOM
        finally:
            self._release()
        return WAIT_FOR_ROOM if moved.left else 0

    def _finish(self, moved: Transferred) -> None:
        """Nothing came meanwhile: what is still here can't be read, or the database has no room for it."""
        self._hosts = Counter({host: count for host, count in self._hosts.items() if host in moved.left})
        if moved.left:
            return
        self._filled, self.since = trio.Event(), None
        self._emptied.set()
        self._tidy()
        self.listener.spool_emptied(moved.count, moved.known, moved.duplicates)

    async def _take_in(self, page: Sequence[StoredMessage]) -> list[Any]:
        now = self._clock.now()
        return await self._database.take_in([_of_now(each, now) for each in page])

    def _arrived(self, page: list[StoredMessage]) -> None:
        for each in page:
            self.is_not_here(each.message.host)
            self._lanes.add(each.message.lane)
        if self._held is not None and not self._is_last:
            for _ in range(min(len(self._held), len(page) // 2)):
                self._keep(self._held.popleft())

    def _release(self) -> None:
        """What was held back goes where it belongs now."""
        held, self._held = self._held or (), None
        for operation in held:
            self.submit(operation)

    def _tidy(self) -> None:
        """What came with messages that have gone: circuits, which are the database's to keep, and keys past their
        time. Younger ones stay: while the database is away they answer from here.
        """
        for lane in self._lanes:
            self.ledger.submit(Forget(lane))
        self._lanes.clear()
        self.ledger.submit(Purge(0, 0, self._clock.now() - self._rules.idempotency, PURGED_AT_ONCE))


def _of_now(each: StoredMessage, now: int) -> StoredMessage:
    message, place = each.message, each.place
    if place.attempts or each.reason is not None:
        return each
    born = now + min(max(0, message.born - now), message.born - message.accepted_at)
    return each._replace(
        message=message._replace(accepted_at=min(message.accepted_at, now), born=born),
        place=place._replace(born=born, due=born if place.due else 0),
        key=None if each.key is None else each.key._replace(at=now),
    )


class _Trial(Hearing):
    """Whoever waits for a message that is on its way to the database: if that is away, it is kept here."""

    __slots__ = ("_done", "_operation", "_spool")

    def __init__(self, spool: Spool, operation: Accept, done: Done | None) -> None:
        self._spool = spool
        self._operation = operation
        self._done = done

    def __call__(self, result: Any) -> None:
        if isinstance(result, StoreUnreachable):
            self._operation.done = self._done
            self._spool.put(self._operation)
        elif self._done is not None:
            self._done(result)


class _Spooled(Hearing):
    """Whoever waits for a message that is on its way to this machine's disk."""

    __slots__ = ("_done", "_host", "_spool")

    def __init__(self, spool: Spool, host: str, done: Done | None) -> None:
        self._spool = spool
        self._host = host
        self._done = done

    def __call__(self, result: Any) -> None:
        if type(result) is Accepted:
            self._spool.is_here()
        else:
            self._spool.is_not_here(self._host)
        if self._done is not None:
            self._done(result)
