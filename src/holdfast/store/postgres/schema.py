"""The tables, their versions, and how one becomes the next.

    table      holds
    -----      -----
    messages   all that is not delivered. `arrival` counts up in the order of commits, for those that just arrived
    attempts   failed attempts; answers apart, since they are kept for the first and the last two alone
    delivered  small records, kept for `retention.delivered`
    keys       idempotency
    lanes      a circuit each: its record, and of it what is searched for, with the moment when it needs attention
    counters   what waits, is dead and is held, a row for each lane and writer; see counting
    members    the replicas that are alive; fences and shards: see ownership
    requests   what operators ask of another replica; see requests
    meta       single values: the moment that the fleet began, the version that the tables are tuned for
    versions   the steps below that were made

A message's `standing` is the number of core's Standing: 0 active, 1 waiting, 2 retry, 3 dead; `due` of a dead one is
when it died. An active one has just arrived, or is in the memory of its shard's owner. Ids are 16 bytes that only ever
grow.

Steps are of two kinds. An `expand` step only adds, so that replicas of the version before go on beside it: every start
makes those that are missing. A `contract` step removes what only older versions use, when the last of them is gone:
`holdfast migrate` makes it, and every start makes one that delivery can't begin without. Statements `apart` may take
long: they run outside of the step's transaction, without a time-out, and again if they were interrupted. What an
engine may lack stands in statements that may fail; those that were not reached are made up for at the next start.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psycopg
from psycopg import errors

from holdfast.core.errors import StoreAway, StoreUnusable
from holdfast.store.postgres import claims

SCHEMA = "holdfast"
STATEMENT_TIMEOUT = "30s"
LOCK_TIMEOUT = "10s"
LOCKED_WITHIN = "1500ms"
"""For a table that a step changes: while that waits for those who use it, everyone else waits behind it. The server
ends its own vacuuming for whoever waits a second.
"""
TRIES = 5
"""Of a step whose tables others use, a second apart."""
PATIENCE = 100
"""Tenths of a second that a start waits for another one that makes steps."""

_LOCK = 0x686F6C64
"""The advisory lock of whoever makes steps."""
_TUNED = "tuned"
"""The name in META of the last version whose indexes and settings were all made."""


@dataclass(frozen=True, slots=True)
class Step:
    version: int
    statements: tuple[str, ...]
    apart: tuple[tuple[str, str], ...] = ()
    """Indexes by name, and what each one is on."""
    if_possible: tuple[str, ...] = ()
    contracts: bool = False
    at_start: bool = False
    """Whether a start makes a step that contracts."""
    locks: str = ""
    """The tables that older replicas write: nobody does while the step is made."""
    convert: Callable[[psycopg.Connection], None] | None = None
    """What statements can't say. All of it comes before the step's transaction, and what is left comes within."""


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
        convert=claims.end,
    ),
)


VERSION = max(step.version for step in STEPS)


def bring_up_to_date(
    connection: psycopg.Connection, steps: Sequence[Step] = STEPS, *, contract: bool = False, patient: bool = True
) -> tuple[int, int]:
    """Make the steps that are missing, on a connection outside of a transaction; the version before and after. Raises
    StoreUnusable if the tables are past what these steps know, or if someone alive would be past them; StoreAway if
    another one is making steps, or uses the tables, for longer than this one waits: not at all unless it is `patient`.

    A step that contracts is made by a start, if it is one of those, once no older replica is alive.
    """
    made = _made(connection)
    before, known = version(connection), max(step.version for step in steps)
    needed = max(made.values(), default=0)
    if needed > known:
        raise StoreUnusable(f"the tables need version {needed}, and this holdfast knows {known}: use a newer one")
    if not _missing(connection, steps, contract) and not _untuned(connection, steps):
        return before, before
    refusal = ""
    with _alone(connection, patient):
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        connection.execute("CREATE TABLE IF NOT EXISTS versions (version integer PRIMARY KEY, needs integer NOT NULL)")
        for step in _missing(connection, steps, contract):
            older = ", ".join(_make(connection, step, patient))
            if older and contract:
                refusal = f"step {step.version} removes what older replicas use, and these are alive: {older}"
        _tune(connection, _untuned(connection, steps))
    if refusal:
        raise StoreUnusable(refusal)
    return before, version(connection)


def version(connection: psycopg.Connection) -> int:
    """Of the last step that was made."""
    return max(_made(connection), default=0)


def catch_up(connection: psycopg.Connection) -> bool:
    """Make what can be made by now, without waiting for others. Returns whether delivery may begin."""
    with suppress(StoreAway):
        bring_up_to_date(connection, patient=False)
    return _made(connection).keys() >= {step.version for step in STEPS if step.at_start}


def has_tables(connection: psycopg.Connection) -> bool:
    return bool(_made(connection))


@contextmanager
def _alone(connection: psycopg.Connection, patient: bool) -> Iterator[None]:
    """One at a time makes steps, without time-outs. Whoever waits for that does so between statements: who makes an
    index waits for every statement that runs.
    """
    tries = PATIENCE if patient else 1
    while connection.execute("SELECT pg_try_advisory_lock(%s)", (_LOCK,)).fetchone() != (True,):
        tries -= 1
        if not tries:
            raise StoreAway("another holdfast is just changing the tables")
        connection.execute("SELECT pg_sleep(0.1)")
    try:
        connection.execute("SET statement_timeout TO 0")
        connection.execute("SET lock_timeout TO 0")
        yield
    finally:
        if not connection.closed:
            connection.execute(f"SET statement_timeout TO '{STATEMENT_TIMEOUT}'")
            connection.execute(f"SET lock_timeout TO '{LOCK_TIMEOUT}'")
            connection.execute("SELECT pg_advisory_unlock(%s)", (_LOCK,))


def _missing(connection: psycopg.Connection, steps: Sequence[Step], contract: bool) -> list[Step]:
    """The steps that are to be made now."""
    made = _made(connection)
    return [
        step
        for step in steps
        if step.version not in made
        and (not step.contracts or contract or (step.at_start and not _older(connection, step.version)))
    ]


def _make(connection: psycopg.Connection, step: Step, patient: bool) -> list[str]:
    """One step. What takes long comes before its transaction; what others did since is made up for in it. Returns the
    older replicas that it has to wait for: nothing is taken away from under one that is alive.
    """
    if step.contracts and (older := _older(connection, step.version)):
        return older
    if step.convert is not None:
        step.convert(connection)
    for again in reversed(range(TRIES if patient else 1)):
        try:
            with connection.transaction():
                return _make_at_once(connection, step)
        except errors.LockNotAvailable:
            if again:
                connection.execute("SELECT pg_sleep(1)")
    raise StoreAway(f"step {step.version} of the tables waits for others to let go of them")


def _make_at_once(connection: psycopg.Connection, step: Step) -> list[str]:
    connection.execute(f"SET LOCAL lock_timeout TO '{LOCKED_WITHIN}'")
    if step.locks:
        connection.execute(f"LOCK TABLE {step.locks} IN ACCESS EXCLUSIVE MODE")
    if step.contracts and (older := _older(connection, step.version)):
        return older
    if step.convert is not None:
        step.convert(connection)
    for statement in step.statements:
        connection.execute(statement)
    needs = step.version if step.contracts else 0
    connection.execute("INSERT INTO versions (version, needs) VALUES (%s, %s)", (step.version, needs))
    return []


def _older(connection: psycopg.Connection, version: int) -> list[str]:
    """Replicas that are alive and know less than this version. Those of version 1 have a table of their own."""
    alive: list[tuple[str, str]] = []
    for table, lease_ends in (("replicas", "to_timestamp(lease_until / 1000.0)"), ("members", "lease_until")):
        if not _is_there(connection, table):
            continue
        with suppress(errors.UndefinedTable):  # Another one has just removed it.
            alive += connection.execute(
                f"""SELECT name, version FROM {SCHEMA}.{table}
                WHERE tables < %s AND {lease_ends} >= clock_timestamp() ORDER BY number""",
                (version,),
            ).fetchall()
    return [f"{name} ({running})" for name, running in alive]


def _untuned(connection: psycopg.Connection, steps: Sequence[Step]) -> list[Step]:
    """The steps that were made and whose indexes and settings were not all reached."""
    made = _made(connection)
    if not made:
        return []
    stored = connection.execute("SELECT value FROM meta WHERE name = %s", (_TUNED,)).fetchone()
    tuned = int.from_bytes(stored[0], "big") if stored else 0
    return [step for step in steps if step.version in made and step.version > tuned]


def _tune(connection: psycopg.Connection, steps: Sequence[Step]) -> None:
    """What can be repeated. Each by itself: an engine that lacks one need not lack the next."""
    for name, on in (index for step in steps for index in step.apart):
        _make_index(connection, name, on)
    connection.execute(f"SET lock_timeout TO '{LOCKED_WITHIN}'")
    try:
        for statement in (statement for step in steps for statement in step.if_possible):
            with suppress(errors.FeatureNotSupported, errors.SyntaxError, errors.InvalidParameterValue):
                connection.execute(statement)
    except errors.LockNotAvailable:
        return  # The next start makes up for it.
    if steps:
        connection.execute(
            "INSERT INTO meta (name, value) VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (_TUNED, steps[-1].version.to_bytes(4, "big")),
        )


def _make_index(connection: psycopg.Connection, name: str, on: str) -> None:
    """One whose making was interrupted is there and of no use. Nobody who writes is held up."""
    found = connection.execute(
        "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", (f"{SCHEMA}.{name}",)
    ).fetchone()
    if found == (False,):
        connection.execute(f"DROP INDEX CONCURRENTLY {name}")
    if found != (True,):
        connection.execute(f"CREATE INDEX CONCURRENTLY {name} ON {on}")


def _is_there(connection: psycopg.Connection, table: str) -> bool:
    return connection.execute("SELECT to_regclass(%s)", (f"{SCHEMA}.{table}",)).fetchone() != (None,)


def _made(connection: psycopg.Connection) -> dict[int, int]:
    """The steps that were made, and the version that each one needs of whoever uses the tables."""
    if not _is_there(connection, "versions"):
        return {}
    return dict(connection.execute(f"SELECT version, needs FROM {SCHEMA}.versions").fetchall())


def shown(url: str) -> str:
    """The address of a database as it may be shown: without user, password and parameters."""
    return re.sub(r"^(postgres(?:ql)?://)(?:[^@/]*@)?([^?]*).*$", r"\1\2", url)
