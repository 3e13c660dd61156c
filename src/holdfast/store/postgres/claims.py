"""From claims to ownership: what tables of version 1 hold becomes what shards' owners read.

There every replica sent to every host: messages were claimed under a replica's number, and limits and moments had rows
of their own. Nothing of it is in use any more when this runs; it may be interrupted, and is then begun again.
"""

from typing import Any

import psycopg

from holdfast.core.ownership import shard_of
from holdfast.store import records
from holdfast.store.port import LaneRecord

PAGE = 500

_LANES = """SELECT l.lane, l.host, l.record, w.at, h.most, h.hold_until, h.run FROM lanes l
    LEFT JOIN wakes w ON w.lane = l.lane LEFT JOIN hosts h ON h.host = l.host
    WHERE l.shard < 0 AND l.lane > %s ORDER BY l.lane LIMIT %s"""
_FREE = """WITH freed AS (
        UPDATE messages SET owner = NULL, standing = greatest(standing, 1) WHERE id = ANY(ARRAY(
            SELECT id FROM messages WHERE owner IS NOT NULL OR (standing = 0 AND shard < 0) LIMIT %s)) RETURNING lane
    ), woken AS (
        UPDATE lanes SET wake_at = 1 WHERE lane IN (SELECT lane FROM freed)
    ) SELECT count(*) FROM freed"""
"""What was claimed had no part in its lane's moment."""


def end(connection: psycopg.Connection) -> None:
    """Give each lane its host's limit, its shard and its moment, and free what was claimed."""
    last = ""
    while rows := connection.execute(_LANES, (last, PAGE)).fetchall():
        converted = [_converted(*row) for row in rows]
        connection.execute(
            """UPDATE lanes l SET shard = v.shard, wake_at = v.wake_at, host_class = 1, record = v.record
            FROM unnest(%s::text[], %s::smallint[], %s::bigint[], %s::bytea[]) AS v(lane, shard, wake_at, record)
            WHERE l.lane = v.lane""",
            [list(column) for column in zip(*converted, strict=True)],
        )
        last = rows[-1][0]
    while connection.execute(_FREE, (PAGE,)).fetchone() != (0,):
        pass


def _converted(lane: str, host: str, stored: bytes, wake_at: int | None, *of_host: int | None) -> tuple[Any, ...]:
    """`most` was 0 for a host with its full limit. Hosts start slowly in any case, since this fleet is a new one."""
    known = records.lane_or_none(stored)
    if known is None:
        return lane, shard_of(host), wake_at or 1, stored  # Its owner reports it, and starts it anew.
    most, hold_until, run = of_host
    record = LaneRecord(lane, host, known.circuit, most or 1, run or 0, hold_until or 0)
    return lane, shard_of(host), wake_at or 0, records.encode_lane(record)
