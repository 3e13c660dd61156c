"""The ledger's reads, and what operators ask. Each is a short read transaction on a thread of its own.

Records that can't be read are reported once, and left out of the answer.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from heapq import merge
from typing import TypeVar

import trio

from holdfast.core.circuit import CircuitState
from holdfast.core.errors import CorruptRecord, StoreError, StoreUnusable
from holdfast.core.message import Entry, Message, MessageId, MessageState, Place
from holdfast.core.schedule import state_of
from holdfast.store import records
from holdfast.store.batching import choose
from holdfast.store.embedded import reads, transfer
from holdfast.store.embedded.attempt_rows import attempts_of
from holdfast.store.embedded.indexes import place_of
from holdfast.store.embedded.tables import Engine, Fault, Table, Transaction
from holdfast.store.port import (
    ALL_CLASSES,
    NO_LIMIT,
    SCARCE,
    Agenda,
    CircuitView,
    DeadFilter,
    LaneQuery,
    LaneView,
    MessageFilter,
    MessageView,
    OldestFinished,
    StoreListener,
    StoreRoom,
    StoreStatistics,
)
from holdfast.store.records import lane_key, stamp, unstamp
from holdfast.store.transfer import StoredMessage

READERS = 4
LANES_A_READ = 8
"""Each with a megabyte or two of bodies: no read transaction gets old, even on a cold disk."""
FAULTS_REPORTED = 10_000
"""Unreadable records that are reported in one run. Each is remembered, so that it is reported once."""

Result = TypeVar("Result")


class LedgerQueries(ABC):
    """The reading half of the ledger."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._readers = trio.CapacityLimiter(READERS)
        self._faults: set[tuple[Table, bytes]] = set()
        self.listener = StoreListener()

    @property
    @abstractmethod
    def full(self) -> bool:
        """Whether new messages are refused for lack of room."""

    @abstractmethod
    def _give_up(self, error: StoreError) -> None:
        """The store can't be used any more."""

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
                # The file is damaged. The process ends, and with it this task.
                self._give_up(error)
                await trio.sleep_forever()
        self._report_faults(faults)
        return result

    async def survey(self, asks: Sequence[LaneQuery], bytes_wanted: int = NO_LIMIT) -> list[LaneView]:
        views: list[LaneView] = []
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

    async def oldest_finished(self) -> OldestFinished:
        return await self._read(reads.oldest_finished)

    async def message_view(self, id: MessageId) -> MessageView | None:
        return await self._read(lambda transaction: message_view(transaction, id))

    async def message_views(
        self, state: MessageState | None, lane: str | None, after: MessageId | None, limit: int
    ) -> tuple[list[MessageView], MessageId | None]:
        return await self._read(lambda transaction: message_views(transaction, state, lane, after, limit))

    async def dead(self, select: DeadFilter, limit: int) -> tuple[list[MessageView], bytes | None]:
        return await self._read(lambda transaction: dead_views(transaction, select, limit))

    async def waiting(self, after: MessageId | None, limit: int) -> tuple[list[Entry], MessageId | None]:
        return await self._read(lambda transaction: transfer.waiting(transaction, after, limit))

    async def undelivered(self, after: MessageId | None, limit: int) -> tuple[list[StoredMessage], MessageId | None]:
        """Returns messages that are not delivered, dead ones too, with all that is stored of them, and the id to go on
        after.
        """
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

    def _report_faults(self, faults: Sequence[Fault]) -> None:
        for table, key, what in faults:
            if (table, key) not in self._faults and len(self._faults) < FAULTS_REPORTED:
                self._faults.add((table, key))
                self.listener.record_unreadable(table.name.lower(), key.hex(), what)


def _survey(transaction: Transaction, asks: Sequence[LaneQuery]) -> list[LaneView]:
    return [reads.survey(transaction, ask) for ask in asks]


def dead_letters(
    transaction: Transaction, select: DeadFilter, limit: int
) -> tuple[list[tuple[bytes, str]], bytes | None]:
    """Returns dead letters by the time of death with their lanes, and where to go on."""

    def read(letter: bytes, value: bytes | None) -> tuple[bytes, str] | None:
        try:
            lane, reason = records.decode_dead(value or b"")
        except CorruptRecord as error:
            transaction.faults.append((Table.DEAD, letter, str(error)))
            return None
        return (letter, lane.decode()) if select.reason in (None, reason) else None

    found, _, start = choose(_letters(transaction, select), limit, read)
    return found, start


