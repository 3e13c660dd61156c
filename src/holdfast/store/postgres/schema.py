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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import psycopg
from psycopg import errors

from holdfast.core.errors import StoreUnusable

SCHEMA = "holdfast"

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
            *(f"ALTER TABLE {table} SET (fillfactor = 50)" for table in ("lanes", "hosts", "wakes", "counters")),
        ),
    ),
)


VERSION = max(step.version for step in STEPS)


def bring_up_to_date(
    connection: psycopg.Connection, steps: Sequence[Step] = STEPS, *, contract: bool = False
) -> tuple[int, int]:
    """Make the steps that are missing, on a connection outside of a transaction; the version before and after. Raises
    StoreUnusable if the tables are past what these steps know, or if someone alive would be past them.
    """
    made = _made(connection)
    before, known = max(made, default=0), max(step.version for step in steps)
    needed = max(made.values(), default=0)
    if needed > known:
        raise StoreUnusable(f"the tables need version {needed}, and this holdfast knows {known}: use a newer one")
    missing = [step for step in steps if step.version not in made and (contract or not step.contracts)]
    if not missing:
        return before, before
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        connection.execute(f"SET LOCAL search_path TO {SCHEMA}")
        connection.execute("CREATE TABLE IF NOT EXISTS versions (version integer PRIMARY KEY, needs integer NOT NULL)")
        made = _made(connection)
        for step in missing:
            if step.version not in made:
                _make(connection, step)
    _tune(connection, missing)
    return before, max(_made(connection))


def has_tables(connection: psycopg.Connection) -> bool:
    return bool(_made(connection))


def _make(connection: psycopg.Connection, step: Step) -> None:
    if step.contracts:
        _refuse_if_older(connection, step.version)
    for statement in step.statements:
        connection.execute(statement)
    needs = step.version if step.contracts else 0
    connection.execute("INSERT INTO versions (version, needs) VALUES (%s, %s)", (step.version, needs))


def _refuse_if_older(connection: psycopg.Connection, version: int) -> None:
    """Nothing is taken away from under a replica that still uses it."""
    time = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    older = connection.execute(
        f"SELECT name, version FROM replicas WHERE tables < %s AND lease_until >= {time} ORDER BY number", (version,)
    ).fetchall()
    if older:
        names = ", ".join(f"{name} ({running})" for name, running in older)
        raise StoreUnusable(f"step {version} removes what older replicas use, and these are alive: {names}")


def _tune(connection: psycopg.Connection, steps: Sequence[Step]) -> None:
    """Each by itself: an engine that lacks one need not lack the next."""
    connection.execute(f"SET search_path TO {SCHEMA}")
    for step in steps:
        for statement in step.if_possible:
            with suppress(errors.FeatureNotSupported, errors.SyntaxError, errors.InvalidParameterValue):
                connection.execute(statement)


def _made(connection: psycopg.Connection) -> dict[int, int]:
    """The steps that were made, and the version that each one needs of whoever uses the tables."""
    found = connection.execute("SELECT to_regclass(%s)", (f"{SCHEMA}.versions",)).fetchone()
    if found is None or found[0] is None:
        return {}
    return dict(connection.execute(f"SELECT version, needs FROM {SCHEMA}.versions").fetchall())


def shown(url: str) -> str:
    """The address of a database as it may be shown: without user, password and parameters."""
    return re.sub(r"^(postgres(?:ql)?://)(?:[^@/]*@)?([^?]*).*$", r"\1\2", url)
