"""What delivery reads of its own shards: lanes with the next entries of their queues, and the agenda."""

from collections.abc import Container, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import trio

from holdfast.core.circuit import CircuitState
from holdfast.core.errors import CorruptRecord, StoreUnreachable
from holdfast.core.lane import next_probe
from holdfast.core.lane_times import Heads
from holdfast.core.message import Entry, MessageId
from holdfast.core.ownership import shard_of
from holdfast.store import records
from holdfast.store.batching import choose, choose_lanes
from holdfast.store.port import ALL_CLASSES, NO_LIMIT, Agenda, LaneQuery, LaneView, OldestFinished
from holdfast.store.postgres import rows
from holdfast.store.postgres.client import Client
from holdfast.store.postgres.lane_rows import heads_of
from holdfast.store.postgres.rows import DEAD, RETRY, WAITING
from holdfast.store.postgres.shards import OwnedShards
from holdfast.store.postgres.state import TRY_AGAIN_AFTER, WORKED_WITHIN, StoreState
from holdfast.store.postgres.transactions import Connection, Result, Work, reading
from holdfast.store.records import unstamp
from holdfast.store.validation import check_message

SMALL = 16 << 10
"""Bodies up to this size come with their rows. Larger ones are fetched one by one, as far as memory allows."""
PAGE = 512
"""Rows of the agenda that are read at once."""
LANES_AT_ONCE = 16
"""Lanes that are surveyed in one transaction."""

_COLUMNS = f"due, id, {rows.PLACE}, size, record, CASE WHEN size <= {SMALL} THEN body END"
# The next entries of a lane's queue, each by the index of the queue.
FRESH = f"""SELECT {_COLUMNS} FROM messages WHERE lane = %s AND standing = {WAITING} AND (born, id) >= (%s, %s)
    AND id <> ALL(%s::bytea[]) ORDER BY born, id LIMIT %s"""
DUE = f"""SELECT {_COLUMNS} FROM messages WHERE lane = %s AND standing = {RETRY}
    AND id <> ALL(%s::bytea[]) ORDER BY due, id LIMIT %s"""
_PROBE = f"""SELECT {_COLUMNS} FROM messages WHERE lane = %(lane)s AND standing = {{standing}}
    AND (born, id) > (%(born)s, %(id)s) AND id <> ALL(%(skip)s::bytea[]) AND (NOT held OR due <= %(now)s)
    ORDER BY born, id LIMIT 1"""
_PROBES = tuple(_PROBE.format(standing=standing) for standing in (WAITING, RETRY))
_BODY = "SELECT body FROM messages WHERE id = %s"
# Three looks into the indexes on (at, id), (due, id) of the dead, and (used).
_OLDEST_FINISHED = f"""SELECT (SELECT min(at) FROM delivered), (SELECT min(due) FROM messages WHERE standing = {DEAD}),
    (SELECT min(used) + 1 FROM keys)"""
# A page of lanes that need attention, by the index on (wake_at, lane).
_AGENDA = """SELECT wake_at, lane, host_class FROM lanes WHERE wake_at > 0 AND (wake_at, lane) > (%s, %s)
    AND shard = ANY(%s::smallint[]) ORDER BY wake_at, lane LIMIT %s"""


class DeliveryReader:
    """Reads for delivery. While the database is unreachable, each read waits."""

    def __init__(self, client: Client, state: StoreState, shards: OwnedShards) -> None:
        self._client = client
        self._state = state
        self._shards = shards

    async def survey(self, asks: Sequence[LaneQuery], bytes_wanted: int = NO_LIMIT) -> list[LaneView]:
        views: list[LaneView] = []
        while len(views) < len(asks) and bytes_wanted >= 0:
            some = asks[len(views) : len(views) + LANES_AT_ONCE]
            read = await self._read(partial(survey, asks=some, owned=self._shards.owned))
            bytes_wanted -= sum(view.size for view in read)
            views += read
        return views

    async def agenda(
        self, now: int, limit: int, skip: Container[str], classes: Container[int] = ALL_CLASSES, since: int = 0
    ) -> Agenda:
        def read(connection: Connection) -> Agenda:
            return agenda(connection, self._shards.owned, now, limit, skip, classes, since)

        return await self._read(read)

    async def oldest_finished(self) -> OldestFinished:
        return await self._read(_oldest_finished)

    async def _read(self, work: Work[Result]) -> Result:
        while True:
            if not self._state.unreachable:
                try:
                    return await self._client.run(reading(work), within=WORKED_WITHIN)
                except StoreUnreachable as error:
                    self._state.disconnected(error)
            await trio.sleep(TRY_AGAIN_AFTER)