def dead_views(transaction: Transaction, select: DeadFilter, limit: int) -> tuple[list[MessageView], bytes | None]:
    """Returns the same as whole messages, without those that can't be read."""
    found, after = dead_letters(transaction, select, limit)
    views = [readable_view(transaction, unstamp(letter)[1]) for letter, _ in found]
    return [each for each in views if each is not None], after


def _letters(transaction: Transaction, select: DeadFilter) -> Iterator[tuple[bytes, bytes | None]]:
    start = select.after or stamp(select.since, bytes(16))
    letters: Iterator[tuple[bytes, bytes | None]] = transaction.scan(Table.DEAD, start)
    if select.lane is not None:
        of_lane = transaction.values(Table.DEAD_LANE, lane_key(select.lane), start)
        letters = ((letter, transaction.get(Table.DEAD, letter)) for letter in of_lane)
    for letter, value in letters:
        if unstamp(letter)[0] >= select.until:
            return
        yield letter, value


def undelivered(
    transaction: Transaction, select: MessageFilter, limit: int, skip: Container[MessageId]
) -> tuple[list[tuple[Message, Place]], MessageId | None]:
    """Returns messages that were not delivered, in the order of acceptance, and where to go on."""

    def read(id: MessageId, message: Message | None) -> tuple[Message, Place] | None:
        if message is None or id in skip or select.lane not in (None, message.lane):
            return None
        place, state = place_and_state(transaction, message)
        return (message, place) if select.state in (None, state) else None

    found, _, start = choose(_accepted(transaction, select), limit, read)
    return found, start


def _accepted(transaction: Transaction, select: MessageFilter) -> Iterator[tuple[MessageId, Message | None]]:
    """Yields None for a message that can't be read."""
    for id, value in transaction.scan(Table.MESSAGES, select.id or select.after or b""):
        message = records.message_or_none(id, value)
        if select.id not in (None, id) or (message is not None and message.accepted_at >= select.before):
            return
        yield id, message


def message_view(transaction: Transaction, id: MessageId, *, whole: bool = True) -> MessageView | None:
    """Returns one message, or None. Unless `whole`, a body kept apart is not read."""
    delivered = transaction.get(Table.DELIVERED, id)
    if delivered is not None:
        return _delivered(transaction, id, delivered)
    found = reads.message_of(transaction, id, whole=whole)
    return None if found is None else _undelivered(transaction, *found)


def readable_view(transaction: Transaction, id: MessageId, *, whole: bool = True) -> MessageView | None:
    """Returns None for a message that can't be read, so that it does not hide the others of a page."""
    try:
        return message_view(transaction, id, whole=whole)
    except CorruptRecord:
        return None


def message_views(
    transaction: Transaction, state: MessageState | None, lane: str | None, after: MessageId | None, limit: int
) -> tuple[list[MessageView], MessageId | None]:
    """Returns a page in the order of acceptance, and the id to go on after."""

    def read(id: MessageId, record: bytes) -> MessageView | None:
        found = readable_view(transaction, id, whole=False)
        is_meant = found is not None and lane in (None, found.message.lane) and state in (None, found.state)
        return found if is_meant else None

    return choose(_records(transaction, state, after), limit, read)[:2]


def _records(
    transaction: Transaction, state: MessageState | None, after: MessageId | None
) -> Iterator[tuple[bytes, bytes]]:
    start = after + b"\0" if after is not None else b""
    undelivered = transaction.scan(Table.MESSAGES, start)
    delivered = transaction.scan(Table.DELIVERED, start)
    if state is MessageState.DELIVERED:
        return delivered
    return merge(undelivered, delivered) if state is None else undelivered


def _delivered(transaction: Transaction, id: MessageId, value: bytes) -> MessageView:
    message, size, finished_at, last = records.decode_delivered(id, value)
    attempts = [*attempts_of(transaction, id), last]
    return MessageView(message, size, MessageState.DELIVERED, None, None, finished_at, attempts)


def _undelivered(transaction: Transaction, message: Message, size: int) -> MessageView:
    place, state = place_and_state(transaction, message)
    attempts = attempts_of(transaction, message.id)
    if state is not MessageState.DEAD:
        return MessageView(message, size, state, place, None, None, attempts)
    reason = reads.dead_reason(transaction, message.id, place)
    return MessageView(message, size, state, place, reason, place.due, attempts)


def place_and_state(transaction: Transaction, message: Message) -> tuple[Place, MessageState]:
    """Returns the place of a message that was not delivered, and the state that operators see."""
    place = place_of(transaction, message)
    return place, state_of(place, reads.circuit_state(transaction, message.lane))
