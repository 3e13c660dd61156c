"""Steps of the tables: made once whoever comes first, beside replicas of the version before, never from under them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
from pytest import fixture, mark, raises

from holdfast.core.errors import StoreUnreachable, StoreUnusable
from holdfast.store.postgres import ownership_tables
from holdfast.store.postgres.migration import bring_up_to_date, catch_up
from holdfast.store.postgres.schema import STEPS, VERSION, Step
from holdfast.store.postgres.transactions import Connection, connect
from tests.contract.builders import NOW
from tests.store.version_one import version_one
from tests.support.harness import until

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
    ownership_tables.join(connection, 1, "old:1", True, lease)
    connection.autocommit = True


def test_an_empty_database_gets_every_step_and_a_second_time_none(outside: Connection) -> None:
    assert bring_up_to_date(outside) == (0, VERSION)
    assert bring_up_to_date(outside) == (VERSION, VERSION)


@mark.parametrize("tables", ["none", "of version 1"])
def test_whoever_comes_at_the_same_time_makes_them_once(database: str, tables: str) -> None:
    """Also where one of them has to wait for an index that another one makes."""
    if tables != "none":
        version_one(database, NOW).replica_is_alive(lease=0)

    def come(_: int) -> tuple[int, int]:
        with connect(database, "test") as connection:
            connection.autocommit = True
            return bring_up_to_date(connection)

    with ThreadPoolExecutor(6) as pool:
        assert {after for _, after in pool.map(come, range(6))} == {VERSION}
    with connect(database, "test") as connection:
        assert invalid(connection) == []


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
    assert "note" in columns(outside)


def test_a_replica_whose_lease_is_over_does_not_hold_up_a_step(outside: Connection) -> None:
    bring_up_to_date(outside)
    join(outside, lease=-1)
    assert bring_up_to_date(outside, ALL, contract=True) == (VERSION, VERSION + 3)


def test_a_step_that_fails_leaves_no_trace(outside: Connection) -> None:
    bring_up_to_date(outside)
    broken = Step(VERSION + 2, ("CREATE TABLE half (id integer)", "SELECT no_such_thing()"))
    with raises(psycopg.Error):
        bring_up_to_date(outside, (*STEPS, EXPAND, broken))
    assert bring_up_to_date(outside) == (VERSION + 1, VERSION + 1)
    assert outside.execute("SELECT to_regclass('half')").fetchone() == (None,)


def test_what_an_engine_may_lack_holds_up_nothing(outside: Connection) -> None:
    odd = Step(VERSION + 1, ("CREATE TABLE odd (id integer)",), if_possible=("ALTER TABLE odd SET NO SUCH THING",))
    assert bring_up_to_date(outside, (*STEPS, odd)) == (0, VERSION + 1)


# -- what takes long ---------------------------------------------------------------------------------------------------

INDEX = STEPS[1].apart[0][0]


def invalid(connection: Connection) -> list[Any]:
    return connection.execute("SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid").fetchall()


def indexes(connection: Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT indexname FROM pg_indexes WHERE schemaname = 'holdfast'")}


@contextmanager
def using(url: str, statement: str) -> Iterator[psycopg.Connection]:
    """A transaction that has not come to its end, and goes on seeing what it saw first."""
    with psycopg.connect(url, options="-c search_path=holdfast") as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute(statement.encode())
        yield connection


def waits(url: str, kind: str) -> bool:
    """Whether a session waits for another one's transaction, or for its lock of a table."""
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = %s", (kind,))
        return found.fetchone() is not None


def test_an_index_whose_making_was_interrupted_is_made_at_the_next_start(database: str) -> None:
    version_one(database, NOW)

    def start(name: str) -> None:
        with connect(database, name) as connection:
            connection.autocommit = True
            bring_up_to_date(connection)

    with ThreadPoolExecutor(1) as pool, using(database, "SELECT 1 FROM keys"):
        broken = pool.submit(start, "broken")
        until(lambda: waits(database, "virtualxid"))
        with psycopg.connect(database, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '% broken'"
            )
        assert isinstance(broken.exception(), psycopg.OperationalError)
    with connect(database, "test") as connection:
        assert invalid(connection) == [(INDEX,)]
        connection.rollback()
        start("next")
        assert invalid(connection) == []
        assert indexes(connection) >= {name for name, _ in STEPS[1].apart}


def test_what_is_tuned_and_was_not_reached_is_made_up_for(outside: Connection) -> None:
    step = Step(VERSION + 1, ("CREATE TABLE odd (id integer)",), (("odd_id", "odd (id)"),))
    bring_up_to_date(outside, (*STEPS, step))
    outside.execute("DROP INDEX odd_id")
    bring_up_to_date(outside, (*STEPS, step))
    assert "odd_id" not in indexes(outside), "what was reached is not looked at again"
    outside.execute("DELETE FROM meta WHERE name = 'tuned'")
    bring_up_to_date(outside, (*STEPS, step))
    assert "odd_id" in indexes(outside)


def test_what_takes_long_has_no_time_limit_and_what_comes_after_it_has(outside: Connection) -> None:
    seen: list[object] = []

    def convert(connection: psycopg.Connection) -> None:
        seen.append(connection.execute("SELECT current_setting('statement_timeout')").fetchone())

    bring_up_to_date(outside, (*STEPS, Step(VERSION + 1, (), convert=convert)))
    assert seen == [("0",), ("0",)]
    assert outside.execute(
        "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')"
    ).fetchall() == [("30s", "10s")]


def test_making_an_index_holds_up_nobody_who_writes(database: str) -> None:
    old = version_one(database, NOW)

    def start() -> None:
        with connect(database, "starts") as connection:
            connection.autocommit = True
            bring_up_to_date(connection, STEPS[:2])

    with ThreadPoolExecutor(1) as pool:
        with using(database, "SELECT 1 FROM keys"):
            started = pool.submit(start)
            until(lambda: waits(database, "virtualxid"))
            old.execute("SET lock_timeout TO '1s'; UPDATE counters SET first = first; DELETE FROM keys")
            old.put("beside", "busy.test:80", 1)
            assert not started.done()
        assert started.exception() is None


def test_a_step_does_not_wait_for_a_table_for_long(database: str) -> None:
    """All others would wait behind it. It is tried again, or left to a later beat."""
    old = version_one(database, NOW)
    with connect(database, "expands") as connection:
        connection.autocommit = True
        bring_up_to_date(connection, STEPS[:2])
    old.replica_is_alive(lease=0)
    with using(database, "SELECT 1 FROM messages") as reader, connect(database, "contracts") as connection:
        connection.autocommit = True
        assert not catch_up(connection)
        with ThreadPoolExecutor(1) as pool:
            made = pool.submit(partial(bring_up_to_date, connection))
            until(lambda: waits(database, "relation"))
            until(lambda: not waits(database, "relation"))
            reader.rollback()
            assert made.result() == (2, VERSION)


def test_whoever_makes_steps_for_long_is_not_waited_for_by_a_beat(outside: Connection, database: str) -> None:
    version_one(database, NOW).replica_is_alive(lease=0)
    with using(database, f"SELECT pg_advisory_lock({0x686F6C64})"):
        assert not catch_up(outside)
        with raises(StoreUnreachable, match="another holdfast is just changing the tables"):
            bring_up_to_date(outside, patient=False)
    assert catch_up(outside)
