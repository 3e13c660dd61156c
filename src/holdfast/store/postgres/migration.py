"""Makes the steps of the schema that a database lacks, at a start and by `holdfast migrate`.

A gateway also starts while its database is unreachable. A refused password, a missing database and tables of a newer
version end the start with StoreUnusable: waiting would not help.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psycopg
from psycopg import errors

from holdfast.core.errors import StoreUnreachable, StoreUnusable
from holdfast.store.postgres.ownership_tables import fleet_time
from holdfast.store.postgres.schema import LOCK_TIMEOUT, SCHEMA, STATEMENT_TIMEOUT, STEPS, Step
from holdfast.store.postgres.transactions import connected

LOCKED_WITHIN = "1500ms"
"""The lock time-out for a table that a step changes: while it waits, everyone else waits behind it. The server cancels
its own autovacuum after a second.
"""
TRIES = 5
"""Attempts at a step whose tables others use, a second apart."""
PATIENCE = 100
"""Tenths of a second that a start waits for another process that makes steps."""
_LOCK = 0x686F6C64
"""The advisory lock of the process that makes steps."""
_TUNED = "tuned"
"""The name in `meta` of the last version whose indexes and settings are complete."""


def prepare_database(url: str) -> int:
    """Makes missing tables. Returns the fleet's time. Raises StoreUnusable, or StoreUnreachable if that may pass."""
    with connected(url) as connection:
        bring_up_to_date(connection)
        return fleet_time(connection)


def migrate(url: str) -> tuple[int, int]:
    """Makes all missing steps, contracting ones too. Returns the version before and after. Raises as above."""
    with connected(url) as connection:
        return bring_up_to_date(connection, contract=True)


def bring_up_to_date(
    connection: psycopg.Connection, steps: Sequence[Step] = STEPS, *, contract: bool = False, patient: bool = True
) -> tuple[int, int]:
    """Makes missing steps, on a connection outside of a transaction. Returns the version before and after.

    Raises StoreUnusable if the tables are newer than these steps, or if `contract` would break a living older replica.
    Raises StoreUnreachable if another process makes steps or uses the tables for too long. Unless it is `patient`, it
    does not wait at all.
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
    """The version of the last step that was made."""
    return max(_made(connection), default=0)


def catch_up(connection: psycopg.Connection) -> bool:
    """Makes the steps that can be made without waiting. Returns whether delivery may begin."""
    with suppress(StoreUnreachable):
        bring_up_to_date(connection, patient=False)
    return _made(connection).keys() >= {step.version for step in STEPS if step.at_start}


def has_tables(connection: psycopg.Connection) -> bool:
    return bool(_made(connection))


@contextmanager
def _alone(connection: psycopg.Connection, patient: bool) -> Iterator[None]:
    """One process at a time makes steps, without time-outs. Others wait between statements, not in one: making an index
    waits for every running statement.
    """
    tries = PATIENCE if patient else 1
    while connection.execute("SELECT pg_try_advisory_lock(%s)", (_LOCK,)).fetchone() != (True,):
        tries -= 1
        if not tries:
            raise StoreUnreachable("another holdfast is just changing the tables")
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
    """The steps to be made now. A start makes a contracting one only if it has to, and no older replica is alive."""
    made = _made(connection)
    return [
        step
        for step in steps
        if step.version not in made
        and (not step.contracts or contract or (step.at_start and not _older(connection, step.version)))
    ]


def _make(connection: psycopg.Connection, step: Step, patient: bool) -> list[str]:
    """Makes one step. Rows are converted before its transaction, and again within it. Returns the living older replicas
    that a contracting step has to wait for.
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
    raise StoreUnreachable(f"step {step.version} of the tables waits for others to let go of them")


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
    """Living replicas of older versions. Those of version 1 have a table of their own."""
    alive: list[tuple[str, str]] = []
    for table, lease_ends in (("replicas", "to_timestamp(lease_until / 1000.0)"), ("members", "lease_until")):
        if not _is_there(connection, table):
            continue
        with suppress(errors.UndefinedTable):  # Another process has just removed it.
            alive += connection.execute(
                f"""SELECT name, version FROM {SCHEMA}.{table}
                WHERE tables < %s AND {lease_ends} >= clock_timestamp() ORDER BY number""",
                (version,),
            ).fetchall()
    return [f"{name} ({running})" for name, running in alive]


def _untuned(connection: psycopg.Connection, steps: Sequence[Step]) -> list[Step]:
    """The steps that were made, but whose indexes and settings are not complete."""
    made = _made(connection)
    if not made:
        return []
    stored = connection.execute("SELECT value FROM meta WHERE name = %s", (_TUNED,)).fetchone()
    tuned = int.from_bytes(stored[0], "big") if stored else 0
    return [step for step in steps if step.version in made and step.version > tuned]


def _tune(connection: psycopg.Connection, steps: Sequence[Step]) -> None:
    """Makes indexes and settings, which can be repeated. Each by itself: an engine may lack some of them."""
    for name, on in (index for step in steps for index in step.apart):
        _make_index(connection, name, on)
    connection.execute(f"SET lock_timeout TO '{LOCKED_WITHIN}'")
    try:
        for statement in (statement for step in steps for statement in step.if_possible):
            with suppress(errors.FeatureNotSupported, errors.SyntaxError, errors.InvalidParameterValue):
                connection.execute(statement)
    except errors.LockNotAvailable:
        return  # The next start tries again.
    if steps:
        connection.execute(
            "INSERT INTO meta (name, value) VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (_TUNED, steps[-1].version.to_bytes(4, "big")),
        )


def _make_index(connection: psycopg.Connection, name: str, on: str) -> None:
    """Makes an index without blocking writers. An interrupted attempt leaves an invalid one, which is dropped."""
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
    """The steps that were made, and the version that each needs of all who use the tables."""
    if not _is_there(connection, "versions"):
        return {}
    return dict(connection.execute(f"SELECT version, needs FROM {SCHEMA}.versions").fetchall())
