"""What is asked of a store, beside the one writer: each question a short read transaction, on a thread of its own.

Records that can't be read are told of once, and left out of the answer.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import TypeVar

import trio

from holdfast.core.circuit import CircuitState
from holdfast.core.errors import StoreError, StoreUnusable
from holdfast.core.message import Entry, MessageId, MessageState
from holdfast.store.embedded import choosing, reads, transfer
from holdfast.store.embedded import stories as story_reads
from holdfast.store.embedded.tables import Engine, Fault, Table, Transaction
from holdfast.store.port import (
    ALL_CLASSES,
    NO_LIMIT,
    SCARCE,
    Agenda,
    Ask,
    CircuitView,
    DeadFilter,
    Finished,
    StoreListener,
    StoreRoom,
    StoreStatistics,
    Story,
    View,
)
from holdfast.store.records import lane_key
from holdfast.store.transfer import Moving

READERS = 4
LANES_A_READ = 8
"""Each with a megabyte or two of bodies: no read transaction gets old, even on a cold disk."""
FAULTS_TOLD = 10_000
"""Broken records that are told of in one run: each is remembered, so that it is told once."""

Result = TypeVar("Result")


class Asking(ABC):
    """The reading half of the ledger."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._readers = trio.CapacityLimiter(READERS)
        self._faults: set[tuple[Table, bytes]] = set()
        self.listener = StoreListener()

    @property
    @abstractmethod
    def full(self) -> bool:
        """Whether new messages are refused for want of room."""

    @abstractmethod
    def _give_up(self, error: StoreError) -> None:
        """The store can't be used any more, for good."""

    async def _read(self, ask: Callable[[Transaction], Result]) -> Result:
        def read() -> tuple[Result, list[Fault]]:
            with self._engine.read() as transaction:
                return ask(transaction), transaction.faults

        if not self._engine.threaded:
            await trio.lowlevel.checkpoint()
            result, faults = read()
        else:
            try:
                result, faults = await trio.to_thread.run_sync(read, limiter=self._readers)
            except StoreUnusable as error:
                # The file itself is damaged. That ends the process, and with it whoever asked.
                self._give_up(error)
                await trio.sleep_forever()
        self._tell_faults(faults)
        return result

    async def survey(self, asks: Sequence[Ask], bytes_wanted: int = NO_LIMIT) -> list[View]:
        views: list[View] = []
        while len(views) < len(asks) and bytes_wanted >= 0:
            ask_some = partial(_survey, asks=asks[len(views) : len(views) + LANES_A_READ])
            some = await self._read(ask_some)
            bytes_wanted -= sum(view.size for view in some)
            views += some
        return views

    async def agenda(
        self, now: int, limit: int, skip: Container[str], classes: Container[int] = ALL_CLASSES, since: int = 0
    ) -> Agenda:
        return await self._read(lambda transaction: reads.agenda(transaction, now, limit, skip, classes, since))

    async def oldest_finished(self) -> Finished:
        return await self._read(reads.oldest_finished)

    async def story(self, id: MessageId) -> Story | None:
        return await self._read(lambda transaction: story_reads.story(transaction, id))

    async def stories(
        self, state: MessageState | None, lane: str | None, after: MessageId | None, limit: int
    ) -> tuple[list[Story], MessageId | None]:
        return await self._read(lambda transaction: story_reads.stories(transaction, state, lane, after, limit))

    async def dead(self, select: DeadFilter, limit: int) -> tuple[list[Story], bytes | None]:
        return await self._read(lambda transaction: choosing.dead_stories(transaction, select, limit))

    async def waiting(self, after: MessageId | None, limit: int) -> tuple[list[Entry], MessageId | None]:
        return await self._read(lambda transaction: transfer.waiting(transaction, after, limit))

    async def undelivered(self, after: MessageId | None, limit: int) -> tuple[list[Moving], MessageId | None]:
        """Messages that are not delivered, dead ones too, with all that is known of them, and where to go on."""
        return await self._read(lambda transaction: transfer.undelivered(transaction, after, limit))

    async def circuit(self, key: str) -> CircuitView | None:
        return await self._read(lambda transaction: reads.circuit(transaction, lane_key(key)))

    async def circuits(
        self, state: CircuitState | None, after: str | None, limit: int
    ) -> tuple[list[CircuitView], str | None]:
        return await self._read(lambda transaction: reads.circuits(transaction, state, after, limit))

    async def statistics(self) -> StoreStatistics:
        full = self.full
        return await self._read(
            lambda transaction: reads.statistics(transaction, self._engine.path, self._engine.room(), full)
        )

    async def room(self) -> StoreRoom:
        room = await self._read(lambda transaction: self._engine.room())
        return StoreRoom(room.used, self.full or room.needed > SCARCE * room.limit, self.full)

    def _tell_faults(self, faults: Sequence[Fault]) -> None:
        for table, key, what in faults:
            if (table, key) not in self._faults and len(self._faults) < FAULTS_TOLD:
                self._faults.add((table, key))
                self.listener.record_unreadable(table.name.lower(), key.hex(), what)


def _survey(transaction: Transaction, asks: Sequence[Ask]) -> list[View]:
    return [reads.survey(transaction, ask) for ask in asks]
