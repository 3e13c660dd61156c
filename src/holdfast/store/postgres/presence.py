"""Leases, and what replicas tell one another.

Each replica has a row with a number that no other ever had, and renews it. A row whose lease is over goes, and what its
number has claimed is free; a replica that finds its row gone has lost everything in memory, and comes back under a new
number. Changed circuits and woken lanes are told by notification where the engine has that, and found by looking in any
case.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from psycopg import errors

from holdfast import __version__
from holdfast.core.errors import CorruptRecord
from holdfast.core.fleet import Crew, may_reap
from holdfast.core.message import MessageId
from holdfast.store.port import LaneRecord
from holdfast.store.postgres import counting, waking
from holdfast.store.postgres.claiming import read_lane
from holdfast.store.postgres.connection import Connection, beginning, commit_along
from holdfast.store.postgres.rows import RETRY, one
from holdfast.store.postgres.schema import VERSION
from holdfast.store.postgres.terms import Terms

LOOK_BACK = 5_000
"""Changes of circuits that are looked at again: one may be committed after a later one."""
FREED_AT_ONCE = 1_000
LONGEST_TRANSACTION = 65_000
"""Milliseconds after which one that was given up is over in any case, by the time-outs of its connection."""
STANDS_STILL = 3
"""Seconds without a word in the middle of a transaction."""
_RUN = "run"

_CUT_OFF = f"""WITH sessions AS (
        SELECT pid, split_part(application_name, ' ', 3) AS replica, wait_event = 'ClientRead' AND
            greatest(query_start, state_change) < clock_timestamp() - interval '{STANDS_STILL} seconds' AS stands_still
        FROM pg_stat_activity WHERE datname = current_database() AND usename = current_user AND xact_start IS NOT NULL
        AND application_name LIKE 'holdfast % %')
    SELECT pg_terminate_backend(pid) FROM sessions WHERE replica IN (SELECT replica FROM sessions WHERE stands_still)"""
_TIME = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"


@dataclass(frozen=True, slots=True)
class Member:
    """This replica, as it is registered. `run` is when the fleet began."""

    number: int
    run: int


@dataclass(frozen=True, slots=True)
class Beat:
    """What one renewal found. Without a `crew` this replica was taken for dead."""

    crew: Crew | None
    run: int = 0
    time: int = 0
    changed: list[LaneRecord] = field(default_factory=list)


def database_time(connection: Connection) -> int:
    time = int(one(connection.execute(_TIME).fetchone()))
    connection.rollback()
    return time


def register(connection: Connection, name: str, delivers: bool, now: int, lease: int) -> Member:
    """Come into the fleet. The first that delivers in it begins a new run: hosts start slowly."""
    connection.execute(
        "INSERT INTO meta (name, value) VALUES (%s, %s) ON CONFLICT (name) DO NOTHING", (_RUN, now.to_bytes(8, "big"))
    )
    stored = connection.execute("SELECT value FROM meta WHERE name = %s FOR UPDATE", (_RUN,)).fetchone()
    run = int.from_bytes(one(stored), "big")
    others = connection.execute("SELECT count(*) FROM replicas WHERE delivers AND lease_until >= %s", (now,)).fetchone()
    if delivers and not one(others):
        run = max(now, run + 1)
        connection.execute("UPDATE meta SET value = %s WHERE name = %s", (run.to_bytes(8, "big"), _RUN))
    number = int(one(connection.execute("SELECT nextval('replica_numbers')").fetchone()))
    connection.execute(
        """INSERT INTO replicas (number, name, delivers, version, tables, started_at, lease_until)
        VALUES (%s, %s, %s, %s, %s, %s, %s)""",
        (number, name, delivers, __version__, VERSION, now, now + lease),
    )
    connection.commit()
    return Member(number, run)


def renew(connection: Connection, terms: Terms, lease: int, since: int) -> Beat:
    """Renew the lease; see who else is alive, and which circuits changed after a moment."""
    with beginning(connection):
        renewed = connection.execute(
            "UPDATE replicas SET lease_until = %s WHERE number = %s RETURNING delivers",
            (terms.now + lease, terms.number),
        )
        alive = connection.execute(
            "SELECT number FROM replicas WHERE delivers AND lease_until >= %s ORDER BY number", (terms.now,)
        )
        run = connection.execute("SELECT value FROM meta WHERE name = %s", (_RUN,))
        time = connection.execute(_TIME)
        changed = connection.execute(
            """SELECT l.host, l.spell, l.record, h.most, h.streak, h.hold_until, h.run
            FROM lanes l LEFT JOIN hosts h ON h.host = l.host WHERE l.changed_at > %s ORDER BY l.changed_at""",
            (since - LOOK_BACK,),
        )
        commit_along(connection)
    mine = renewed.fetchone()
    numbers = [row[0] for row in alive.fetchall()]
    began = int.from_bytes(one(run.fetchone()), "big")
    now = int(one(time.fetchone()))
    found = changed.fetchall()
    if mine is None:
        return Beat(None)
    records = []
    for row in found:
        try:
            records.append(read_lane(row, terms))
        except CorruptRecord:
            continue  # Whoever surveys it tells of it.
    delivers = bool(mine[0])
    rank = numbers.index(terms.number) if delivers and terms.number in numbers else 0
    return Beat(Crew(rank, max(1, len(numbers))), began, now, records)


def cut_off(connection: Connection) -> None:
    """End the sessions of a replica that stands still in the middle of a transaction: all others wait for its locks.
    The server's own time-out for that does not see a session that pipelines.
    """
    with suppress(errors.UndefinedFunction, errors.UndefinedTable, errors.FeatureNotSupported):
        connection.execute(_CUT_OFF)
    connection.rollback()


def reap(connection: Connection, terms: Terms, connected_since: int) -> int:
    """Free what nobody alive has claimed. Returns how many messages that were, at most about `FREED_AT_ONCE`."""
    if may_reap(connected_since, terms.now):
        connection.execute(
            """DELETE FROM replicas WHERE number = ANY(ARRAY(
                SELECT number FROM replicas WHERE lease_until < %s FOR UPDATE SKIP LOCKED))""",
            (terms.now,),
        )
        connection.commit()
    return _free(connection, terms)


def leave(connection: Connection, terms: Terms) -> None:
    """Go out of the fleet: what is still claimed is free at once, and what was counted is put together."""
    connection.execute("DELETE FROM replicas WHERE number = %s", (terms.number,))
    while _free(connection, terms) >= FREED_AT_ONCE:
        pass
    counting.fold(connection)
    connection.commit()


def disown(connection: Connection, ids: list[MessageId], terms: Terms) -> None:
    """Free those of some messages that were inserted as this replica's own."""
    with _briefly(connection):
        freed = connection.execute(
            """UPDATE messages SET owner = NULL, standing = 1 WHERE id = ANY(%s) AND owner = %s AND standing = 0
            RETURNING lane, standing, due""",
            (ids, terms.number),
        )
        _wake(connection, freed.fetchall(), terms)


