"""Which messages an operator's filter means, a bounded step at a time."""

from collections.abc import Container, Iterator

from holdfast.core.errors import CorruptRecord
from holdfast.core.message import Message, MessageId, Place
from holdfast.store import records
from holdfast.store.port import DeadFilter, MessageFilter, Story
from holdfast.store.records import lane_key, stamp, unstamp
from holdfast.store.stories import standing_of, story
from holdfast.store.tables import Table, Transaction

LOOKED_AT = 2_000
"""Records that one step looks at: a filter that matches little ends its step early instead of holding up the writer."""


def dead_letters(
    transaction: Transaction, select: DeadFilter, limit: int
) -> tuple[list[tuple[bytes, str]], bytes | None]:
    """Dead letters by the time of death with their lanes, and where to go on."""
    found: list[tuple[bytes, str]] = []
    start = select.after or stamp(select.since, bytes(16))
    for looked_at, letter in enumerate(_letters(transaction, select.lane, start)):
        if unstamp(letter)[0] >= select.until:
            return found, None
        if len(found) >= limit or looked_at >= LOOKED_AT:
            return found, letter
        lane = _matching_lane(transaction, letter, select)
        if lane is not None:
            found.append((letter, lane))
    return found, None


def dead_stories(transaction: Transaction, select: DeadFilter, limit: int) -> tuple[list[Story], bytes | None]:
    """The same, whole; a letter that can't be read is left out."""
    found, after = dead_letters(transaction, select, limit)
    stories = []
    for letter, _ in found:
        try:
            stories.append(story(transaction, unstamp(letter)[1]))
        except CorruptRecord:
            continue
    return [each for each in stories if each is not None], after


def _letters(transaction: Transaction, lane: str | None, start: bytes) -> Iterator[bytes]:
    if lane is not None:
        yield from transaction.values(Table.DEAD_LANE, lane_key(lane), start)
    else:
        for letter, _ in transaction.scan(Table.DEAD, start):
            yield letter


def _matching_lane(transaction: Transaction, letter: bytes, select: DeadFilter) -> str | None:
    value = transaction.get(Table.DEAD, letter)
    try:
        lane, reason = records.decode_dead(value or b"")
    except CorruptRecord as error:
        transaction.faults.append((Table.DEAD, letter, str(error)))
        return None
    return lane.decode() if select.reason in (None, reason) else None


def undelivered(
    transaction: Transaction, select: MessageFilter, limit: int, skip: Container[MessageId]
) -> tuple[list[tuple[Message, Place]], MessageId | None]:
    """Messages in the order of acceptance that were not delivered, and where to go on."""
    found: list[tuple[Message, Place]] = []
    for looked_at, (id, value) in enumerate(transaction.scan(Table.MESSAGES, select.id or select.after or b"")):
        if select.id not in (None, id):
            return found, None
        if len(found) >= limit or looked_at >= LOOKED_AT:
            return found, id
        try:
            message = records.decode_message(id, value)[0]
        except CorruptRecord:
            continue
        if message.accepted_at >= select.before:
            return found, None
        if id not in skip and select.lane in (None, message.lane):
            place, state = standing_of(transaction, message)
            if select.state in (None, state):
                found.append((message, place))
    return found, None
