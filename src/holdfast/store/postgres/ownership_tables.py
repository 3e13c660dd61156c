"""Statements on the fleet: members, leases, the fence that every write of delivery passes, owners of shards, time.

    table     holds
    -----     -----
    members   each replica under a random number, with its lease
    fences    how many transactions of delivery each member has committed
    shards    the owner of each shard, and its epoch: how often the owner has changed

A replica renews its lease by raising `members.renewals` from the number that it wrote last. Each write of delivery
raises `fences.writes` in the same way. So a replica that was cloned, or whose database was restored from a dump, finds
a number that is not its own, and stops. Renewals go up by random steps: a replica that got no answer recognizes its own
renewal by the number, and a clone has another.

To take over a dead replica's shards, others remove its fence first. That waits for its last transaction, and no later
one passes. So a replica that is declared dead by mistake does no harm. Others judge it by its renewals and never by a
clock: `lease_until` is for a replica that joins, and for people.

The fleet's time is the database's clock plus a `shift`, which is 0 until that clock jumps. The owner of the first shard
then changes the shift, so that time goes on as before. If no member is left, the next one to join starts again: it
accepts a clock ahead of the last stored time, and goes on from that time if the clock is behind it.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, NamedTuple, Self

from psycopg import errors

from holdfast import __version__
from holdfast.core.errors import Fenced
from holdfast.core.ownership import SHARDS
from holdfast.store.port import Operation
from holdfast.store.postgres import shares
from holdfast.store.postgres.rows import Terms, one
from holdfast.store.postgres.schema import VERSION
from holdfast.store.postgres.statements import Statement
from holdfast.store.postgres.transactions import Connection

MEMBER = "SELECT number FROM members WHERE number = {} FOR SHARE"
"""A replica's number, if it is a member. It stays one until this transaction ends."""
STANDS_STILL = 3
"""Seconds of silence in the middle of a transaction after which a replica's sessions are ended."""
BEAT_WITHIN = 3.0
"""Seconds in which the database has to answer a beat: two tries fit into a lease."""
CHANNEL = "holdfast_{:016x}"
"""The channel on which a replica is notified, by its number."""
NOT_JOINED = "this replica has not joined the fleet yet"
MOVED = "moved"
"""The payload for the new owner of shards."""
_RUN, _CLOCK = "run", "clock"

_TIME = Struct(">qq")
_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_LEASE_ENDS = "clock_timestamp() + %s * interval '1 millisecond'"
# Two rows by primary key, and one for each shard.
FENCE = """passed AS (
        UPDATE fences SET writes = writes + 1
        WHERE number = %(number)s::bigint AND writes = %(writes)s::bigint RETURNING 1
    ), owned AS (
        SELECT count(*) AS count FROM unnest(%(shards)s::smallint[], %(epochs)s::bigint[]) AS v(shard, epoch)
        JOIN shards s ON s.shard = v.shard AND s.epoch = v.epoch AND s.owner = %(number)s::bigint
    )"""
PASSED = """SELECT 1 / (SELECT count(*) FROM passed) / (count = cardinality(%(shards)s::smallint[]))::integer
    FROM owned"""
"""Divides by zero if the fence refuses. So the next statement need not wait for the answer."""
RENEW = Statement(f"""WITH renewed AS (
        UPDATE members SET lease_until = clock_timestamp() + %(lease)s::bigint * interval '1 millisecond',
            renewals = %(renewing)s::bigint, delivers = %(delivers)s::bigint > 0
        WHERE number = %(number)s::bigint AND renewals IN (%(renewals)s::bigint, %(renewing)s::bigint)
        RETURNING number
    )
    SELECT 'renewed'::bytea, ({_NOW}), (SELECT count(*) FROM messages WHERE standing = 0 AND shard = ANY(ARRAY(
            SELECT shard FROM shards WHERE owner = %(number)s::bigint))),
        (SELECT count(*) FROM requests WHERE (owner = %(number)s::bigint AND answer IS NULL)
            OR (asked_by = %(number)s::bigint AND answer IS NOT NULL)), NULL::bytea FROM renewed
    UNION ALL SELECT 'member', number, renewals, delivers::integer, NULL FROM members
    UNION ALL SELECT name::bytea, NULL, NULL, NULL, value FROM meta WHERE name = ANY(%(meta)s::text[])
    UNION ALL SELECT 'shard', shard, owner, epoch, NULL FROM shards
        WHERE (SELECT sum(epoch) FROM shards) <> %(epochs)s::bigint""")
