"""What the owner of shards reads of them: lanes with the next entries of their queues, and the agenda."""

from collections.abc import Container, Iterable, Sequence
from typing import Any

from holdfast.core.circuit import CircuitState
from holdfast.core.errors import CorruptRecord
from holdfast.core.lane import Heads
from holdfast.core.message import Entry, MessageId
from holdfast.core.ownership import shard_of
from holdfast.store import records
from holdfast.store.port import Agenda, Ask, LaneRecord, View
from holdfast.store.postgres import rows
from holdfast.store.postgres.connection import Connection, Cursor
from holdfast.store.postgres.lanes import heads_of
from holdfast.store.postgres.rows import RETRY, WAITING
from holdfast.store.sound import check_message

SMALL = 16 << 10
"""Bodies up to this come with their rows; larger ones are fetched while they fit what a lane may hold in memory."""
PAGE = 512
"""Rows of the agenda that are read at once."""
MOMENTS_A_READ = 4_096
"""Rows of the agenda that one read looks at."""

_COLUMNS = f"id, {rows.PLACE}, size, record, CASE WHEN size <= {SMALL} THEN body END"
FRESH = f"""SELECT {_COLUMNS} FROM messages WHERE lane = %s AND standing = {WAITING} AND (born, id) >= (%s, %s)
    AND id <> ALL(%s::bytea[]) ORDER BY born, id LIMIT %s"""
DUE = f"""SELECT {_COLUMNS} FROM messages WHERE lane = %s AND standing = {RETRY}
    AND id <> ALL(%s::bytea[]) ORDER BY due, id LIMIT %s"""
_PROBE = f"""SELECT {_COLUMNS} FROM messages WHERE lane = %(lane)s AND standing = {{standing}}
    AND (born, id) > (%(born)s, %(id)s) AND id <> ALL(%(skip)s::bytea[]) AND (NOT held OR due <= %(now)s)
    ORDER BY born, id LIMIT 1"""
_PROBES = tuple(_PROBE.format(standing=standing) for standing in (WAITING, RETRY))
_AGENDA = """SELECT wake_at, lane, host_class FROM lanes WHERE wake_at > 0 AND (wake_at, lane) > (%s, %s)
    AND shard = ANY(%s::smallint[]) ORDER BY wake_at, lane LIMIT %s"""


def survey(connection: Connection, asks: Sequence[Ask], owned: Container[int]) -> list[View]:
    """What is asked of lanes, in this order. Of one that is in no owned shard there is nothing to send."""
    with connection.pipeline():
        told = heads_of(connection, [ask.lane for ask in asks])
        queues = [(_ask_fresh(connection, ask), _ask_due(connection, ask)) for ask in asks]
    return [
        _Lane(connection, ask, told[ask.lane][0], owned).view(fresh.fetchall(), due.fetchall(), told[ask.lane][1])
        for ask, (fresh, due) in zip(asks, queues, strict=True)
    ]


def _ask_fresh(connection: Connection, ask: Ask) -> Cursor:
    """One more than is asked for, to know whether there is more."""
    born, id = int.from_bytes(ask.read_to[:8], "big"), ask.read_to[8:]
    return connection.execute(FRESH, (ask.lane, born, id, list(ask.skip), ask.fresh + 1))


def _ask_due(connection: Connection, ask: Ask) -> Cursor:
    return connection.execute(DUE, (ask.lane, list(ask.skip), ask.due + 1))


class _Lane:
    """One lane that is read."""

    def __init__(self, connection: Connection, ask: Ask, stored: bytes | None, owned: Container[int]) -> None:
        self._connection = connection
        self._ask = ask
        self._broken: list[tuple[MessageId, str]] = []
        self._record = self._read_record(stored)
        self._is_owned = self._record is None or shard_of(self._record.host) in owned

    def _read_record(self, stored: bytes | None) -> LaneRecord | None:
        try:
            return None if stored is None else records.decode_lane(stored)
        except CorruptRecord:
            text = f"the record of lane {self._ask.lane} can't be read: its circuit starts anew"
            self._broken.append((bytes(16), text))
            return None

    def view(self, fresh: Sequence[Any], due: Sequence[Any], heads: Heads) -> View:
        ask = self._ask
        if not self._is_owned:
            return View(self._record, [], [], None, False, None, Heads(), self._broken)
        entries, left = self._entries(fresh, ask.fresh)
        retries, later = self._entries([row for row in due if row[3] <= ask.now], ask.due)
        next_due = later[3] if later is not None else next((row[3] for row in due if row[3] > ask.now), None)
        return View(self._record, entries, retries, self._probe(), left is not None, next_due, heads, self._broken)

    def _entries(self, found: Sequence[Any], limit: int) -> tuple[list[Entry], Any]:
        """Entries whole, and the first row that was left."""
        entries: list[Entry] = []
        size = 0
        for row in found:
            if len(entries) >= limit or size > self._ask.most_bytes:
                return entries, row
            entry = self._entry(row)
            if entry is not None:
                entries.append(entry)
                size += len(entry.message.body)
        return entries, None

    def _entry(self, row: Sequence[Any]) -> Entry | None:
        id, *place, length, record, body = row
        if length > SMALL:
            fetched = self._connection.execute("SELECT body FROM messages WHERE id = %s", (id,)).fetchone()
            body = None if fetched is None else fetched[0]
        try:
            message, size = rows.message(id, record, body)
            check_message(message, size)
            return Entry(message, rows.place(*place))
        except CorruptRecord as error:
            self._broken.append((id, str(error)))
            return None

    def _probe(self) -> Entry | None:
        """The oldest that was not probed in this spell, else the oldest of all; never one that is held."""
        record, ask = self._record, self._ask
        if record is None or record.circuit.state is not CircuitState.DISABLED:
            return None
        probed = ask.probed or record.circuit.probed
        skip = list(ask.skip)
        for after in (probed, None) if probed else (None,):
            born, id = (int.from_bytes(after[:8], "big"), after[8:]) if after else (-1, b"")
            while True:
                terms = {"lane": ask.lane, "born": born, "id": id, "skip": skip, "now": ask.now}
                found = [self._connection.execute(query, terms).fetchone() for query in _PROBES]
                rows_found = [row for row in found if row is not None]
                if not rows_found:
                    break
                oldest = min(rows_found, key=lambda row: (row[2], row[0]))
                entry = self._entry(oldest)
                if entry is not None:
                    return entry
                skip.append(oldest[0])
        return None


def agenda(
    connection: Connection,
    shards: Iterable[int],
    now: int,
    limit: int,
    skip: Container[str],
    classes: Container[int],
    since: int,
) -> Agenda:
    """Lanes of some shards that need attention by now, the longest waiting first."""
    lanes: list[str] = []
    owned = list(shards)
    passed_over = looked_at = 0
    after = (since - 1, "\uffff")
    while True:
        found = connection.execute(_AGENDA, (*after, owned, PAGE)).fetchall()
        for at, lane, host_class in found:
            looked_at += 1
            if at > now or len(lanes) >= limit or (looked_at > MOMENTS_A_READ and at > since):
                return Agenda(lanes, at, passed_over)
            if host_class not in classes:
                passed_over += 1
            elif lane not in skip:
                lanes.append(lane)
        if len(found) < PAGE:
            return Agenda(lanes, None, passed_over)
        after = found[-1][:2]
