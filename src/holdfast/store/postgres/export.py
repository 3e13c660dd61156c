"""A database as JSON lines, in the shapes that store/lines.py draws: of one moment, while the fleet goes on.

A message that a replica is just sending is among them as one that waits. What can't be read is left out and told.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from holdfast.core.errors import CorruptRecord
from holdfast.core.message import Attempt, MessageId, id_text
from holdfast.store import lines, records
from holdfast.store.export import framed
from holdfast.store.fsck import Finding
from holdfast.store.lines import Delivered, Key, Line
from holdfast.store.moving import Moving
from holdfast.store.postgres import rows
from holdfast.store.postgres.connection import Connection
from holdfast.store.postgres.rows import DEAD
from holdfast.store.postgres.stories import Faults, attempts_of, reason_of
from holdfast.store.postgres.walking import pages, snapshot
from holdfast.store.sound import ID, UNREADABLE, check_lane, check_message, check_moments

LeftOut = Callable[[Finding], None]
Row = Sequence[Any]


def export_lines(connection: Connection, left_out: LeftOut) -> Iterator[bytes]:
    """The whole store, line by line; `left_out` hears of each record that is not among them."""
    with snapshot(connection):
        yield from framed(_lines(connection, left_out))


def _lines(connection: Connection, left_out: LeftOut) -> Iterator[Line]:
    for kind, (query, first, has_attempts, line) in _SHAPES.items():
        for page in pages(connection, query, (first,)):
            attempts = _attempts(connection, [row[0] for row in page], left_out) if has_attempts else {}
            for row in page:
                try:
                    yield line(connection, row, attempts.get(row[0], []))
                except (*UNREADABLE, OverflowError) as error:
                    left_out(Finding(kind, _name(kind, row[0]), str(error)))


def _name(kind: str, key: Any) -> str:
    if kind == "circuit":
        return str(key)
    return id_text(key) if kind != "key" else key.hex()


def _attempts(connection: Connection, ids: list[MessageId], left_out: LeftOut) -> dict[MessageId, list[Attempt]]:
    faults: Faults = []
    found = attempts_of(connection, ids, faults)
    for _, key, what in faults:
        left_out(Finding("attempt", id_text(bytes.fromhex(key)[:ID]), what))
    return found


def _circuit(connection: Connection, row: Row, attempts: list[Attempt]) -> Line:
    key, stored = row
    record = records.decode_lane(stored)
    check_lane(record)
    if record.key != key:
        raise CorruptRecord(f"the record is that of {record.key}")
    return lines.circuit_line(record)


def _message(connection: Connection, row: Row, attempts: list[Attempt]) -> Line:
    """Larger bodies one at a time: a page of them may be more than fits into memory."""
    id, standing, born, due, *columns, reason, record, apart = row
    body = rows.one(connection.execute("SELECT body FROM messages WHERE id = %s", (id,)).fetchone()) if apart else b""
    message, size = rows.message(id, record, body)
    check_message(message, size)
    place = rows.place(rows.counted_as(standing, due), born, due, *columns)
    why = reason_of(reason) if standing == DEAD else None
    return lines.message_line(Moving(message, place, why, attempts))


def _delivered(connection: Connection, row: Row, attempts: list[Attempt]) -> Line:
    message, size, finished_at, success = records.decode_delivered(*row)
    check_message(message, size)
    check_moments((finished_at,))
    return lines.delivered_line(Delivered(message, size, finished_at, success, attempts))


def _key(connection: Connection, row: Row, attempts: list[Attempt]) -> Line:
    return lines.key_line(Key(*row))


class _Shape(NamedTuple):
    """A table: what is asked of it, before its first key, whether attempts belong to its rows, and how one looks."""

    query: str
    first: str | bytes
    has_attempts: bool
    line: Callable[[Connection, Row, list[Attempt]], Line]


_SHAPES = {
    "circuit": _Shape("SELECT lane, record FROM lanes WHERE lane > %s ORDER BY lane LIMIT %s", "", False, _circuit),
    "message": _Shape(
        f"""SELECT id, {rows.PLACE}, reason, record, body IS NOT NULL FROM messages WHERE id > %s
        ORDER BY id LIMIT %s""",
        b"",
        True,
        _message,
    ),
    "delivered": _Shape("SELECT id, record FROM delivered WHERE id > %s ORDER BY id LIMIT %s", b"", True, _delivered),
    "key": _Shape(
        "SELECT digest, body, id, used FROM keys WHERE digest > %s ORDER BY digest LIMIT %s", b"", False, _key
    ),
}
