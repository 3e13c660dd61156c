"""What operators read of messages: one with its attempts, or a page of them."""

from collections.abc import Iterator
from heapq import merge

from holdfast.core.errors import CorruptRecord
from holdfast.core.message import Message, MessageId, MessageState, Place
from holdfast.core.schedule import state_of
from holdfast.store import records
from holdfast.store.batching import choose
from holdfast.store.embedded import reads
from holdfast.store.embedded.attempts import attempts_of
from holdfast.store.embedded.indexes import place_of
from holdfast.store.embedded.tables import Table, Transaction
from holdfast.store.port import Story


def story(transaction: Transaction, id: MessageId, *, whole: bool = True) -> Story | None:
    """One message. A page of them does without larger bodies, which nobody reads there."""
    delivered = transaction.get(Table.DELIVERED, id)
    if delivered is not None:
        return _delivered(transaction, id, delivered)
    found = reads.message_of(transaction, id, whole=whole)
    return None if found is None else _undelivered(transaction, *found)


def readable_story(transaction: Transaction, id: MessageId, *, whole: bool = True) -> Story | None:
    """One message among others: a record that can't be read must not hide those."""
    try:
        return story(transaction, id, whole=whole)
    except CorruptRecord:
        return None


def stories(
    transaction: Transaction, state: MessageState | None, lane: str | None, after: MessageId | None, limit: int
) -> tuple[list[Story], MessageId | None]:
    """A page in the order of acceptance, and the id to go on after."""

    def read(id: MessageId, record: bytes) -> Story | None:
        found = readable_story(transaction, id, whole=False)
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


def _delivered(transaction: Transaction, id: MessageId, value: bytes) -> Story:
    message, size, finished_at, last = records.decode_delivered(id, value)
    attempts = [*attempts_of(transaction, id), last]
    return Story(message, size, MessageState.DELIVERED, None, None, finished_at, attempts)


def _undelivered(transaction: Transaction, message: Message, size: int) -> Story:
    place, state = standing_of(transaction, message)
    attempts = attempts_of(transaction, message.id)
    if state is not MessageState.DEAD:
        return Story(message, size, state, place, None, None, attempts)
    reason = reads.dead_reason(transaction, message.id, place)
    return Story(message, size, state, place, reason, place.due, attempts)


def standing_of(transaction: Transaction, message: Message) -> tuple[Place, MessageState]:
    """Where a message that was not delivered stands, and the state that operators know it by."""
    place = place_of(transaction, message)
    return place, state_of(place, reads.circuit_state(transaction, message.lane))
