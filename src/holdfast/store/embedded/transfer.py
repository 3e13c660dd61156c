"""Messages that go to another store, and recognizing those that come from one.

A message keeps its id, so a store that gets it twice knows it: by its record while it has one, and after that by its
key among the idempotency keys. That key is forgotten when the message is handed on: a message that is no longer here
has to be accepted if it comes back.
"""

from collections.abc import Callable
from typing import TypeVar

from holdfast.core.errors import CorruptRecord
from holdfast.core.idempotency import HEADER, handoff_digest, key_digest
from holdfast.core.message import Entry, Message, MessageId, Place, Standing
from holdfast.store.batching import choose
from holdfast.store.embedded import idempotency_keys, reads
from holdfast.store.embedded.attempt_rows import attempts_of
from holdfast.store.embedded.group import GroupWork
from holdfast.store.embedded.indexes import place_of
from holdfast.store.embedded.tables import Table, Transaction
from holdfast.store.port import HandOver
from holdfast.store.records import stamp
from holdfast.store.transfer import KeyUse, StoredMessage
from holdfast.store.validation import check_message

Leaving = TypeVar("Leaving", Entry, StoredMessage)


def waiting(transaction: Transaction, after: MessageId | None, limit: int) -> tuple[list[Entry], MessageId | None]:
    """Returns messages that are neither delivered nor dead, whole, in the order of acceptance; and the id to go on
    after.
    """
    return _page(transaction, after, limit, _waiting)


def undelivered(
    transaction: Transaction, after: MessageId | None, limit: int
) -> tuple[list[StoredMessage], MessageId | None]:
    """Returns the same, with dead messages and with all that is stored of each."""
    return _page(transaction, after, limit, _moving)


def _page(
    transaction: Transaction,
    after: MessageId | None,
    limit: int,
    read: Callable[[Transaction, MessageId], Leaving | None],
) -> tuple[list[Leaving], MessageId | None]:
    """Messages that can't be read stay: they can't be sent."""

    def read_sound(id: MessageId, record: bytes) -> Leaving | None:
        try:
            return read(transaction, id)
        except CorruptRecord as error:
            transaction.faults.append((Table.MESSAGES, id, str(error)))
            return None

    start = after + b"\0" if after is not None else b""
    candidates = transaction.scan(Table.MESSAGES, start)
    return choose(candidates, limit, read_sound, size_of=lambda each: len(each.message.body))[:2]


def _waiting(transaction: Transaction, id: MessageId) -> Entry | None:
    place = _place(transaction, id)
    whole = reads.message_of(transaction, id) if place.standing is not Standing.DEAD else None
    return None if whole is None else Entry(whole[0], place)


def _moving(transaction: Transaction, id: MessageId) -> StoredMessage | None:
    place = _place(transaction, id)
    is_dead = place.standing is Standing.DEAD
    reason = reads.dead_reason(transaction, id, place) if is_dead else None
    if is_dead and reason is None:
        raise CorruptRecord(f"message {id.hex()} is dead, and no dead letter says why")
    whole = reads.message_of(transaction, id)
    if whole is None:
        return None
    message = whole[0]
    return StoredMessage(message, place, reason, attempts_of(transaction, id), _key_of(transaction, message))


def _place(transaction: Transaction, id: MessageId) -> Place:
    """Returns the place of a message with a sound record, without reading its body."""
    without_body = reads.message_of(transaction, id, whole=False)
    assert without_body is not None
    check_message(*without_body)
    return place_of(transaction, without_body[0])


def _key_of(transaction: Transaction, message: Message) -> KeyUse | None:
    """Returns the key that the app gave with the message. The header alone is no proof: a route may have added it."""
    for name, value in message.headers:
        if name == HEADER:
            digest = key_digest(value, message.method, message.target, message.route)
            use = idempotency_keys.find(transaction, digest, 0)
            return KeyUse(digest, use.body, use.at) if use is not None and use.id == message.id else None
    return None


def hand_over(work: GroupWork, operation: HandOver, encoded: None) -> int:
    gone = 0
    for message, read_at in operation.entries:
        if _leaves(work, message, read_at):
            work.erase_all(message.id)
            idempotency_keys.forget(work.transaction, handoff_digest(message.id))
            gone += 1
    return gone


def _leaves(work: GroupWork, message: Message, read_at: Place) -> bool:
    """Take a message out of its index. Returns False if it was dropped or tried since it was read."""
    if read_at.standing is Standing.DEAD:
        letter = stamp(read_at.due, message.id)
        if work.transaction.get(Table.DEAD, letter) is None:
            return False
        work.remove_dead(letter, message.lane)
        return True
    place = work.current_place(message.id, message.lane, read_at)
    return place is not None and work.leave(message.id, message.lane, place)


def is_here(transaction: Transaction, id: MessageId) -> bool:
    """Whether a message has a record: waiting, dead or delivered."""
    return any(transaction.get(table, id) is not None for table in (Table.MESSAGES, Table.DELIVERED))
