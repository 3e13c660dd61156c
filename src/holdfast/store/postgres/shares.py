"""Counters of waiting and dead messages and their bytes, by host and lane: kept with every change, never scanned for.

Each writing connection has rows of its own, so that no transaction waits for another's counts. Their sum is always
exact. The rows of connections that are gone are folded into one.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from holdfast.core.store_rules import MESSAGE_COST
from holdfast.store.postgres.rows import DEAD, RETRY
from holdfast.store.postgres.transactions import Connection

FOLDED = 0
"""The writer of the folded rows."""


_SUMS = "sum(first)::bigint, sum(retry)::bigint, sum(dead)::bigint, sum(bytes)::bigint"
ON_TOP = """ON CONFLICT (host, lane, writer) DO UPDATE SET first = c.first + excluded.first,
    retry = c.retry + excluded.retry, dead = c.dead + excluded.dead, bytes = c.bytes + excluded.bytes"""
"""Adds to the row of the same writer."""
ADD = f"""INSERT INTO counters AS c (host, lane, writer, first, retry, dead, bytes)
    SELECT v.host, v.lane, %(writer)s::bigint, v.first, v.retry, v.dead, v.bytes
    FROM unnest(%(hosts)s::text[], %(lanes)s::text[], %(first)s::bigint[], %(retry)s::bigint[], %(dead)s::bigint[],
        %(bytes)s::bigint[]) AS v(host, lane, first, retry, dead, bytes) {ON_TOP}"""
"""One row for each lane of a group, by primary key."""
_TOTAL = f"SELECT {_SUMS} FROM counters"
"""Reads all counters: a few rows for each lane that has messages."""
_HELD_BY_HOSTS = "SELECT host, sum(bytes)::bigint FROM counters WHERE host = ANY(%s) GROUP BY host"
_OF_LANES = f"""SELECT c.lane, {_SUMS} FROM unnest(%s::text[], %s::text[]) AS v(host, lane)
    JOIN counters c ON c.host = v.host AND c.lane = v.lane GROUP BY c.lane"""
_FOLD = f"""WITH gone AS (
        DELETE FROM counters WHERE writer / 2 NOT IN (SELECT number FROM members) AND
            (writer <> %(folded)s OR (first = 0 AND retry = 0 AND dead = 0 AND bytes = 0)) RETURNING *
    )
    INSERT INTO counters AS c (host, lane, writer, first, retry, dead, bytes)
    SELECT host, lane, %(folded)s::bigint, sum(first), sum(retry), sum(dead), sum(bytes)
    FROM gone WHERE writer <> %(folded)s
    GROUP BY host, lane ORDER BY host, lane {ON_TOP}"""
"""Reads all counters. Moves those of writers that are no members any more, and drops folded rows that are all zero."""


class Sums(NamedTuple):
    first: int = 0
    retry: int = 0
    dead: int = 0
    bytes: int = 0

    @property
    def waiting(self) -> int:
        return self.first + self.retry


class Counts:
    """The changes of one transaction."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], list[int]] = {}

    def add(self, host: str, lane: str, standing: int, size: int, number: int = 1) -> None:
        """Messages of this size come, `number` of them; or leave, if that is negative."""
        counts = self._of.setdefault((host, lane), [0, 0, 0, 0])
        counts[_column(standing)] += number
        counts[3] += number * (MESSAGE_COST + size)

    def leave(self, host: str, lane: str, standing: int, size: int) -> None:
        self.add(host, lane, standing, size, -1)

    def move(self, host: str, lane: str, before: int, after: int) -> None:
        """A message gets another standing; its bytes stay."""
        counts = self._of.setdefault((host, lane), [0, 0, 0, 0])
        counts[_column(before)] -= 1
        counts[_column(after)] += 1

    def less(self, host: str, lane: str, sums: Iterable[int]) -> None:
        """Subtracts what is counted already."""
        counts = self._of.setdefault((host, lane), [0, 0, 0, 0])
        for column, number in enumerate(sums):
            counts[column] -= number

    @property
    def changes(self) -> dict[tuple[str, str], Sums]:
        """The rows to write, by host and lane."""
        return {key: Sums(*counts) for key, counts in sorted(self._of.items()) if any(counts)}

    def values(self, writer: int) -> dict[str, Any]:
        """The values of ADD."""
        changes = self.changes
        named = {"hosts": [host for host, _ in changes], "lanes": [lane for _, lane in changes]}
        columns = {name: [sums[column] for sums in changes.values()] for column, name in enumerate(Sums._fields)}
        return {"writer": writer, **named, **columns}

    def write(self, connection: Connection, writer: int) -> None:
        values = self.values(writer)
        if values["hosts"]:
            connection.execute(ADD, values)


def _column(standing: int) -> int:
    return {RETRY: 1, DEAD: 2}.get(standing, 0)


def total(connection: Connection) -> Sums:
    [row] = connection.execute(_TOTAL).fetchall()
    return Sums(*(number or 0 for number in row))


def held(connection: Connection, hosts: Iterable[str]) -> dict[str, int]:
    """The bytes of the waiting and dead messages of some hosts."""
    return dict(connection.execute(_HELD_BY_HOSTS, (list(hosts),)).fetchall())


def of_lanes(connection: Connection, lanes: list[tuple[str, str]]) -> dict[str, Sums]:
    """The sums of some lanes, each given with its host."""
    found = connection.execute(_OF_LANES, ([host for host, _ in lanes], [lane for _, lane in lanes]))
    return {lane: Sums(*sums) for lane, *sums in found}


def fold(connection: Connection) -> None:
    """Folds the rows of writers that are gone into one."""
    connection.execute(_FOLD, {"folded": FOLDED})
