"""Steps of the tables: made once whoever comes first, beside replicas of the version before, never from under them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
from pytest import fixture, raises

from holdfast.core.errors import StoreUnusable
from holdfast.store.postgres import presence
from holdfast.store.postgres.connection import Connection, connect
from holdfast.store.postgres.schema import STEPS, VERSION, Step, bring_up_to_date

EXPAND = Step(VERSION + 1, ("ALTER TABLE messages ADD COLUMN note text",))
CONTRACT = Step(VERSION + 2, ("ALTER TABLE messages DROP COLUMN note",), contracts=True)
LATER = Step(VERSION + 3, ("CREATE TABLE later (id integer PRIMARY KEY)",))
ALL = (*STEPS, EXPAND, CONTRACT, LATER)


@fixture
def outside(database: str) -> Iterator[Connection]:
    """A connection outside of a transaction."""
    with connect(database, "test") as connection:
        connection.autocommit = True
        yield connection


def columns(connection: Connection) -> set[str]:
    found = connection.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = 'holdfast' AND table_name = 'messages'"
    )
    return {row[0] for row in found}


def join(connection: Connection, *, lease: int) -> None:
    connection.autocommit = False
    presence.register(connection, "old:1", True, presence.database_time(connection), lease)
    connection.autocommit = True


def test_an_empty_database_gets_every_step_and_a_second_time_none(outside: Connection) -> None:
    assert bring_up_to_date(outside) == (0, VERSION)
    assert bring_up_to_date(outside) == (VERSION, VERSION)


def test_whoever_comes_at_the_same_time_makes_them_once(database: str) -> None:
    def come(_: int) -> tuple[int, int]:
        with connect(database, "test") as connection:
            connection.autocommit = True
            return bring_up_to_date(connection)

    with ThreadPoolExecutor(6) as pool:
        assert {after for _, after in pool.map(come, range(6))} == {VERSION}


def test_a_start_expands_and_leaves_it_to_migrate_to_contract(outside: Connection) -> None:
    bring_up_to_date(outside)
    assert bring_up_to_date(outside, ALL) == (VERSION, VERSION + 3)
    assert "note" in columns(outside)
    bring_up_to_date(outside, ALL, contract=True)
    assert "note" not in columns(outside)


def test_a_replica_of_the_version_before_goes_on_beside_what_was_added(outside: Connection) -> None:
    bring_up_to_date(outside)
    bring_up_to_date(outside, (*STEPS, EXPAND))
    assert bring_up_to_date(outside) == (VERSION + 1, VERSION + 1)


def test_once_something_was_removed_an_older_version_is_refused(outside: Connection) -> None:
    bring_up_to_date(outside, ALL, contract=True)
    with raises(StoreUnusable, match=f"need version {VERSION + 2}"):
        bring_up_to_date(outside)


def test_nothing_is_removed_from_under_a_replica_that_is_alive(outside: Connection) -> None:
    bring_up_to_date(outside)
    join(outside, lease=60_000)
    with raises(StoreUnusable, match="old:1"):
        bring_up_to_date(outside, ALL, contract=True)
    assert bring_up_to_date(outside) == (VERSION, VERSION)


def test_a_replica_whose_lease_is_over_does_not_hold_up_a_step(outside: Connection) -> None:
    bring_up_to_date(outside)
    join(outside, lease=-1)
    assert bring_up_to_date(outside, ALL, contract=True) == (VERSION, VERSION + 3)


def test_a_step_that_fails_leaves_no_trace(outside: Connection) -> None:
    bring_up_to_date(outside)
    broken = Step(VERSION + 2, ("CREATE TABLE half (id integer)", "SELECT no_such_thing()"))
    with raises(psycopg.Error):
        bring_up_to_date(outside, (*STEPS, EXPAND, broken))
    assert bring_up_to_date(outside) == (VERSION, VERSION)
    assert "note" not in columns(outside)


def test_what_an_engine_may_lack_holds_up_nothing(outside: Connection) -> None:
    odd = Step(VERSION + 1, ("CREATE TABLE odd (id integer)",), ("ALTER TABLE odd SET NO SUCH THING",))
    assert bring_up_to_date(outside, (*STEPS, odd)) == (0, VERSION + 1)
