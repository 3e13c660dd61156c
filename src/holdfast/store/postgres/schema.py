"""The tables, and the steps from one version of them to the next.

    table      holds
    -----      -----
    messages   all that are not delivered; `arrival` counts in the order of commits
    attempts   failed attempts; answers have a column of their own, since only the first and the last two are kept
    delivered  small records, kept for `retention.delivered`
    keys       idempotency keys
    lanes      the circuit of each lane: its record, the columns that it is searched by, and `wake_at`
    counters   waiting and dead messages and their bytes, a row for each lane and writer; see shares.py
    members    the replicas that are alive; this, fences and shards: see ownership_tables.py
    requests   of operators to another replica; see requests.py
    meta       single values: when the fleet began, its time, the version that the tables are tuned for
    versions   the steps below that were made

A message's `standing` is the number of core's Standing: 0 active, 1 waiting, 2 retry, 3 dead. A dead message's `due` is
when it died. An active message has just arrived, or is in the memory of its shard's owner. Ids have 16 bytes and only
ever grow.

Steps are of two kinds. An `expand` step only adds, so replicas of the version before keep working. A start makes the
missing ones. A `contract` step removes what only older versions use, once the last of them is gone. `holdfast migrate`
makes it; a start makes it too if delivery can't begin without it.

Before version 2 every replica sent to every host. Messages were claimed under a replica's number, and the limits of
hosts and the `wake_at` of lanes had tables of their own. Step 3 converts them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from holdfast.core.ownership import shard_of
from holdfast.store import records
from holdfast.store.port import LaneRecord

SCHEMA = "holdfast"
STATEMENT_TIMEOUT = "30s"
LOCK_TIMEOUT = "10s"


@dataclass(frozen=True, slots=True)
class Step:
    version: int
    statements: tuple[str, ...]
    apart: tuple[tuple[str, str], ...] = ()
    """Indexes by name, and what each one is on. They take long, so they are made outside of the step's transaction."""
    if_possible: tuple[str, ...] = ()
    """Settings that an engine may lack."""
    contracts: bool = False
    at_start: bool = False
    """Whether a start makes this contracting step."""
    locks: str = ""
    """Tables that older replicas write, and that are locked meanwhile."""
    convert: Callable[[psycopg.Connection], None] | None = None
    """Converts rows: once before the step's transaction, and once within it, for rows that were added since."""


def _often_vacuumed(table: str) -> str:
    """Rows come and go by the thousand: the number of dead ones triggers a vacuum, not their part of the table."""
    return f"""ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000, autovacuum_vacuum_cost_delay = 0)"""


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
"""Frees claimed messages, and wakes their lanes: a claimed message did not count for the lane's `wake_at`."""
_CONVERT_LANES = """UPDATE lanes l SET shard = v.shard, wake_at = v.wake_at, host_class = 1, record = v.record
    FROM unnest(%s::text[], %s::smallint[], %s::bigint[], %s::bytea[]) AS v(lane, shard, wake_at, record)
    WHERE l.lane = v.lane"""


def convert_claims(connection: psycopg.Connection) -> None:
    """Gives each lane its host's limit, its shard and its `wake_at`, and frees claimed messages. It can be repeated."""
    last = ""
    while rows := connection.execute(_LANES, (last, PAGE)).fetchall():
        converted = [_converted(*row) for row in rows]
        connection.execute(_CONVERT_LANES, [list(column) for column in zip(*converted, strict=True)])
        last = rows[-1][0]
    while connection.execute(_FREE, (PAGE,)).fetchone() != (0,):
        pass


def _converted(lane: str, host: str, stored: bytes, wake_at: int | None, *of_host: int | None) -> tuple[Any, ...]:
    """`most` was 0 for a host with its full limit. Hosts start slowly anyway, since the fleet begins a new run."""
    known = records.lane_or_none(stored)
    if known is None:
        return lane, shard_of(host), wake_at or 1, stored  # Its owner reports it, and starts it anew.
    most, hold_until, run = of_host
    record = LaneRecord(lane, host, known.circuit, most or 1, run or 0, hold_until or 0)
    return lane, shard_of(host), wake_at or 0, records.encode_lane(record)


