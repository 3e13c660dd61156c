"""What operators ask: messages with their attempts, circuits, statistics, and the messages that a filter selects.

No cost depends on how much waits: pages are bounded, sums are kept, and only the first message of a lane's queue is
read. A record that can't be read is left out and added to `faults`. Nothing is locked.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from operator import itemgetter
from typing import Any

from holdfast.core.circuit import CircuitState
from holdfast.core.errors import CorruptRecord
from holdfast.core.message import Attempt, Entry, MessageId, MessageState, Place
from holdfast.core.schedule import expires_at, state_of
from holdfast.core.store_rules import WATERMARK
from holdfast.store import records
from holdfast.store.batching import LOOKED_AT, choose
from holdfast.store.port import CircuitView, DeadFilter, MessageFilter, MessageView, StoreStatistics
from holdfast.store.postgres import rows, shares
from holdfast.store.postgres.rows import (
    ACTIVE,
    DEAD,
    RETRY,
    STANDINGS,
    STATE_NUMBERS,
    STATES,
    WAITING,
    Terms,
    reason_number,
)
from holdfast.store.postgres.shares import Sums
from holdfast.store.postgres.transactions import Connection
from holdfast.store.records import stamp, unstamp
from holdfast.store.validation import UNREADABLE, check_attempt, check_message

Faults = list[tuple[str, str, str]]
"""Records that can't be read: the table, the key in hex, and the fault."""


# -- messages --------------------------------------------------------------------------------------------------------


# These three go by primary key.
_STORED = f"""SELECT m.id, {rows.PLACE}, m.reason, coalesce(l.state, 0), m.record,
    CASE WHEN %s THEN coalesce(m.body, '') END FROM messages m LEFT JOIN lanes l ON l.lane = m.lane
    WHERE m.id = ANY(%s::bytea[])"""
_DELIVERED = "SELECT id, record FROM delivered WHERE id = ANY(%s::bytea[])"
_ATTEMPTS = "SELECT id, number, record, answer FROM attempts WHERE id = ANY(%s::bytea[]) ORDER BY id, number"


def message_view(connection: Connection, faults: Faults, id: MessageId) -> MessageView | None:
    """One message, whole. Raises CorruptRecord if it can't be read."""
    broken: Faults = []
    found = _message_views(connection, [id], broken, whole=True)
    for table, key, what in broken:
        if table != "attempts" and not found:
            raise CorruptRecord(what)
        faults.append((table, key, what))
    return found[0] if found else None


def message_views(
    connection: Connection,
    faults: Faults,
    state: MessageState | None,
    lane: str | None,
    after: MessageId | None,
    limit: int,
) -> tuple[list[MessageView], MessageId | None]:
    """A page of messages in the order of acceptance, and the id to go on after."""
    looked_at = LOOKED_AT if state is not None or lane is not None else min(limit, LOOKED_AT)
    terms = {
        "first": after + b"\0" if after is not None else b"",
        "undelivered": state is not MessageState.DELIVERED,
        "delivered": state in (None, MessageState.DELIVERED),
        "limit": looked_at + 1,
    }

    def read(id: MessageId, of_lane: str | None, shown: MessageState, _: Any, record: bytes) -> MessageId | None:
        is_meant = state in (None, shown) and (lane is None or lane == (of_lane or _delivered_lane(id, record)))
        return id if is_meant else None

    chosen, last, _ = choose(in_order(connection, terms), limit, read)
    return _message_views(connection, chosen, faults, whole=False), last


def _delivered_lane(id: MessageId, record: bytes) -> str | None:
    try:
        return records.decode_delivered(id, record)[0].lane
    except CorruptRecord:
        return None


def dead(
    connection: Connection, faults: Faults, select: DeadFilter, limit: int
) -> tuple[list[MessageView], bytes | None]:
    """Dead letters whole by the time of death, and where to go on."""
    chosen, start = dead_letters(connection, select, limit)
    found = _message_views(connection, chosen, faults, whole=True)
    return [each for each in found if each.state is MessageState.DEAD], start


def waiting(
    connection: Connection, faults: Faults, after: MessageId | None, limit: int
) -> tuple[list[Entry], MessageId | None]:
    """Messages that are neither delivered nor dead, whole, in the order of acceptance; and the id to go on after."""
    terms = {"first": after + b"\0" if after is not None else b"", "stated": False}
    chosen, last, _ = choose(
        in_order(connection, terms),
        limit,
        lambda id, _, state, size, *rest: (id, size) if state is not MessageState.DEAD else None,
        size_of=itemgetter(1),
    )
    found = _message_views(connection, [id for id, _ in chosen], faults, whole=True)
    return [
        Entry(each.message, each.place) for each in found if each.place and each.state is not MessageState.DEAD
    ], last


