"""Messages that go from one store to another: a page of those that wait, their leaving, and their taking a seat.

A message keeps its id on its way, so that whoever gets it a second time knows it: by its record while it has one, and
by its key among the idempotency keys after that. The key is forgotten when the message itself is handed on, since what
is not here any more has to be taken if it comes back.
"""

from holdfast.core.errors import CorruptRecord
from holdfast.core.handoff import handoff_digest
from holdfast.core.message import Entry, Message, MessageId, Place, Standing
from holdfast.store import keys, reads
from holdfast.store.choosing import LOOKED_AT
from holdfast.store.port import HandOver
from holdfast.store.sound import check_message
from holdfast.store.standing import place_of
from holdfast.store.tables import Table, Transaction
from holdfast.store.work import Work


def waiting(transaction: Transaction, after: MessageId | None, limit: int) -> tuple[list[Entry], MessageId | None]:
    """Messages that are neither delivered nor dead, whole, in the order of acceptance; and the id to go on after.

    What can't be read stays where it is: it could not be told to another.
    """
    found: list[Entry] = []
    size = 0
    last = after
    start = after + b"\0" if after is not None else b""
    for looked_at, (id, _) in enumerate(transaction.scan(Table.MESSAGES, start)):
        if len(found) >= limit or size > reads.BATCH_BYTES or looked_at >= LOOKED_AT:
            return found, last
        last = id
        entry = _entry(transaction, id)
        if entry is not None and entry.place.standing is not Standing.DEAD:
            found.append(entry)
            size += len(entry.message.body)
    return found, None


def _entry(transaction: Transaction, id: MessageId) -> Entry | None:
    try:
        without_body = reads.message_of(transaction, id, whole=False)
        if without_body is None:
            return None
        check_message(*without_body)
        place = place_of(transaction, without_body[0])
        if place.standing is Standing.DEAD:
            return Entry(without_body[0], place)
        whole = reads.message_of(transaction, id)
    except CorruptRecord as error:
        transaction.faults.append((Table.MESSAGES, id, str(error)))
        return None
    return None if whole is None else Entry(whole[0], place)


def hand_over(work: Work, operation: HandOver, encoded: None) -> int:
    gone = 0
    for message, read_at, _ in operation.entries:
        place = work.moved_to(message.id, message.lane, read_at)
        if place is None:
            continue
        work.leave(message.id, message.lane, place)
        work.erase_all(message.id)
        keys.forget(work.transaction, handoff_digest(message.id))
        gone += 1
    return gone


def is_here(transaction: Transaction, id: MessageId) -> bool:
    """Whether a message has a record, waiting, dead or delivered."""
    return any(transaction.get(table, id) is not None for table in (Table.MESSAGES, Table.DELIVERED))


def seat(work: Work, message: Message, place: Place) -> None:
    """Put a message that was taken over where it stood before."""
    if place.standing is Standing.RETRY:
        work.set_retry(message.id, message.lane, place)
        return
    work.enqueue(message.id, message.lane, place.born)
    if place.attempts:
        work.set_place(message.id, place)
