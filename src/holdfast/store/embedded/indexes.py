"""Where a message belongs: the index entries that its place asks for, and which entries stand there without being
asked for.

A place in PLACES decides. A message without one was never tried: it is active, or waits since it was born.
"""

from holdfast.core.errors import CorruptRecord
from holdfast.core.message import DeadReason, Message, MessageId, Place, Standing
from holdfast.store import records
from holdfast.store.embedded import reads
from holdfast.store.embedded.tables import Table, Transaction
from holdfast.store.embedded.walking import has_row
from holdfast.store.records import lane_key, stamp, unstamp
from holdfast.store.validation import ID, readable_message

Seat = tuple[Table, bytes, bytes]
"""One index entry: its table, key and value."""

INDEXES = (Table.ACTIVE, Table.WAITING, Table.RETRY, Table.AGING, Table.DEAD, Table.DEAD_LANE)


def place_of(transaction: Transaction, message: Message) -> Place:
    """The stored place, or that of a message which was never tried. Raises CorruptRecord if it can't be read."""
    active = transaction.get(Table.ACTIVE, message.id) is not None
    return reads.place_of(transaction, message.id, Place(Standing.ACTIVE if active else Standing.WAITING, message.born))


def is_told_by_default(message: Message, place: Place) -> bool:
    """Whether this is the place of a message that has none in PLACES."""
    fresh = place.standing in (Standing.ACTIVE, Standing.WAITING)
    return fresh and place == Place(place.standing, message.born)


def seats_of(message: Message, place: Place, reason: DeadReason = DeadReason.EXHAUSTED) -> list[Seat]:
    """The entries that a message with this place has, and no others."""
    lane, id = lane_key(message.lane), message.id
    if place.standing is Standing.ACTIVE:
        return [(Table.ACTIVE, id, lane)]
    if place.standing is Standing.WAITING:
        return [(Table.WAITING, lane, stamp(place.born, id))]
    moment = stamp(place.due, id)
    if place.standing is Standing.RETRY:
        return [(Table.RETRY, lane, moment), (Table.AGING, lane, stamp(place.born, id))]
    return [(Table.DEAD, moment, records.encode_dead(lane, reason)), (Table.DEAD_LANE, lane, moment)]


def is_seated(transaction: Transaction, seat: Seat) -> bool:
    """Whether an entry is there. Of a dead letter the key counts: its reason is known nowhere else."""
    table, key, _ = seat
    return transaction.get(table, key) is not None if table is Table.DEAD else has_row(transaction, *seat)


def entry_id(table: Table, key: bytes, value: bytes) -> MessageId:
    if table is Table.ACTIVE:
        return key
    return unstamp(key if table is Table.DEAD else value)[1]


def stray_entry(transaction: Transaction, table: Table, key: bytes, value: bytes) -> str | None:
    """Why an index entry should not be there. What is wrong with the message's own records is told of those."""
    id = entry_id(table, key, value)
    record = transaction.get(Table.MESSAGES, id)
    if record is None:
        return f"stands in {table.name} and has no message"
    stored = readable_message(id, record)
    try:
        seats = seats_of(stored[0], place_of(transaction, stored[0])) if stored else []
        if table is Table.DEAD:
            value = records.encode_dead(records.decode_dead(value)[0], DeadReason.EXHAUSTED)
    except CorruptRecord:
        return None
    if stored is None or (table, key, value) in seats:
        return None
    return f"stands in {table.name} and belongs to {' and '.join(seat[0].name for seat in seats)}, or elsewhere in it"


def stray_detail(transaction: Transaction, table: Table, key: bytes) -> str | None:
    """Why a piece of a body, an attempt or a place should not be there."""
    id = key[:ID]
    record = transaction.get(Table.MESSAGES, id)
    if record is None:
        kept = table is Table.ATTEMPTS and transaction.get(Table.DELIVERED, id) is not None
        return None if kept else f"is in {table.name} and has no message"
    stored = readable_message(id, record)
    inside = table is Table.BODIES and stored is not None and not stored[2]
    return "is in BODIES, and its message has its body inside" if inside else None
