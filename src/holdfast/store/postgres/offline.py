"""The offline commands on a database, which a fleet may use meanwhile: check, repair, export and import.

An export is of one moment, in the shapes that store/export_format.py draws. A message that a replica is sending is
exported as one that waits. A record that can't be read is left out and reported.

An import writes batches, each one transaction. What is in the database already stays and is counted as skipped, so an
interrupted import is simply repeated. A message that waits arrives like a new one, with its place and its attempts.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from holdfast.core.errors import StoreFull, StoreUnusable
from holdfast.core.message import Attempt, MessageId, id_text
from holdfast.core.store_rules import WATERMARK, StoreRules, cost_of
from holdfast.store import export_format, maintenance, records
from holdfast.store.export_format import Delivered, ExportedKey, Line, Record
from holdfast.store.maintenance import Finding, Imported, Repaired, framed
from holdfast.store.port import LaneRecord
from holdfast.store.postgres import fsck, migration, ownership_tables, rows, schema, shares
from holdfast.store.postgres.accept import insert
from holdfast.store.postgres.admission import NewMessage, moved_message, put_keys, stored
from holdfast.store.postgres.lane_rows import put_circuits
from holdfast.store.postgres.outcomes import insert_attempts
from holdfast.store.postgres.queries import Faults, attempts_of
from holdfast.store.postgres.rows import DEAD, Terms, columns, reason_of
from holdfast.store.postgres.shares import FOLDED
from holdfast.store.postgres.transactions import Connection, connected, pages, retried, snapshot
from holdfast.store.transfer import StoredMessage
from holdfast.store.validation import ID, UNREADABLE, check_message, delivered_of, lane_of


@dataclass(frozen=True, slots=True)
class Database:
    """A database behind the commands, until its connection is closed."""

    _connection: Connection
    _terms: Terms

    def check(self) -> Iterator[Finding]:
        return fsck.Audit(self._connection, self._terms).run()

    def repair(self) -> Repaired:
        return fsck.repair(self._connection, self._terms)

    def export(self, left_out: Callable[[Finding], None]) -> Iterator[bytes]:
        """The whole store, line by line. Calls `left_out` for each record that can't be read."""
        with snapshot(self._connection):
            yield from framed(_lines(self._connection, left_out))

    def take(self, lines: Iterable[bytes], bad_line: Callable[[int, str], None]) -> Imported:
        def write(batch: Sequence[Piece]) -> "Counter[str]":
            return retried(self._connection, partial(_write, batch=batch, terms=self._terms))

        return maintenance.take(lines, bad_line, _encoded, write)


@contextmanager
def open_database(url: str, max_size: int, rules: StoreRules, *, create: bool = False) -> Iterator[Database]:
    """Raises StoreUnusable without tables, unless they may be made, and StoreUnreachable if it can't be reached."""
    with connected(url) as connection:
        if not create and not migration.has_tables(connection):
            raise StoreUnusable(f"there is no store in {schema.shown(url)}")
        migration.bring_up_to_date(connection)
        connection.autocommit = False
        now = ownership_tables.fleet_time(connection)
        yield Database(connection, Terms(rules, 0, FOLDED, now, max_size))


# -- export ----------------------------------------------------------------------------------------------------------


LeftOut = Callable[[Finding], None]
Row = Sequence[Any]
Shape = Callable[[Row, list[Attempt]], Line]
"""Makes a line of a row and the attempts of its message."""

# Each table is read in pages by its primary key.
_CIRCUITS = "SELECT lane, record FROM lanes"
_MESSAGES = f"SELECT id, {rows.PLACE}, reason, record, body IS NOT NULL FROM messages"
_DELIVERED = "SELECT id, record FROM delivered"
_KEYS = "SELECT digest, body, id, used FROM keys"
_BODY = "SELECT body FROM messages WHERE id = %s"
_NAMES: dict[str, Callable[[Any], str]] = {"circuit": str, "key": bytes.hex}
"""The names of rows by their keys; those of other kinds are message ids."""


