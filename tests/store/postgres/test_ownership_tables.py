"""Owners of shards, members, and the time that they share, as the tables have them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest

from holdfast.core.ownership import LEASE
from holdfast.store.postgres import migration, ownership_tables
from holdfast.store.postgres.migration import bring_up_to_date
from holdfast.store.postgres.ownership_tables import Membership, SharedTime
from holdfast.store.postgres.transactions import Connection, connect
from tests.store.fleets import rows
from tests.support.harness import until

NUMBER = 7
WAITS = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def joined(database: str) -> Iterator[Connection]:
    with connect(database, "test") as connection:
        connection.autocommit = True
        bring_up_to_date(connection)
        connection.autocommit = False
        ownership_tables.join(connection, NUMBER, "here:1", True, 6_000)
        yield connection


def owners(connection: Connection) -> set[int | None]:
    found = {owner for (owner,) in connection.execute("SELECT owner FROM shards")}
    connection.rollback()
    return found


def test_who_was_declared_dead_takes_no_shards(joined: Connection) -> None:
    """It stood still between the renewal that found them free and this."""
    ownership_tables.bury(joined, {NUMBER: 0})
    assert ownership_tables.take_free(joined, NUMBER, range(256)) == {}
    assert owners(joined) == {None}


def test_who_is_just_declared_dead_takes_no_shards(joined: Connection, database: str) -> None:
    with ThreadPoolExecutor(1) as pool, psycopg.connect(database, options="-c search_path=holdfast") as other:
        other.execute("DELETE FROM members")
        taken = pool.submit(ownership_tables.take_free, joined, NUMBER, range(256))
        until(lambda: other.execute(WAITS).fetchone())
        other.commit()
        assert taken.result() == {}
    assert owners(joined) == {None}


DAY = 86_400_000
SLACK = 100_000
"""Milliseconds that a test may take."""
ONE, TWO = 1, 2


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with connect(database, "test") as connection:
        connection.autocommit = True
        migration.bring_up_to_date(connection)
        connection.autocommit = False
        yield connection


def join(connection: Connection, number: int) -> tuple[Membership, int]:
    return ownership_tables.join(connection, number, "test", delivers=True, lease=LEASE)


def renew(connection: Connection, membership: Membership, step: int = 1) -> ownership_tables.Renewal:
    values = ownership_tables.renewing(membership, delivers=True, lease=LEASE, step=step)
    found = connection.execute(ownership_tables.RENEW.text, values).fetchall()
    connection.commit()
    return ownership_tables.renewed(membership, True, found)


def clock_of(connection: Connection) -> int:
    """The database's own."""
    found = connection.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint").fetchone()
    connection.rollback()
    assert found is not None
    return int(found[0])


def store(connection: Connection, time: SharedTime) -> None:
    connection.execute("UPDATE meta SET value = %s WHERE name = 'clock'", (time.encode(),))
    connection.commit()


@pytest.mark.parametrize(
    ("last", "expected"), [(DAY, DAY), (-DAY, 0)], ids=["behind the stored time", "ahead of the stored time"]
)
def test_whoever_joins_first_goes_on_from_the_stored_time_or_believes_the_clock(
    connection: Connection, last: int, expected: int
) -> None:
    member, _ = join(connection, ONE)
    ownership_tables.leave(connection, member)
    store(connection, SharedTime(-5 * DAY, clock_of(connection) + last))
    _, time = join(connection, TWO)
    assert abs(time - clock_of(connection) - expected) < SLACK
    assert abs(ownership_tables.fleet_time(connection) - clock_of(connection) - expected) < SLACK


def test_whoever_joins_others_has_their_time(connection: Connection) -> None:
    join(connection, ONE)
    store(connection, SharedTime(-5 * DAY, clock_of(connection)))
    member, time = join(connection, TWO)
    assert abs(time - clock_of(connection) + 5 * DAY) < SLACK
    assert abs(renew(connection, member).time - clock_of(connection) + 5 * DAY) < SLACK


def test_the_time_is_kept_unless_another_has_just_done_so(connection: Connection) -> None:
    member, _ = join(connection, ONE)
    before = renew(connection, member).clock
    ownership_tables.keep_time(connection, before, SharedTime(1, 1))
    ownership_tables.keep_time(connection, before, SharedTime(2, 2))
    assert renew(connection, member).clock == (1, 1)


def test_a_renewal_is_known_for_one_s_own_though_its_answer_was_lost_and_a_clone_s_is_not(
    connection: Connection,
) -> None:
    original, _ = join(connection, ONE)
    clone, unheard = replace(original), replace(original)
    assert not renew(connection, unheard, step=5).is_lost
    original.renewing = 5
    assert renew(connection, clone, step=7).is_lost
    assert not renew(connection, original, step=9).is_lost
    assert not renew(connection, original, step=9).is_lost


def test_only_those_that_have_not_renewed_meanwhile_are_buried(connection: Connection, database: str) -> None:
    (one, _), (two, _) = join(connection, ONE), join(connection, TWO)
    seen = renew(connection, one).renewals
    renew(connection, two)
    ownership_tables.bury(connection, seen)
    assert rows(database, "SELECT number FROM members") == [(TWO,)]
    assert rows(database, "SELECT number FROM fences") == [(TWO,)]


@pytest.mark.parametrize("stays", [True, False])
def test_only_who_owns_something_goes_on_listening(connection: Connection, stays: bool) -> None:
    """A notification wakes every session that listens, whatever it is about."""
    assert ownership_tables.can_listen(connection, ONE, stays)
    channels = connection.execute("SELECT pg_listening_channels()").fetchall()
    assert channels == ([(ownership_tables.CHANNEL.format(ONE),)] if stays else [])
