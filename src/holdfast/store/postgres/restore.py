"""The lines of an export into a database: in batches, each one transaction with everything that belongs to it, while
the fleet goes on.

What is already there stays as it is and is counted as skipped, so an import that was interrupted is simply repeated.
What waits arrives here anew, with its place and its attempts, and its owner takes it in.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from holdfast.core.errors import StoreFull
from holdfast.core.message import Attempt, MessageId
from holdfast.core.store_rules import WATERMARK, cost_of
from holdfast.store import maintenance, records
from holdfast.store.export_format import Delivered, Key, Record
from holdfast.store.maintenance import Imported
from holdfast.store.port import LaneRecord
from holdfast.store.postgres import shares
from holdfast.store.postgres.accept import insert
from holdfast.store.postgres.admission import NewMessage, moved_message, put_keys, stored
from holdfast.store.postgres.connection import Connection, retried
from holdfast.store.postgres.lanes import put_circuits
from holdfast.store.postgres.outcomes import insert_attempts
from holdfast.store.postgres.rows import Terms, columns
from holdfast.store.transfer import StoredMessage


class _Finished(NamedTuple):
    """A delivered message as its row is, and the attempts that failed before."""

    id: MessageId
    at: int
    record: bytes
    attempts: Sequence[Attempt]


Piece = LaneRecord | NewMessage | _Finished | Key


def take(
    connection: Connection, terms: Terms, source: Iterable[bytes], bad_line: Callable[[int, str], None]
) -> Imported:
    def write(batch: Sequence[Piece]) -> "Counter[str]":
        return retried(connection, partial(_write, batch=batch, terms=terms))

    return maintenance.take(source, bad_line, _encoded, write)


def _encoded(record: Record) -> Piece:
    match record:
        case StoredMessage():
            return moved_message(record)
        case Delivered(message, size, finished_at, success, attempts):
            encoded = records.encode_delivered(message, success, finished_at, size)
            return _Finished(message.id, finished_at, encoded, attempts)
        case LaneRecord() | Key():
            return record


def _write(connection: Connection, batch: Sequence[Piece], terms: Terms) -> "Counter[str]":
    """One transaction. Returns how many lines of each kind it added."""
    first = {_id(each): each for each in reversed(batch) if isinstance(each, (NewMessage, _Finished))}
    known = stored(connection, first)
    fresh = [first[id] for id in sorted(first) if id not in known]
    messages = [each for each in fresh if isinstance(each, NewMessage)]
    finished = [each for each in fresh if isinstance(each, _Finished)]
    _refuse_if_full(connection, messages, terms)
    keys = _put_keys(connection, [each for each in batch if isinstance(each, Key)], terms)
    _put_delivered(connection, finished)
    insert(connection, messages, terms)
    # Last, since others wait for them: the owner of a host may just write its first record.
    circuits = put_circuits(connection, [each for each in batch if isinstance(each, LaneRecord)], terms)
    return Counter(message=len(messages), delivered=len(finished), circuit=len(circuits), key=keys)


def _id(piece: NewMessage | _Finished) -> MessageId:
    return piece.message.id if isinstance(piece, NewMessage) else piece.id


def _refuse_if_full(connection: Connection, messages: Sequence[NewMessage], terms: Terms) -> None:
    adds = sum(cost_of(each.message) for each in messages)
    if adds and shares.total(connection).bytes + adds > WATERMARK * terms.max_size:
        raise StoreFull("the store is full; raise store.max_size and import the same file again")


def _put_delivered(connection: Connection, coming: Sequence[_Finished]) -> None:
    insert_attempts(connection, [(each.id, attempt) for each in coming for attempt in each.attempts])
    if coming:
        connection.execute(
            "INSERT INTO delivered (id, at, record) SELECT * FROM unnest(%s::bytea[], %s::bigint[], %s::bytea[])",
            columns([each[:3] for each in coming]),
        )


def _put_keys(connection: Connection, coming: Sequence[Key], terms: Terms) -> int:
    """The last use of each."""
    last = {key.digest: (key.id, key.body, key.at) for key in sorted(coming, key=lambda key: key.at)}
    return len(put_keys(connection, last, terms))