def _lines(connection: Connection, left_out: LeftOut) -> Iterator[Line]:
    table = partial(_table_lines, connection, left_out)
    yield from table("circuit", _CIRCUITS, {"lane": ""}, _circuit)
    yield from table("message", _MESSAGES, {"id": b""}, partial(_message, connection))
    yield from table("delivered", _DELIVERED, {"id": b""}, _delivered)
    yield from table("key", _KEYS, {"digest": b""}, _key)


def _table_lines(
    connection: Connection, left_out: LeftOut, kind: str, query: str, first: Mapping[str, Any], shape: Shape
) -> Iterator[Line]:
    for page in pages(connection, query, first):
        tried = [row[0] for row in page] if kind in ("message", "delivered") else []
        attempts = _attempts(connection, tried, left_out)
        for row in page:
            try:
                yield shape(row, attempts.get(row[0], []))
            except (*UNREADABLE, OverflowError) as error:
                left_out(Finding(kind, _NAMES.get(kind, id_text)(row[0]), str(error)))


def _attempts(connection: Connection, ids: list[MessageId], left_out: LeftOut) -> dict[MessageId, list[Attempt]]:
    faults: Faults = []
    found = attempts_of(connection, ids, faults) if ids else {}
    for _, key, what in faults:
        left_out(Finding("attempt", id_text(bytes.fromhex(key)[:ID]), what))
    return found


def _circuit(row: Row, attempts: list[Attempt]) -> Line:
    return export_format.circuit_line(lane_of(records.lane_key(row[0]), row[1]))


def _message(connection: Connection, row: Row, attempts: list[Attempt]) -> Line:
    """Larger bodies one at a time: a page of them may be more than fits into memory."""
    id, standing, born, due, *columns, reason, record, apart = row
    body = connection.execute(_BODY, (id,)).fetchall()[0][0] if apart else b""
    message, size = rows.message(id, record, body)
    check_message(message, size)
    place = rows.place(rows.counted_as(standing, due), born, due, *columns)
    return export_format.message_line(
        StoredMessage(message, place, reason_of(reason) if standing == DEAD else None, attempts)
    )


def _delivered(row: Row, attempts: list[Attempt]) -> Line:
    return export_format.delivered_line(Delivered(*delivered_of(*row), attempts))


def _key(row: Row, attempts: list[Attempt]) -> Line:
    return export_format.key_line(ExportedKey(*row))


# -- import ----------------------------------------------------------------------------------------------------------


_INSERT_DELIVERED = """INSERT INTO delivered (id, at, record)
    SELECT * FROM unnest(%s::bytea[], %s::bigint[], %s::bytea[])"""


class _Finished(NamedTuple):
    """The row of a delivered message, and the attempts that failed before."""

    id: MessageId
    at: int
    record: bytes
    attempts: Sequence[Attempt]


Piece = LaneRecord | NewMessage | _Finished | ExportedKey


def _encoded(record: Record) -> Piece:
    match record:
        case StoredMessage():
            return moved_message(record)
        case Delivered(message, size, finished_at, success, attempts):
            encoded = records.encode_delivered(message, success, finished_at, size)
            return _Finished(message.id, finished_at, encoded, attempts)
        case LaneRecord() | ExportedKey():
            return record


def _write(connection: Connection, batch: Sequence[Piece], terms: Terms) -> "Counter[str]":
    """One transaction. Returns how many lines of each kind it added."""
    first = {_id(each): each for each in reversed(batch) if isinstance(each, (NewMessage, _Finished))}
    known = stored(connection, first)
    fresh = [first[id] for id in sorted(first) if id not in known]
    messages = [each for each in fresh if isinstance(each, NewMessage)]
    finished = [each for each in fresh if isinstance(each, _Finished)]
    _refuse_if_full(connection, messages, terms)
    keys = _put_keys(connection, [each for each in batch if isinstance(each, ExportedKey)], terms)
    _put_delivered(connection, finished)
    insert(connection, messages, terms)
    # Last, since this locks their rows: the owner of a host may be about to write its first record.
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
        connection.execute(_INSERT_DELIVERED, columns([each[:3] for each in coming]))


def _put_keys(connection: Connection, coming: Sequence[ExportedKey], terms: Terms) -> int:
    """Only the last use of each."""
    last = {key.digest: (key.id, key.body, key.at) for key in sorted(coming, key=lambda key: key.at)}
    return len(put_keys(connection, last, terms))