def _message_views(
    connection: Connection, ids: Sequence[MessageId], faults: Faults, *, whole: bool
) -> list[MessageView]:
    """Messages in the order of `ids`. Unless they are `whole`, larger bodies are left out."""
    if not ids:
        return []
    with connection.pipeline():
        stored = connection.execute(_STORED, (whole, ids))
        delivered = connection.execute(_DELIVERED, (ids,))
        attempts = attempts_of(connection, ids, faults)
        views: dict[MessageId, MessageView] = {}
        for table, found, read in (("messages", stored, _undelivered), ("delivered", delivered, _delivered)):
            for row in found.fetchall():
                try:
                    views[row[0]] = read(row, attempts.get(row[0], []))
                except UNREADABLE as error:
                    faults.append((table, row[0].hex(), str(error)))
    return [views[id] for id in ids if id in views]


def _undelivered(row: Sequence[Any], attempts: list[Attempt]) -> MessageView:
    id, *columns, reason, circuit, record, body = row
    if columns[0] == ACTIVE and columns[2]:
        columns[0] = RETRY  # Its owner moves it there.
    place = rows.place(*columns)
    message, size = rows.message(id, record, body)
    check_message(message, size)
    state = state_of(place, STATES[circuit])
    if state is not MessageState.DEAD:
        return MessageView(message, size, state, place, None, None, attempts)
    return MessageView(message, size, state, place, rows.reason_of(reason), place.due, attempts)


def _delivered(row: Sequence[Any], attempts: list[Attempt]) -> MessageView:
    message, size, finished_at, last = records.decode_delivered(*row)
    check_message(message, size)
    return MessageView(message, size, MessageState.DELIVERED, None, None, finished_at, [*attempts, last])


def attempts_of(connection: Connection, ids: Sequence[MessageId], faults: Faults) -> dict[MessageId, list[Attempt]]:
    """The failed attempts of messages, as far as they can be read."""
    found: dict[MessageId, list[Attempt]] = {}
    for id, number, record, answer in connection.execute(_ATTEMPTS, (ids,)):
        try:
            attempt = rows.attempt(number, record, answer)
            check_attempt(attempt)
            found.setdefault(id, []).append(attempt)
        except UNREADABLE as error:
            faults.append(("attempts", records.numbered(id, number).hex(), str(error)))
    return found


# -- circuits --------------------------------------------------------------------------------------------------------


_OLDEST_OF = """least((SELECT born FROM messages WHERE lane = {lane} AND standing = 1 ORDER BY born, id LIMIT 1),
        (SELECT born FROM messages WHERE lane = {lane} AND standing = 2 ORDER BY born, id LIMIT 1))"""
"""The age of a lane's oldest message: one look into the index of each queue."""
_OLDEST = f"SELECT v, {_OLDEST_OF.format(lane='v')} FROM unnest(%s::text[]) AS v"
_CIRCUIT = "SELECT lane, host, record FROM lanes WHERE lane = %s"
_CIRCUITS = "SELECT lane, host, record FROM lanes WHERE lane > %s {of_state} ORDER BY lane LIMIT %s"
"""By primary key, or by the index on (state, lane) of the states other than enabled."""


def circuit(connection: Connection, faults: Faults, key: str) -> CircuitView | None:
    return next(iter(_views(connection, connection.execute(_CIRCUIT, (key,)).fetchall(), faults)), None)


def circuits(
    connection: Connection,
    faults: Faults,
    state: CircuitState | None,
    after: str | None,
    limit: int,
) -> tuple[list[CircuitView], str | None]:
    """A page of circuits in the order of their keys, and the key to go on after."""
    of_state = "" if state is None else f"AND state = {STATE_NUMBERS[state]}"
    page = connection.execute(_CIRCUITS.format(of_state=of_state), (after or "", limit + 1)).fetchall()
    last = page[limit - 1][0] if len(page) > limit else None
    return _views(connection, page[:limit], faults), last


def _views(connection: Connection, found: Sequence[Any], faults: Faults) -> list[CircuitView]:
    sums = shares.of_lanes(connection, [(host, lane) for lane, host, _ in found])
    oldest = dict(connection.execute(_OLDEST, ([row[0] for row in found],)).fetchall())
    views = []
    for lane, _, record in found:
        counted = sums.get(lane, Sums())
        try:
            views.append(CircuitView(records.decode_lane(record), counted.waiting, counted.dead, oldest[lane]))
        except UNREADABLE as error:
            faults.append(("lanes", lane.encode().hex(), str(error)))
    return views


# -- statistics ------------------------------------------------------------------------------------------------------


_FIRST_OF_EACH = """WITH RECURSIVE first_ones AS (
        (SELECT lane, {moment} FROM messages WHERE standing = {standing}
            ORDER BY lane, {moment}, id LIMIT 1)
        UNION ALL
        SELECT next_one.* FROM first_ones, LATERAL (
            SELECT lane, {moment} FROM messages WHERE standing = {standing}
                AND lane > first_ones.lane ORDER BY lane, {moment}, id LIMIT 1) AS next_one
    ) SELECT min({moment}) FROM first_ones"""
"""The earliest moment of a queue over all lanes: one look into its index for each lane that has messages there."""
_MOMENTS = f"""SELECT least(({_FIRST_OF_EACH.format(moment="born", standing=WAITING)}),
        ({_FIRST_OF_EACH.format(moment="born", standing=RETRY)}),
        (SELECT min(born) FROM messages WHERE standing = 0)),
    ({_FIRST_OF_EACH.format(moment="due", standing=RETRY)})"""