def _free(connection: Connection, terms: Terms) -> int:
    with _briefly(connection):
        freed = connection.execute(
            """UPDATE messages SET owner = NULL, standing = greatest(standing, 1) WHERE id = ANY(ARRAY(
                SELECT id FROM messages WHERE owner IS NOT NULL AND owner NOT IN (SELECT number FROM replicas)
                LIMIT %s FOR UPDATE SKIP LOCKED)) RETURNING lane, standing, due""",
            (FREED_AT_ONCE,),
        ).fetchall()
        _wake(connection, freed, terms)
        return len(freed)
    return 0


@contextmanager
def _briefly(connection: Connection) -> Iterator[None]:
    """What others hold up is undone, for a later beat: the lease has to be renewed meanwhile."""
    connection.execute("SET LOCAL lock_timeout TO '1s'")
    try:
        yield
    except errors.LockNotAvailable:
        connection.rollback()


def _wake(connection: Connection, freed: Sequence[Any], terms: Terms) -> None:
    moments: dict[str, int] = {}
    for lane, standing, due in freed:
        moment = due if standing == RETRY else terms.now
        moments[lane] = min(moment, moments.get(lane, moment))
    waking.lower(connection, moments, terms)
    connection.commit()


def tidy(connection: Connection) -> None:
    """Put together what replicas that are gone have counted."""
    counting.fold(connection)
    connection.commit()


def can_listen(connection: Connection) -> bool:
    """Whether the engine notifies; asked once a connection, which listens from then on if it does."""
    try:
        connection.execute(f"LISTEN {waking.CHANNEL}")
        connection.commit()
    except Exception:
        connection.rollback()
        return False
    return True


def heard(connection: Connection) -> list[str]:
    """The lanes that notifications have named so far."""
    return [notification.payload for notification in connection.notifies(timeout=0)]
