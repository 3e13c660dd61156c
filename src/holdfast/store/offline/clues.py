"""Where a message belongs whose place was lost: what its index entries and its attempts still tell.

A repair must neither give a dead letter a new life nor send a retry before its time because one small record broke.
"""

from collections.abc import Mapping

from holdfast.core.message import Attempt, AttemptKind, DeadReason, Message, MessageId, Place, Standing
from holdfast.store import records
from holdfast.store.embedded.attempts import attempts_of
from holdfast.store.embedded.indexes import entry_id
from holdfast.store.embedded.tables import Engine, Table, Transaction
from holdfast.store.embedded.walking import has_row, walk
from holdfast.store.records import lane_key, stamp, unstamp
from holdfast.store.validation import readable_message

Clue = Mapping[Table, int]
"""The moments that indexes hold a message under."""


def gather(engine: Engine) -> dict[MessageId, Clue]:
    """Clues to messages without a place, other than that they wait since they were born."""
    clues: dict[MessageId, dict[Table, int]] = {}
    for table in (Table.DEAD, Table.RETRY, Table.AGING, Table.WAITING):
        for transaction, (key, value) in walk(engine, table):
            id = entry_id(table, key, value)
            if transaction.get(Table.PLACES, id) is not None:
                continue
            stored = readable_message(id, transaction.get(Table.MESSAGES, id) or b"")
            lane = records.decode_dead(value)[0] if table is Table.DEAD else key
            moment = unstamp(key if table is Table.DEAD else value)[0]
            if stored is None or lane_key(stored[0].lane) != lane:
                continue
            if table is not Table.WAITING or moment != stored[0].born:
                clues.setdefault(id, {})[table] = moment
    return dict(clues)


def settle(transaction: Transaction, message: Message, clue: Clue) -> Place:
    """The place of a message that has none in PLACES: where it stands, else by the clues, else its lane's queue."""
    attempts = attempts_of(transaction, message.id)
    number = attempts[-1].number if attempts else 0
    if transaction.get(Table.ACTIVE, message.id) is not None:
        return Place(Standing.ACTIVE, message.born, attempts=number)
    queued = has_row(transaction, Table.WAITING, lane_key(message.lane), stamp(message.born, message.id))
    tried = _tried(attempts)
    if not queued and Table.DEAD in clue:
        return Place(Standing.DEAD, message.born, clue[Table.DEAD], max(0, tried - 1), number)
    if not queued and Table.RETRY in clue:
        # One that was never tried stands there because of its delay, which no probe may go before.
        return Place(
            Standing.RETRY, clue.get(Table.AGING, message.born), clue[Table.RETRY], tried, number, held=not attempts
        )
    born = message.born if queued else clue.get(Table.WAITING, message.born)
    return Place(Standing.WAITING, born, attempts=number)


def _tried(attempts: list[Attempt]) -> int:
    """Attempts of the present life that used up a number: its first one, and its retries."""
    tried = 0
    for attempt in attempts:
        tried = 1 if attempt.kind is AttemptKind.FIRST else tried + (attempt.kind is AttemptKind.RETRY)
    return tried


def reason_of(transaction: Transaction, id: MessageId, place: Place) -> DeadReason:
    """Why a message died whose letter was lost: a last attempt that ended at that moment was the end of it."""
    ends = [attempt.at + attempt.duration for attempt in attempts_of(transaction, id)]
    return DeadReason.EXHAUSTED if place.due in ends else DeadReason.EXPIRED
