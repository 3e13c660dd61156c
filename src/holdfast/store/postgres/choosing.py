"""Which messages an operator's filter means, a bounded step at a time.

Nothing is locked here: whoever changes what was chosen looks at it once more.
"""

from collections.abc import Container, Iterator, Mapping
from functools import partial
from itertools import takewhile
from typing import Any

from holdfast.core.message import MessageId, Place, State
from holdfast.core.place import state_of
from holdfast.store import records
from holdfast.store.looking import LOOKED_AT, choose
from holdfast.store.port import DeadFilter, MessageFilter
from holdfast.store.postgres.connection import Connection
from holdfast.store.postgres.rows import DEAD, STANDINGS, STATES, number_of
from holdfast.store.records import stamp, unstamp

LAST_ID = b"\xff" * 16
EVER = MessageFilter().before

_LETTERS = f"""SELECT id, due, reason FROM messages WHERE standing = {DEAD} {{of_lane}}
    AND (due, id) >= (%(died)s, %(id)s) AND due < %(until)s ORDER BY due, id LIMIT %(limit)s"""
_IN_ORDER = """SELECT id, lane, standing, retry, size, record,
        CASE WHEN %(stated)s THEN (SELECT state FROM lanes l WHERE l.lane = p.lane) END FROM (
        (SELECT id, lane, standing, retry, size, CASE WHEN %(dated)s THEN record END AS record FROM messages
            WHERE id >= %(first)s AND id <= %(last)s AND %(undelivered)s ORDER BY id LIMIT %(limit)s)
        UNION ALL
        (SELECT id, NULL, NULL, NULL, NULL, record FROM delivered WHERE id >= %(first)s AND %(delivered)s
            ORDER BY id LIMIT %(limit)s)
    ) AS p ORDER BY id LIMIT %(limit)s"""
_KINDS = {"undelivered": True, "delivered": False, "dated": False, "stated": True}
_UNDELIVERED = {"last": LAST_ID, "limit": LOOKED_AT + 1, **_KINDS}
"""What is asked for unless the terms say otherwise: records if they are `dated`, circuits if they are `stated`."""

Candidate = tuple[MessageId, str | None, State, int, Any]
"""Id, lane, state, size and record. The lane of one that was delivered is None: its record tells."""


def in_order(connection: Connection, terms: Mapping[str, Any]) -> Iterator[Candidate]:
    """Messages in the order of acceptance: one more than are looked at, to know whether there is more."""
    for id, lane, standing, retry, size, record, circuit in connection.execute(_IN_ORDER, {**_UNDELIVERED, **terms}):
        state = State.DELIVERED
        if lane is not None:
            state = state_of(Place(STANDINGS[standing], 0, retry=retry), STATES[circuit or 0])
        yield id, lane, state, size, record


def undelivered(
    connection: Connection, select: MessageFilter, limit: int, skip: Container[MessageId]
) -> tuple[list[MessageId], MessageId | None]:
    """Messages in the order of acceptance that were not delivered, and where to go on."""
    first, last = select.id or select.after or b"", select.id or LAST_ID
    terms = {"first": first, "last": last, "dated": select.before < EVER}
    candidates = takewhile(partial(_is_before, select.before), in_order(connection, terms))

    def read(id: MessageId, lane: str, state: State, *_: Any) -> MessageId | None:
        is_meant = id not in skip and select.lane in (None, lane) and select.state in (None, state)
        return id if is_meant else None

    found, _, start = choose(candidates, limit, read)
    return found, start


def _is_before(moment: int, candidate: Candidate) -> bool:
    """Of a record that can't be read the id tells."""
    id, *_, record = candidate
    message = None if record is None else records.message_or_none(id, record)
    return record is None or (message.accepted_at if message else int.from_bytes(id[:6], "big")) < moment


def dead_letters(connection: Connection, select: DeadFilter, limit: int) -> tuple[list[MessageId], bytes | None]:
    """Dead letters by the time of death, and where to go on."""
    died, id = unstamp(select.after) if select.after is not None else (select.since, b"")
    wanted = number_of(select.reason)
    looked_at = LOOKED_AT if wanted is not None else min(limit, LOOKED_AT)
    terms = {"lane": select.lane, "died": died, "id": id, "until": select.until, "limit": looked_at + 1}
    of_lane = "" if select.lane is None else "AND lane = %(lane)s"
    letters = connection.execute(_LETTERS.format(of_lane=of_lane), terms)
    candidates = ((stamp(due, id), id, reason) for id, due, reason in letters)
    found, _, start = choose(candidates, limit, lambda letter, id, reason: id if wanted in (None, reason) else None)
    return found, start
