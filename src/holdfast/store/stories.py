"""What operators read of messages: one with its attempts, or a page of them."""

from collections.abc import Iterator
from heapq import merge

from holdfast.core.errors import CorruptRecord
from holdfast.core.message import Message, MessageId, Place, Standing, State
from holdfast.core.place import state_of
from holdfast.store import reads, records
from holdfast.store.attempts import attempts_of
from holdfast.store.port import Story
from holdfast.store.tables import Table, Transaction

LOOKED_AT = 2_000
"""Records that one page looks at: a filter that matches little ends its page early instead of taking long."""


def story(transaction: Transaction, id: MessageId, *, whole: bool = True) -> Story | None:
    """One message. A page of them does without larger bodies, which nobody reads there."""
    delivered = transaction.get(Table.DELIVERED, id)
    if delivered is not None:
        return _delivered(transaction, id, delivered)
    found = reads.message_of(transaction, id, whole=whole)
    return None if found is None else _undelivered(transaction, *found)


def stories(
    transaction: Transaction, state: State | None, lane: str | None, after: MessageId | None, limit: int
) -> tuple[list[Story], MessageId | None]:
    """A page in the order of acceptance, and the id to go on after."""
    found: list[Story] = []
    last = after
    for looked_at, id in enumerate(_ids(transaction, state, after)):
        if len(found) >= limit or looked_at >= LOOKED_AT:
            return found, last
        last = id
        candidate = _readable(transaction, id)
        if candidate is None or (lane is not None and candidate.message.lane != lane):
            continue
        if state is None or candidate.state is state:
            found.append(candidate)
    return found, None


def _readable(transaction: Transaction, id: MessageId) -> Story | None:
    """One message for a page: a record that can't be read must not hide the others."""
    try:
        return story(transaction, id, whole=False)
    except CorruptRecord:
        return None


def _ids(transaction: Transaction, state: State | None, after: MessageId | None) -> Iterator[MessageId]:
    start = after + b"\0" if after is not None else b""
    undelivered = (key for key, _ in transaction.scan(Table.MESSAGES, start))
    delivered = (key for key, _ in transaction.scan(Table.DELIVERED, start))
    if state is State.DELIVERED:
        return delivered
    return merge(undelivered, delivered) if state is None else undelivered


def _delivered(transaction: Transaction, id: MessageId, value: bytes) -> Story:
    message, size, finished_at, last = records.decode_delivered(id, value)
    attempts = [*attempts_of(transaction, id), last]
    return Story(message, size, State.DELIVERED, None, None, finished_at, attempts)


def _undelivered(transaction: Transaction, message: Message, size: int) -> Story:
    place, state = standing_of(transaction, message)
    attempts = attempts_of(transaction, message.id)
    if state is not State.DEAD:
        return Story(message, size, state, place, None, None, attempts)
    reason = reads.dead_reason(transaction, message.id, place)
    return Story(message, size, state, place, reason, place.due, attempts)


def standing_of(transaction: Transaction, message: Message) -> tuple[Place, State]:
    """Where a message that was not delivered stands, and the state that operators know it by."""
    active = transaction.get(Table.ACTIVE, message.id) is not None
    standing = Standing.ACTIVE if active else Standing.WAITING
    place = reads.place_of(transaction, message.id, Place(standing, message.born))
    return place, state_of(place, reads.circuit_state(transaction, message.lane))
