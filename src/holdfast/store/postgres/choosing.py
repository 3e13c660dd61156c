"""Which messages an operator's filter means, a bounded step at a time.

Nothing is locked here: whoever changes what was chosen looks at it once more.
"""

from collections.abc import Container
from typing import Any

from holdfast.core.errors import CorruptRecord
from holdfast.core.message import MessageId
from holdfast.store import records
from holdfast.store.choosing import LOOKED_AT
from holdfast.store.port import DeadFilter, MessageFilter
from holdfast.store.postgres import rows
from holdfast.store.postgres.connection import Connection
from holdfast.store.postgres.rows import DEAD, REASONS
from holdfast.store.records import stamp, unstamp

LAST_ID = b"\xff" * 16
EVER = MessageFilter().before

_LETTERS = f"""SELECT id, due, reason FROM messages WHERE standing = {DEAD} {{of_lane}}
    AND (due, id) >= (%(died)s, %(id)s) AND due < %(until)s ORDER BY due, id LIMIT %(limit)s"""
_ALL_LETTERS = _LETTERS.format(of_lane="")
_LANES_LETTERS = _LETTERS.format(of_lane="AND lane = %(lane)s")
_UNDELIVERED = """SELECT m.id, m.lane, m.standing, m.retry, coalesce(l.state, 0), m.record FROM (
        SELECT id, lane, standing, retry, CASE WHEN %(dated)s THEN record END AS record FROM messages
        WHERE id >= %(first)s AND id <= %(last)s ORDER BY id LIMIT %(limit)s
    ) AS m LEFT JOIN lanes l ON l.lane = m.lane ORDER BY m.id"""


def dead_letters(connection: Connection, select: DeadFilter, limit: int) -> tuple[list[MessageId], bytes | None]:
    """Dead letters by the time of death, and where to go on."""
    died, id = unstamp(select.after) if select.after is not None else (select.since, b"")
    wanted = None if select.reason is None else REASONS.index(select.reason)
    looked_at = LOOKED_AT if wanted is not None else min(limit, LOOKED_AT)
    terms = {"lane": select.lane, "died": died, "id": id, "until": select.until, "limit": looked_at + 1}
    letters = connection.execute(_ALL_LETTERS if select.lane is None else _LANES_LETTERS, terms).fetchall()
    found: list[MessageId] = []
    for number, (letter, due, reason) in enumerate(letters):
        if len(found) >= limit or number >= looked_at:
            return found, stamp(due, letter)
        if wanted in (None, reason):
            found.append(letter)
    return found, None


def undelivered(
    connection: Connection, select: MessageFilter, limit: int, skip: Container[MessageId]
) -> tuple[list[MessageId], MessageId | None]:
    """Messages in the order of acceptance that were not delivered, and where to go on."""
    terms = {
        "dated": select.before < EVER,
        "first": select.id or select.after or b"",
        "last": select.id or LAST_ID,
        "limit": LOOKED_AT + 1,
    }
    found: list[MessageId] = []
    for number, (id, lane, standing, retry, circuit, record) in enumerate(connection.execute(_UNDELIVERED, terms)):
        if len(found) >= limit or number >= LOOKED_AT:
            return found, id
        if record is not None and _accepted_at(id, record) >= select.before:
            return found, None
        if id in skip or select.lane not in (None, lane):
            continue
        if select.state in (None, rows.state_of(standing, retry, circuit)):
            found.append(id)
    return found, None


def _accepted_at(id: MessageId, record: Any) -> int:
    """Of a record that can't be read the id tells."""
    try:
        return records.decode_message(id, record)[0].accepted_at
    except CorruptRecord:
        return int.from_bytes(id[:6], "big")