"""One beat: renews the lease, unless another process acts under this number. Reads all members, the stored time, and
how many messages and requests wait for this replica, by the index on (shard, arrival). Reads the 256 shards only if
the sum of their epochs has changed.
"""
_STORED_CLOCK = "SELECT value FROM meta WHERE name = %s"
_INSERT_META = "INSERT INTO meta (name, value) VALUES (%s, %s) ON CONFLICT DO NOTHING"
_LOCK_META = "SELECT name, value FROM meta WHERE name = ANY(%s) ORDER BY name FOR UPDATE"
_SET_META = "UPDATE meta SET value = %s WHERE name = %s"
_LIVING_MEMBERS = "SELECT delivers FROM members WHERE lease_until > clock_timestamp()"
_INSERT_MEMBER = f"""INSERT INTO members (number, name, delivers, version, tables, started_at, lease_until, renewals)
    VALUES (%s, %s, %s, %s, %s, clock_timestamp(), {_LEASE_ENDS}, 0)"""
_INSERT_FENCE = "INSERT INTO fences (number, writes) VALUES (%s, 0)"
_INSERT_SHARDS = "INSERT INTO shards (shard, epoch) SELECT v, 0 FROM generate_series(0, %s) AS v ON CONFLICT DO NOTHING"
_WRITES = "SELECT writes FROM fences WHERE number = %s"
# Members that have not renewed since. One that renews right now is skipped.
_LOCK_DEAD = """SELECT number FROM members JOIN unnest(%s::bigint[], %s::bigint[]) AS v(number, renewals)
    USING (number, renewals) FOR UPDATE OF members SKIP LOCKED"""
_REMOVE = (
    "DELETE FROM fences WHERE number = ANY(%s::bigint[])",
    "UPDATE shards SET owner = NULL, epoch = epoch + 1 WHERE owner = ANY(%s::bigint[])",
    "DELETE FROM members WHERE number = ANY(%s::bigint[])",
)
_TAKE_FREE = f"""UPDATE shards SET owner = v.number, epoch = epoch + 1 FROM ({MEMBER.format("%s")}) AS v
    WHERE shard = ANY(%s::smallint[]) AND owner IS NULL RETURNING shard, epoch"""
# Sessions of a replica that is silent in the middle of a transaction. Reads pg_stat_activity.
_CUT_OFF = f"""WITH sessions AS (
        SELECT pid, split_part(application_name, ' ', 3) AS replica, wait_event = 'ClientRead' AND
            greatest(query_start, state_change) < clock_timestamp() - interval '{STANDS_STILL} seconds' AS stands_still
        FROM pg_stat_activity WHERE datname = current_database() AND usename = current_user AND xact_start IS NOT NULL
        AND application_name LIKE 'holdfast % %')
    SELECT pg_terminate_backend(pid) FROM sessions WHERE replica IN (SELECT replica FROM sessions WHERE stands_still)"""


_RELEASE = f"""UPDATE shards s SET epoch = epoch + 1, owner = ({MEMBER.format("v.number")})
    FROM unnest(%s::smallint[], %s::bigint[]) AS v(shard, number) WHERE s.shard = v.shard"""


class Owned(NamedTuple):
    """The owner of a shard, if it has one, and its epoch."""

    owner: int | None
    epoch: int


@dataclass(slots=True)
class Release(Operation):
    """Shards, given with their epochs, go to other members, or to nobody if that member is gone by now."""

    shards: Mapping[int, int]
    to: Mapping[int, int]


@dataclass(slots=True)
class Membership:
    """This replica's registration: the numbers that it wrote last. `run` is when the fleet began to deliver, `renewing`
    the number of a renewal that was not answered yet.
    """

    number: int
    run: int
    renewals: int = 0
    renewing: int | None = None
    writes: int = 0
    shards: Mapping[int, Owned] = field(default_factory=dict)
    """As last read."""

    @property
    def epochs(self) -> int:
        return sum(each.epoch for each in self.shards.values()) if self.shards else -1


