"""Which messages an operator's filter means, a bounded step at a time."""

from collections.abc import Container, Iterator

from holdfast.core.errors import CorruptRecord
from holdfast.core.message import Message, MessageId, Place
from holdfast.store import records
from holdfast.store.batching import choose
from holdfast.store.embedded.stories import readable_story, standing_of
from holdfast.store.embedded.tables import Table, Transaction
from holdfast.store.port import DeadFilter, MessageFilter, Story
from holdfast.store.records import lane_key, stamp, unstamp


def dead_letters(
    transaction: Transaction, select: DeadFilter, limit: int
) -> tuple[list[tuple[bytes, str]], bytes | None]:
    """Dead letters by the time of death with their lanes, and where to go on."""

    def read(letter: bytes, value: bytes | None) -> tuple[bytes, str] | None:
        try:
            lane, reason = records.decode_dead(value or b"")
        except CorruptRecord as error:
            transaction.faults.append((Table.DEAD, letter, str(error)))
            return None
        return (letter, lane.decode()) if select.reason in (None, reason) else None

    found, _, start = choose(_letters(transaction, select), limit, read)
    return found, start


def dead_stories(transaction: Transaction, select: DeadFilter, limit: int) -> tuple[list[Story], bytes | None]:
    """The same, whole; a letter that can't be read is left out."""
    found, after = dead_letters(transaction, select, limit)
    stories = [readable_story(transaction, unstamp(letter)[1]) for letter, _ in found]
    return [each for each in stories if each is not None], after


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
    """Messages in the order of acceptance that were not delivered, and where to go on."""

    def read(id: MessageId, message: Message | None) -> tuple[Message, Place] | None:
        if message is None or id in skip or select.lane not in (None, message.lane):
            return None
        place, state = standing_of(transaction, message)
        return (message, place) if select.state in (None, state) else None

    found, _, start = choose(_accepted(transaction, select), limit, read)
    return found, start


def _accepted(transaction: Transaction, select: MessageFilter) -> Iterator[tuple[MessageId, Message | None]]:
    """With None for one that can't be read."""
    for id, value in transaction.scan(Table.MESSAGES, select.id or select.after or b""):
        message = records.message_or_none(id, value)
        if select.id not in (None, id) or (message is not None and message.accepted_at >= select.before):
            return
        yield id, message
