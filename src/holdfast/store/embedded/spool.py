"""Keeps new messages on this machine while the database that replicas share is unreachable.

They are acknowledged once they are in a store on this machine's disk, and moved when the database is back; nothing is
delivered from here. While a host has messages here, its new ones are put behind them, so that its order holds; those of
other hosts go straight to the database. A message that the database may or may not have stored when it became
unreachable is put here under the same id, by which the database knows it.

A host that gets messages all the time would never have none left here. So new messages are held back while others are
moved: for each page that has gone at most half as many come in. When little is left none do, until it has gone and they
can go to the database themselves.

Until the database was reached once, times are those of this machine's own clock, which may be wrong. So the age of a
message that was never tried counts from when it is moved, and it is held no longer than it was to be.
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
    DoneOrFailed,
    Forget,
    Purge,
    Shelve,
    StoreListener,
)
from holdfast.store.transfer import PAGE, StoredMessage, TakeIn, Transferred, transfer_to_database

LITTLE = 2 * PAGE
TRY_AGAIN_AFTER = 0.25
WAIT_FOR_ROOM = 5.0
"""Seconds before messages that the database has no room for are offered again."""
LANES_A_PAGE = 1_000
PURGED_AT_ONCE = 1_000


class SharedDatabase(Acceptance, Protocol):
    """The store that all messages go to in the end."""

    @property
    def unreachable(self) -> bool: ...

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

    def __init__(self, database: SharedDatabase, ledger: Ledger, rules: StoreRules, clock: Clock) -> None:
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
        """Takes effect with the next group."""
        self._rules = rules
        self.ledger.configure(rules)

    async def wait_empty(self) -> None:
        await self._emptied.wait()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled. Messages that are not moved by then stay on disk for the next start."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.ledger.run)
            if self.failed is None:
                await self._find_earlier()
                nursery.start_soon(self._keep_moving)
            task_status.started()

    # -- coming in ---------------------------------------------------------------------------------------------------

    def mint(self, now: int) -> MessageId:
        return self._database.mint(now)

    def submit(self, operation: Accept) -> None:
        if self._database.unreachable or operation.message.host in self._hosts:
            self.put(operation)
        else:
            operation.done = _TryDatabase(self, operation, operation.done)
            self._database.submit(operation)

    def put(self, operation: Accept) -> None:
        """Keep a message here, or hold it back while others are moved."""
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
        """One more message is on disk."""
        if self.since is None:
            self._begin(self._clock.now(), 0)

    def _begin(self, since: int, found: int) -> None:
        self.since = since
        self._emptied = trio.Event()
        self._filled.set()
        self.listener.spool_filled(found)

    def is_not_here(self, host: str) -> None:
        """One message has gone, or was refused."""
        self._hosts[host] -= 1
        if self._hosts[host] <= 0:
            del self._hosts[host]

    async def _find_earlier(self) -> None:
        """Count the messages that an earlier run has left here."""
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
        """Once through all messages here. Returns after how many seconds to go on."""
        if self._database.unreachable:
            return TRY_AGAIN_AFTER
        self._held = deque()
        self._is_last = sum(count for host, count in self._hosts.items() if host not in moved.left) <= LITTLE
        try:
            # After this, all operations submitted so far are on disk.
            await self.ledger.perform(Shelve([]))
            await transfer_to_database(self.ledger, self._take_in, moved, self._arrived)
            if self._is_last and not moved.full:
                self._finish(moved)
        except StoreUnreachable:
            return TRY_AGAIN_AFTER
        except CommitFailed:
            # Of either store, which logs it. The database goes on by itself or ends the process.
            return WAIT_FOR_ROOM
        finally:
            self._release()
        return WAIT_FOR_ROOM if moved.left else 0

    def _finish(self, moved: Transferred) -> None:
        """Nothing came meanwhile: messages that are still here can't be read, or the database has no room for them."""
        self._hosts = Counter({host: count for host, count in self._hosts.items() if host in moved.left})
        if moved.left:
            return
        self._filled, self.since = trio.Event(), None
        self._emptied.set()
        self._tidy()
        self.listener.spool_emptied(moved.count, moved.known, moved.duplicates)

    async def _take_in(self, page: Sequence[StoredMessage]) -> list[Any]:
        now = self._clock.now()
        return await self._database.take_in([_dated_now(each, now) for each in page])

    def _arrived(self, page: list[StoredMessage]) -> None:
        for each in page:
            self.is_not_here(each.message.host)
            self._lanes.add(each.message.lane)
        if self._held is not None and not self._is_last:
            for _ in range(min(len(self._held), len(page) // 2)):
                self._keep(self._held.popleft())

    def _release(self) -> None:
        """Submit the messages that were held back."""
        held, self._held = self._held or (), None
        for operation in held:
            self.submit(operation)

    def _tidy(self) -> None:
        """Remove the circuits that came with messages that have gone, which the database keeps; and expired keys.
        Younger keys stay: they answer while the database is unreachable.
        """
        for lane in self._lanes:
            self.ledger.submit(Forget(lane))
        self._lanes.clear()
        self.ledger.submit(Purge(0, 0, self._clock.now() - self._rules.idempotency, PURGED_AT_ONCE))


def _dated_now(each: StoredMessage, now: int) -> StoredMessage:
    message, place = each.message, each.place
    if place.attempts or each.reason is not None:
        return each
    born = now + min(max(0, message.born - now), message.born - message.accepted_at)
    return each._replace(
        message=message._replace(accepted_at=min(message.accepted_at, now), born=born),
        place=place._replace(born=born, due=born if place.due else 0),
        key=None if each.key is None else each.key._replace(at=now),
    )


class _TryDatabase(DoneOrFailed):
    """Called with the result of a message on its way to the database. If that is unreachable, it stays here."""

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


class _Spooled(DoneOrFailed):
    """Called with the result of a message on its way to this machine's disk."""

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