def survey(connection: Connection, asks: Sequence[LaneQuery], owned: Container[int]) -> list[LaneView]:
    """Reads lanes, in the order of `asks`. A lane in a shard of another owner has no entries."""
    with connection.pipeline():
        heads = heads_of(connection, [ask.lane for ask in asks])
        queues = [
            # One more than is asked for, to know whether there is more.
            (
                connection.execute(FRESH, (ask.lane, *unstamp(ask.read_to), list(ask.skip), ask.fresh + 1)),
                connection.execute(DUE, (ask.lane, list(ask.skip), ask.due + 1)),
            )
            for ask in asks
        ]
    return [
        _Lane(connection, ask, *heads[ask.lane]).view(fresh.fetchall(), due.fetchall(), owned)
        for ask, (fresh, due) in zip(asks, queues, strict=True)
    ]


class _Lane:
    """Builds the view of one lane."""

    def __init__(self, connection: Connection, ask: LaneQuery, stored: bytes | None, heads: Heads) -> None:
        self._connection = connection
        self._ask = ask
        self._heads = heads
        self._broken: list[tuple[MessageId, str]] = []
        self._record = records.lane_or_none(stored)
        if self._record is None and stored is not None:
            text = f"the record of lane {ask.lane} can't be read: its circuit starts anew"
            self._broken.append((bytes(16), text))

    def view(self, fresh: Sequence[Any], due: Sequence[Any], owned: Container[int]) -> LaneView:
        record, ask = self._record, self._ask
        if record is not None and shard_of(record.host) not in owned:
            return LaneView(record, [], [], None, False, None, Heads(), self._broken)
        take = partial(choose, read=self._entry, size_of=lambda each: len(each.message.body), most_bytes=ask.most_bytes)
        entries, _, left = take(fresh, ask.fresh)
        retries, _, later = take([row for row in due if row[0] <= ask.now], ask.due)
        next_due = later if later is not None else next((row[0] for row in due if row[0] > ask.now), None)
        probe = None
        if record is not None and record.circuit.state is CircuitState.DISABLED:
            probe = next_probe(ask.probed or record.circuit.probed, self._oldest)
        return LaneView(record, entries, retries, probe, left is not None, next_due, self._heads, self._broken)

    def _entry(self, due: int, id: MessageId, *columns: Any) -> Entry | None:
        *place, length, record, body = columns
        if length > SMALL:
            fetched = self._connection.execute(_BODY, (id,)).fetchone()
            body = None if fetched is None else fetched[0]
        try:
            message, size = rows.message(id, record, body)
            check_message(message, size)
            return Entry(message, rows.place(*place))
        except CorruptRecord as error:
            self._broken.append((id, str(error)))
            return None

    def _oldest(self, after: bytes | None) -> Iterator[Entry | None]:
        """The oldest entry of each queue that is not held."""
        born, id = unstamp(after) if after else (-1, b"")
        terms = {"lane": self._ask.lane, "born": born, "id": id, "now": self._ask.now}
        for query in _PROBES:
            skip, entry = list(self._ask.skip), None
            while entry is None and (row := self._connection.execute(query, {**terms, "skip": skip}).fetchone()):
                entry = self._entry(*row)
                skip.append(row[1])
            yield entry


def agenda(
    connection: Connection,
    shards: Iterable[int],
    now: int,
    limit: int,
    skip: Container[str],
    classes: Container[int],
    since: int,
) -> Agenda:
    """Lanes of shards that need attention by now, the longest waiting first."""
    return choose_lanes(_wakes(connection, list(shards), since), now, limit, skip, classes, since, lambda lane: lane)


def _wakes(connection: Connection, shards: list[int], since: int) -> Iterator[tuple[int, str, int]]:
    after = (since - 1, "\uffff")
    while True:
        found = connection.execute(_AGENDA, (*after, shards, PAGE)).fetchall()
        yield from found
        if len(found) < PAGE:
            return
        after = found[-1][:2]


def _oldest_finished(connection: Connection) -> OldestFinished:
    """A key expires as one of the moment after its use: keys leave before the cutoff, as all others do."""
    return OldestFinished(*connection.execute(_OLDEST_FINISHED).fetchall()[0])
