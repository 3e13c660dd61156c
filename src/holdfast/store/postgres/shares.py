"""How much waits, is dead, and is held by whom: counted with every change, never scanned for.

Each connection that writes has rows of its own, so that no two transactions wait for each other's counts; what there is
is their sum, and always exact. The rows of those that are gone are folded into one.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from holdfast.core.store_rules import MESSAGE_COST
from holdfast.store.postgres.connection import Connection
from holdfast.store.postgres.rows import DEAD, RETRY

FOLDED = 0
"""The writer whose rows hold what those that are gone have counted."""


class Sums(NamedTuple):
    first: int = 0
    retry: int = 0
    dead: int = 0
    bytes: int = 0

    @property
    def waiting(self) -> int:
        return self.first + self.retry


class Counts:
    """What one transaction changes."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], list[int]] = {}

    def add(self, host: str, lane: str, standing: int, size: int, number: int = 1) -> None:
        """Messages of this size came to stand there."""
        counts = self._of.setdefault((host, lane), [0, 0, 0, 0])
        counts[_column(standing)] += number
        counts[3] += number * (MESSAGE_COST + size)

    def leave(self, host: str, lane: str, standing: int, size: int) -> None:
        self.add(host, lane, standing, size, -1)

    def move(self, host: str, lane: str, before: int, after: int) -> None:
        """A message stands elsewhere; it holds what it held."""
        counts = self._of.setdefault((host, lane), [0, 0, 0, 0])
        counts[_column(before)] -= 1
        counts[_column(after)] += 1

    def less(self, host: str, lane: str, sums: Iterable[int]) -> None:
        """Take away what is counted already."""
        counts = self._of.setdefault((host, lane), [0, 0, 0, 0])
        for column, number in enumerate(sums):
            counts[column] -= number

    @property
    def changes(self) -> dict[tuple[str, str], Sums]:
        """What there is to write, by host and lane."""
        return {key: Sums(*counts) for key, counts in sorted(self._of.items()) if any(counts)}

    def values(self, writer: int) -> dict[str, Any]:
        """Those of ADD."""
        changes = self.changes
        named = {"hosts": [host for host, _ in changes], "lanes": [lane for _, lane in changes]}
        columns = {name: [sums[column] for sums in changes.values()] for column, name in enumerate(Sums._fields)}
        return {"writer": writer, **named, **columns}

    def write(self, connection: Connection, writer: int) -> None:
        values = self.values(writer)
        if values["hosts"]:
            connection.execute(ADD, values)


_SUMS = "sum(first)::bigint, sum(retry)::bigint, sum(dead)::bigint, sum(bytes)::bigint"
ON_TOP = """ON CONFLICT (host, lane, writer) DO UPDATE SET first = c.first + excluded.first,
    retry = c.retry + excluded.retry, dead = c.dead + excluded.dead, bytes = c.bytes + excluded.bytes"""
ADD = f"""INSERT INTO counters AS c (host, lane, writer, first, retry, dead, bytes)
    SELECT v.host, v.lane, %(writer)s::bigint, v.first, v.retry, v.dead, v.bytes
    FROM unnest(%(hosts)s::text[], %(lanes)s::text[], %(first)s::bigint[], %(retry)s::bigint[], %(dead)s::bigint[],
        %(bytes)s::bigint[]) AS v(host, lane, first, retry, dead, bytes) {ON_TOP}"""


def _column(standing: int) -> int:
    return {RETRY: 1, DEAD: 2}.get(standing, 0)


def total(connection: Connection) -> Sums:
    [row] = connection.execute(f"SELECT {_SUMS} FROM counters").fetchall()
    return Sums(*(number or 0 for number in row))


def held(connection: Connection, hosts: Iterable[str]) -> dict[str, int]:
    """What waiting and dead messages of some hosts hold."""
    found = connection.execute(
        "SELECT host, sum(bytes)::bigint FROM counters WHERE host = ANY(%s) GROUP BY host", (list(hosts),)
    )
    return dict(found.fetchall())


def of_lanes(connection: Connection, lanes: list[tuple[str, str]]) -> dict[str, Sums]:
    """The sums of some lanes, each given with its host."""
    found = connection.execute(
        f"""SELECT c.lane, {_SUMS} FROM unnest(%s::text[], %s::text[]) AS v(host, lane)
        JOIN counters c ON c.host = v.host AND c.lane = v.lane GROUP BY c.lane""",
        ([host for host, _ in lanes], [lane for _, lane in lanes]),
    )
    return {lane: Sums(*sums) for lane, *sums in found}


def fold(connection: Connection) -> None:
    """Put together what writers that are gone have counted; what came to nothing leaves."""
    connection.execute(
        f"""WITH gone AS (
            DELETE FROM counters WHERE writer / 2 NOT IN (SELECT number FROM members) AND
                (writer <> %(folded)s OR (first = 0 AND retry = 0 AND dead = 0 AND bytes = 0)) RETURNING *
        )
        INSERT INTO counters AS c (host, lane, writer, first, retry, dead, bytes)
        SELECT host, lane, %(folded)s::bigint, sum(first), sum(retry), sum(dead), sum(bytes)
        FROM gone WHERE writer <> %(folded)s
        GROUP BY host, lane ORDER BY host, lane {ON_TOP}""",
        {"folded": FOLDED},
    )
