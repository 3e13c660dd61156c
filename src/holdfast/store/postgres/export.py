"""A database as JSON lines, in the shapes that store/export_format.py draws: of one moment, while the fleet goes on.

A message that a replica is just sending is among them as one that waits. What can't be read is left out and told.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from holdfast.core.message import Attempt, MessageId, id_text
from holdfast.store import export_format, records
from holdfast.store.export_format import Delivered, Key, Line
from holdfast.store.maintenance import Finding, framed
from holdfast.store.postgres import rows
from holdfast.store.postgres.connection import Connection, pages, snapshot
from holdfast.store.postgres.queries import Faults, attempts_of
from holdfast.store.postgres.rows import DEAD, reason_of
from holdfast.store.transfer import StoredMessage
from holdfast.store.validation import ID, UNREADABLE, check_message, delivered_of, lane_of

LeftOut = Callable[[Finding], None]
Row = Sequence[Any]
Shape = Callable[[Row, list[Attempt]], Line]
"""What a row looks like, with the attempts of its message."""

_NAMED: dict[str, Callable[[Any], str]] = {"circuit": str, "key": bytes.hex}
"""Others by their messages' ids."""


def export_lines(connection: Connection, left_out: LeftOut) -> Iterator[bytes]:
    """The whole store, line by line; `left_out` hears of each record that is not among them."""
    with snapshot(connection):
        yield from framed(_lines(connection, left_out))


def _lines(connection: Connection, left_out: LeftOut) -> Iterator[Line]:
    tell = partial(_told, connection, left_out)
    yield from tell("circuit", "SELECT lane, record FROM lanes", {"lane": ""}, _circuit)
    messages = f"SELECT id, {rows.PLACE}, reason, record, body IS NOT NULL FROM messages"
    yield from tell("message", messages, {"id": b""}, partial(_message, connection))
    yield from tell("delivered", "SELECT id, record FROM delivered", {"id": b""}, _delivered)
    yield from tell("key", "SELECT digest, body, id, used FROM keys", {"digest": b""}, _key)


def _told(
    connection: Connection, left_out: LeftOut, kind: str, query: str, first: Mapping[str, Any], shape: Shape
) -> Iterator[Line]:
    for page in pages(connection, query, first):
        tried = [row[0] for row in page] if kind in ("message", "delivered") else []
        attempts = _attempts(connection, tried, left_out)
        for row in page:
            try:
                yield shape(row, attempts.get(row[0], []))
            except (*UNREADABLE, OverflowError) as error:
                left_out(Finding(kind, _NAMED.get(kind, id_text)(row[0]), str(error)))


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
    body = connection.execute("SELECT body FROM messages WHERE id = %s", (id,)).fetchall()[0][0] if apart else b""
    message, size = rows.message(id, record, body)
    check_message(message, size)
    place = rows.place(rows.counted_as(standing, due), born, due, *columns)
    return export_format.message_line(
        StoredMessage(message, place, reason_of(reason) if standing == DEAD else None, attempts)
    )


def _delivered(row: Row, attempts: list[Attempt]) -> Line:
    return export_format.delivered_line(Delivered(*delivered_of(*row), attempts))


def _key(row: Row, attempts: list[Attempt]) -> Line:
    return export_format.key_line(Key(*row))