class SharedTime(NamedTuple):
    """The fleet's time as stored: the shift of the database's clock, and the last known time."""

    shift: int = 0
    last: int = 0

    @classmethod
    def decode(cls, value: bytes) -> Self:
        return cls(*_TIME.unpack(value))

    def encode(self) -> bytes:
        return _TIME.pack(*self)


NOT_SHIFTED = SharedTime()


@dataclass(frozen=True, slots=True)
class Renewal:
    """The result of a renewal. `is_lost`: this replica was declared dead, or another process acts under its number."""

    is_lost: bool
    time: int = 0
    clock: SharedTime = NOT_SHIFTED
    run: int = 0
    renewals: Mapping[int, int] = field(default_factory=dict)
    """Of each member, the number of its last renewal."""
    delivering: frozenset[int] = frozenset()
    shards: Mapping[int, Owned] = field(default_factory=dict)
    arrived: int = 0
    """Messages that have arrived in this replica's shards and are in no queue."""
    requests: int = 0
    """Requests that wait for this replica, and answers to its own."""


def fleet_time(connection: Connection) -> int:
    now = int(one(connection.execute(_NOW).fetchone()))
    stored = connection.execute(_STORED_CLOCK, (_CLOCK,)).fetchone()
    connection.commit()
    return now if stored is None else now + SharedTime.decode(stored[0]).shift


def join(connection: Connection, number: int, name: str, delivers: bool, lease: int) -> tuple[Membership, int]:
    """Joins the fleet. Returns its time too. The first member that delivers begins a new run: hosts start slowly."""
    for key, value in ((_RUN, bytes(8)), (_CLOCK, NOT_SHIFTED.encode())):
        connection.execute(_INSERT_META, (key, value))
    stored = dict(connection.execute(_LOCK_META, ([_RUN, _CLOCK],)).fetchall())
    run, clock = int.from_bytes(stored[_RUN], "big"), SharedTime.decode(stored[_CLOCK])
    delivering = [each for (each,) in connection.execute(_LIVING_MEMBERS)]
    now = int(one(connection.execute(_NOW).fetchone()))
    if not delivering:
        clock = clock._replace(shift=max(0, clock.last + 1 - now))
        connection.execute(_SET_META, (clock.encode(), _CLOCK))
    now += clock.shift
    if delivers and not any(delivering):
        run = max(now, run + 1)
        connection.execute(_SET_META, (run.to_bytes(8, "big"), _RUN))
    connection.execute(_INSERT_MEMBER, (number, name, delivers, __version__, VERSION, lease))
    connection.execute(_INSERT_FENCE, (number,))
    connection.execute(_INSERT_SHARDS, (SHARDS - 1,))
    connection.commit()
    return Membership(number, run), now


def renewing(membership: Membership, delivers: bool, lease: int, step: int) -> dict[str, Any]:
    """The values of RENEW. The renewal's number is `step` higher, unless the last one was not answered."""
    membership.renewing = membership.renewing or membership.renewals + step
    return {
        "number": membership.number,
        "renewals": membership.renewals,
        "renewing": membership.renewing,
        "delivers": int(delivers),
        "lease": lease,
        "epochs": membership.epochs,
        "meta": [_RUN, _CLOCK],
    }


def renewed(membership: Membership, delivers: bool, rows: Sequence[Any]) -> Renewal:
    """The result of RENEW. The statement reads this replica's row as it was before."""
    found: dict[str, list[Any]] = {kind: [] for kind in ("renewed", "member", "shard", _RUN, _CLOCK)}
    for kind, *values in rows:
        found[kind.decode()].append(values)
    if not found["renewed"]:
        return Renewal(is_lost=True)
    assert membership.renewing is not None
    membership.renewals, membership.renewing = membership.renewing, None
    if found["shard"]:
        membership.shards = {shard: Owned(owner, epoch) for shard, owner, epoch, _ in found["shard"]}
    renewals = {number: renewals for number, renewals, *_ in found["member"]}
    delivering = {number for number, _, is_delivering, _ in found["member"] if is_delivering}
    [[time, arrived, requests, _]], clock = found["renewed"], SharedTime.decode(found[_CLOCK][0][-1])
    return Renewal(
        False,
        time + clock.shift,
        clock,
        int.from_bytes(found[_RUN][0][-1], "big"),
        {**renewals, membership.number: membership.renewals},
        frozenset(delivering | {membership.number} if delivers else delivering - {membership.number}),
        membership.shards,
        arrived,
        requests,
    )


