"""The tables, their versions, and how one becomes the next.

    table      holds
    -----      -----
    messages   all that is not delivered. `owner` is the number of the replica that has it in memory, NULL if none has
    attempts   failed attempts; answers apart, since they are kept for the first and the last two alone
    delivered  small records, kept for `retention.delivered`
    keys       idempotency
    lanes      a circuit each: its record, and of it what is searched for
    hosts      the limit of each host:port, for the whole fleet
    wakes      when each lane needs attention next; see waking
    counters   what waits, is dead and is held, a row for each lane and writer; see counting
    replicas   who is alive, until when; the number is what claims are fenced by
    meta       single values: the moment that the fleet began, the numbers that lanes were reviewed by
    versions   the steps below that were made

A message's `standing` is the number of core's Standing: 0 active, 1 waiting, 2 retry, 3 dead; `due` of a dead one is
when it died. Ids are 16 bytes that only ever grow.

Steps are of two kinds. An `expand` step only adds, so that replicas of the version before go on beside it: every start
makes those that are missing. A `contract` step removes what only older versions use: `holdfast migrate` alone makes
it, when the last of them is gone. What an engine may lack stands in statements of their own that may fail.
"""

import re
from dataclasses import dataclass

import psycopg

from holdfast.core.errors import StoreUnusable

SCHEMA = "holdfast"
VERSION = 1

_LOCK = 0x686F6C64
"""One at a time makes steps: the advisory lock of this number, where the engine has them."""


@dataclass(frozen=True, slots=True)
class Step:
    version: int
    statements: tuple[str, ...]
    if_possible: tuple[str, ...] = ()
    contracts: bool = False


def _often_vacuumed(table: str) -> str:
    """Rows come and go by the thousand: dead ones are cleared by their number, not by the size of the table."""
    return f"""ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000, autovacuum_vacuum_cost_delay = 0)"""


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
            *(f"ALTER TABLE {table} SET (fillfactor = 50)" for table in ("lanes", "hosts", "wakes", "counters")),
        ),
    ),
)


def bring_up_to_date(connection: psycopg.Connection, *, contract: bool = False) -> tuple[int, int]:
    """Make the steps that are missing, on a connection outside of a transaction; the version before and after. Raises
    StoreUnusable if the tables are of a later version that this one can't work with.
    """
    before = _version(connection)
    if before > VERSION:
        raise StoreUnusable(f"the tables are of version {before}, and this holdfast knows {VERSION}: use a newer one")
    missing = [step for step in STEPS if step.version > before and (contract or not step.contracts)]
    if not missing:
        return before, before
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        connection.execute(f"SET LOCAL search_path TO {SCHEMA}")
        connection.execute("CREATE TABLE IF NOT EXISTS versions (version integer PRIMARY KEY)")
        made = _made(connection)
        for step in missing:
            if step.version not in made:
                _make(connection, step)
    return before, _version(connection)


def _make(connection: psycopg.Connection, step: Step) -> None:
    for statement in step.statements:
        connection.execute(statement)
    for statement in step.if_possible:
        try:
            with connection.transaction():
                connection.execute(statement)
        except (psycopg.errors.FeatureNotSupported, psycopg.errors.SyntaxError, psycopg.errors.InvalidParameterValue):
            continue  # Another engine: it has no such storage to tune.
    connection.execute("INSERT INTO versions (version) VALUES (%s)", (step.version,))


def _version(connection: psycopg.Connection) -> int:
    """The last step that was made; 0 if none was."""
    found = connection.execute("SELECT to_regclass(%s)", (f"{SCHEMA}.versions",)).fetchone()
    if found is None or found[0] is None:
        return 0
    row = connection.execute(f"SELECT coalesce(max(version), 0) FROM {SCHEMA}.versions").fetchone()
    return int(row[0]) if row else 0


def _made(connection: psycopg.Connection) -> set[int]:
    return {row[0] for row in connection.execute("SELECT version FROM versions")}


def shown(url: str) -> str:
    """The address of a database as it may be shown: without user, password and parameters."""
    return re.sub(r"^(postgres(?:ql)?://)(?:[^@/]*@)?([^?]*).*$", r"\1\2", url)