_UNWELL_HEADS = f"SELECT l.record, {_OLDEST_OF.format(lane='l.lane')} FROM lanes l WHERE l.state <> 0"
_BY_STATE = "SELECT state, count(*) FROM lanes GROUP BY state"
"""Reads all lanes."""


def statistics(connection: Connection, terms: Terms, path: str) -> StoreStatistics:
    counted = shares.total(connection)
    oldest, due = connection.execute(_MOMENTS).fetchall()[0]
    return StoreStatistics(
        path=path,
        used_bytes=counted.bytes,
        reserved_bytes=0,
        max_bytes=terms.max_size,
        waiting=counted.waiting,
        dead=counted.dead,
        first=counted.first,
        retry=counted.retry,
        circuits=_by_state(connection),
        oldest_waiting_at=oldest,
        next_due_at=due,
        earliest_expiry_at=_earliest_expiry(connection, terms),
        full=counted.bytes >= WATERMARK * terms.max_size,
    )


def _by_state(connection: Connection) -> dict[CircuitState, int]:
    counted = {STATES[state]: number for state, number in connection.execute(_BY_STATE)}
    return dict.fromkeys(CircuitState, 0) | counted


def _earliest_expiry(connection: Connection, terms: Terms) -> int | None:
    heads = connection.execute(_UNWELL_HEADS)
    waiting = [(records.lane_or_none(record), oldest) for record, oldest in heads if oldest is not None]
    # A lane that can't be read is reported when circuits are listed.
    moments = [expires_at(terms.rules.retry, oldest, lane.circuit.enabled_at) for lane, oldest in waiting if lane]
    return min(moments, default=None)


# -- selected messages, in bounded steps -----------------------------------------------------------------------------


LAST_ID = b"\xff" * 16
EVER = MessageFilter().before

# By the index on (due, id) of the dead, or on (lane, due, id).
_LETTERS = f"""SELECT id, due, reason FROM messages WHERE standing = {DEAD} {{of_lane}}
    AND (due, id) >= (%(died)s, %(id)s) AND due < %(until)s ORDER BY due, id LIMIT %(limit)s"""
# By the primary keys of both tables; with `stated`, one row of `lanes` by primary key for each message.
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
"""The defaults of _IN_ORDER. `dated` adds records, `stated` the states of circuits."""

Candidate = tuple[MessageId, str | None, MessageState, int, Any]
"""Id, lane, state, size and record. The lane of a delivered message is None; its record has it."""


def in_order(connection: Connection, terms: Mapping[str, Any]) -> Iterator[Candidate]:
    """Messages in the order of acceptance: one more than are looked at, to know whether there are more."""
    for id, lane, standing, retry, size, record, circuit in connection.execute(_IN_ORDER, {**_UNDELIVERED, **terms}):
        state = MessageState.DELIVERED
        if lane is not None:
            state = state_of(Place(STANDINGS[standing], 0, retry=retry), STATES[circuit or 0])
        yield id, lane, state, size, record


def undelivered(
    connection: Connection, select: MessageFilter, limit: int, skip: Container[MessageId]
) -> tuple[list[MessageId], MessageId | None]:
    """Messages that were not delivered, in the order of acceptance, and where to go on."""
    first, last = select.id or select.after or b"", select.id or LAST_ID
    terms = {"first": first, "last": last, "dated": select.before < EVER}
    candidates = takewhile(partial(_is_before, select.before), in_order(connection, terms))

    def read(id: MessageId, lane: str, state: MessageState, *_: Any) -> MessageId | None:
        is_meant = id not in skip and select.lane in (None, lane) and select.state in (None, state)
        return id if is_meant else None

    found, _, start = choose(candidates, limit, read)
    return found, start


def _is_before(moment: int, candidate: Candidate) -> bool:
    """Whether a message was accepted before a moment; by its id, if its record can't be read."""
    id, *_, record = candidate
    message = None if record is None else records.message_or_none(id, record)
    return record is None or (message.accepted_at if message else int.from_bytes(id[:6], "big")) < moment


def dead_letters(connection: Connection, select: DeadFilter, limit: int) -> tuple[list[MessageId], bytes | None]:
    """Dead letters by the time of death, and where to go on."""
    died, id = unstamp(select.after) if select.after is not None else (select.since, b"")
    wanted = reason_number(select.reason)
    looked_at = LOOKED_AT if wanted is not None else min(limit, LOOKED_AT)
    terms = {"lane": select.lane, "died": died, "id": id, "until": select.until, "limit": looked_at + 1}
    of_lane = "" if select.lane is None else "AND lane = %(lane)s"
    letters = connection.execute(_LETTERS.format(of_lane=of_lane), terms)
    candidates = ((stamp(due, id), id, reason) for id, due, reason in letters)
    found, _, start = choose(candidates, limit, lambda letter, id, reason: id if wanted in (None, reason) else None)
    return found, start