def keep_time(connection: Connection, before: SharedTime, after: SharedTime) -> None:
    """Stores the fleet's time, unless another replica has just done so."""
    connection.execute(f"{_SET_META} AND value = %s", (after.encode(), _CLOCK, before.encode()))
    connection.commit()


def pass_fence(connection: Connection, membership: Membership, shards: Mapping[int, int]) -> None:
    """The first statement of each write of delivery. It fails unless this replica still owns these shards, given with
    their epochs. The caller raises `membership.writes` after the commit.
    """
    connection.execute(f"WITH {FENCE} {PASSED}", fence_values(membership, shards))


def fence_values(membership: Membership, shards: Mapping[int, int]) -> dict[str, Any]:
    return {
        "number": membership.number,
        "writes": membership.writes,
        "shards": list(shards),
        "epochs": list(shards.values()),
    }


def was_committed(connection: Connection, membership: Membership) -> bool:
    """Whether a transaction that was not answered was committed. Raises Fenced if others have written meanwhile."""
    found = connection.execute(_WRITES, (membership.number,)).fetchone()
    connection.commit()
    if found is None or found[0] - membership.writes not in (0, 1):
        raise Fenced
    return bool(found[0] > membership.writes)


def bury(connection: Connection, renewals: Mapping[int, int]) -> None:
    """Removes dead members, given with their last renewals, and takes their shards from them."""
    connection.execute("SET LOCAL lock_timeout TO '1s'")
    try:
        dead = connection.execute(_LOCK_DEAD, (list(renewals), list(renewals.values()))).fetchall()
        _remove(connection, [number for (number,) in dead])
        connection.commit()
    except errors.LockNotAvailable:
        connection.rollback()  # This replica has to renew its own lease. The next beat tries again.


def leave(connection: Connection, membership: Membership) -> None:
    """Leaves the fleet: others take the shards at once."""
    _remove(connection, [membership.number])
    shares.fold(connection)
    connection.commit()


def _remove(connection: Connection, numbers: list[int]) -> None:
    if not numbers:
        return
    for statement in _REMOVE:
        connection.execute(statement, (numbers,))


def take_free(connection: Connection, number: int, shards: Iterable[int]) -> dict[int, int]:
    """Takes the shards that have no owner. Returns them with their epochs. A replica that was declared dead meanwhile
    gets none: nobody would take them from its number again.
    """
    taken = connection.execute(_TAKE_FREE, (number, list(shards))).fetchall()
    connection.commit()
    return dict(taken)


def release(connection: Connection, operation: Release, terms: Terms) -> None:
    """Carries out Release."""
    connection.execute(_RELEASE, (list(operation.to), list(operation.to.values())))
    channels = [CHANNEL.format(number) for number in set(operation.to.values())]
    connection.execute("SELECT pg_notify(c, %s) FROM unnest(%s::text[]) AS v(c)", (MOVED, channels))


def cut_off(connection: Connection) -> None:
    """Ends the sessions of a replica that is stopped in the middle of a transaction: others wait for its locks. The
    server's own time-out does not see a session that pipelines.
    """
    with suppress(errors.UndefinedFunction, errors.UndefinedTable, errors.FeatureNotSupported):
        connection.execute(_CUT_OFF)
        connection.commit()


def can_listen(connection: Connection, number: int, stays: bool) -> bool:
    """Whether the engine notifies. Called once a connection, which listens from then on if it `stays`."""
    try:
        connection.execute(f"LISTEN {CHANNEL.format(number)}")
        if not stays:
            connection.execute("UNLISTEN *")
        connection.commit()
    except Exception:
        connection.rollback()
        return False
    return True