STEPS = (
    Step(
        1,
        (
            """CREATE TABLE messages (
                id bytea PRIMARY KEY,
                lane text COLLATE "C" NOT NULL,
                standing smallint NOT NULL,
                born bigint NOT NULL,
                due bigint NOT NULL,
                retry smallint NOT NULL,
                attempts integer NOT NULL,
                held boolean NOT NULL,
                reason smallint,
                size integer NOT NULL,
                owner bigint,
                record bytea NOT NULL,
                body bytea
            )""",
            "CREATE INDEX messages_waiting ON messages (lane, born, id) WHERE standing = 1 AND owner IS NULL",
            "CREATE INDEX messages_due ON messages (lane, due, id) WHERE standing = 2 AND owner IS NULL",
            "CREATE INDEX messages_aging ON messages (lane, born, id) WHERE standing = 2 AND owner IS NULL",
            "CREATE INDEX messages_owned ON messages (owner, lane) WHERE owner IS NOT NULL",
            "CREATE INDEX messages_dead ON messages (due, id) WHERE standing = 3",
            "CREATE INDEX messages_dead_lane ON messages (lane, due, id) WHERE standing = 3",
            """CREATE TABLE attempts (
                id bytea NOT NULL, number integer NOT NULL, record bytea NOT NULL, answer bytea,
                PRIMARY KEY (id, number)
            )""",
            "CREATE TABLE delivered (id bytea PRIMARY KEY, at bigint NOT NULL, record bytea NOT NULL)",
            "CREATE INDEX delivered_at ON delivered (at, id)",
            """CREATE TABLE keys (
                digest bytea PRIMARY KEY, id bytea NOT NULL, body bytea NOT NULL, used bigint NOT NULL
            )""",
            "CREATE INDEX keys_used ON keys (used)",
            """CREATE TABLE lanes (
                lane text COLLATE "C" PRIMARY KEY,
                host text COLLATE "C" NOT NULL,
                state smallint NOT NULL,
                spell integer NOT NULL,
                changed_at bigint NOT NULL,
                record bytea NOT NULL
            )""",
            "CREATE INDEX lanes_state ON lanes (state, lane) WHERE state <> 0",
            "CREATE INDEX lanes_changed ON lanes (changed_at)",
            "CREATE INDEX lanes_host ON lanes (host)",
            """CREATE TABLE hosts (
                host text COLLATE "C" PRIMARY KEY,
                most integer NOT NULL,
                streak integer NOT NULL,
                hold_until bigint NOT NULL,
                run bigint NOT NULL
            )""",
            'CREATE TABLE wakes (lane text COLLATE "C" PRIMARY KEY, at bigint NOT NULL)',
            "CREATE INDEX wakes_at ON wakes (at, lane)",
            """CREATE TABLE counters (
                host text COLLATE "C" NOT NULL,
                lane text COLLATE "C" NOT NULL,
                writer bigint NOT NULL,
                first bigint NOT NULL,
                retry bigint NOT NULL,
                dead bigint NOT NULL,
                bytes bigint NOT NULL,
                PRIMARY KEY (host, lane, writer)
            )""",
            """CREATE TABLE replicas (
                number bigint PRIMARY KEY,
                name text NOT NULL,
                delivers boolean NOT NULL,
                version text NOT NULL,
                tables integer NOT NULL,
                started_at bigint NOT NULL,
                lease_until bigint NOT NULL
            )""",
            "CREATE SEQUENCE replica_numbers",
            "CREATE TABLE meta (name text PRIMARY KEY, value bytea NOT NULL)",
        ),
        if_possible=(
            "ALTER TABLE messages ALTER COLUMN body SET STORAGE EXTERNAL",
            "ALTER TABLE messages ALTER COLUMN record SET STORAGE MAIN",
            *(_often_vacuumed(table) for table in ("messages", "delivered", "keys", "attempts")),
            *(f"ALTER TABLE {table} SET (fillfactor = 50)" for table in ("lanes", "counters")),
        ),
    ),
    Step(
        2,
        (
            "ALTER TABLE messages ADD COLUMN shard smallint NOT NULL DEFAULT -1",
            "ALTER TABLE messages ADD COLUMN arrival bigint NOT NULL DEFAULT 0",
            "CREATE SEQUENCE arrivals",
            """ALTER TABLE lanes ADD COLUMN shard smallint NOT NULL DEFAULT -1,
                ADD COLUMN host_class smallint NOT NULL DEFAULT 0, ADD COLUMN wake_at bigint NOT NULL DEFAULT 0,
                ALTER COLUMN spell SET DEFAULT 0, ALTER COLUMN changed_at SET DEFAULT 0""",
            """CREATE TABLE members (
                number bigint PRIMARY KEY,
                name text NOT NULL,
                delivers boolean NOT NULL,
                version text NOT NULL,
                tables integer NOT NULL,
                started_at timestamptz NOT NULL,
                lease_until timestamptz NOT NULL,
                renewals bigint NOT NULL
            )""",
            "CREATE TABLE fences (number bigint PRIMARY KEY, writes bigint NOT NULL)",
            "CREATE TABLE shards (shard smallint PRIMARY KEY, owner bigint, epoch bigint NOT NULL, reviewed_by bytea)",
            """CREATE TABLE requests (
                id bytea PRIMARY KEY,
                asked_by bigint NOT NULL,
                owner bigint NOT NULL,
                asked_at timestamptz NOT NULL,
                request bytea NOT NULL,
                answer bytea
            )""",
        ),
        apart=(
            ("messages_arrived", "messages (shard, arrival) WHERE standing = 0"),
            ("messages_queued", "messages (lane, born, id) WHERE standing = 1"),
            ("messages_retries", "messages (lane, due, id) WHERE standing = 2"),
            ("messages_retry_ages", "messages (lane, born, id) WHERE standing = 2"),
            ("lanes_wake", "lanes (wake_at, lane) WHERE wake_at > 0"),
        ),
        if_possible=tuple(f"ALTER TABLE {table} SET (fillfactor = 50)" for table in ("members", "fences", "shards")),
    ),
    Step(
        3,
        (
            "ALTER TABLE messages DROP COLUMN owner",
            "ALTER TABLE lanes DROP COLUMN spell, DROP COLUMN changed_at",
            "DROP TABLE hosts, wakes, replicas",
            "DROP SEQUENCE replica_numbers",
            "DELETE FROM meta WHERE name = 'rules'",
        ),
        contracts=True,
        at_start=True,
        locks="replicas, messages, lanes",
        convert=convert_claims,
    ),
)


VERSION = max(step.version for step in STEPS)


def shown(url: str) -> str:
    """A database's URL without user, password and parameters, for logs and operators."""
    return re.sub(r"^(postgres(?:ql)?://)(?:[^@/]*@)?([^?]*).*$", r"\1\2", url)
