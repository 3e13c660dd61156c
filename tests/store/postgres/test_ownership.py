"""Who owns shards, in SQL: what no timing of replicas may lead to."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
from pytest import fixture

from holdfast.store.postgres import ownership
from holdfast.store.postgres.connection import Connection, connect
from tests.support.harness import until
from holdfast.store.postgres.migration import bring_up_to_date

NUMBER = 7
WAITS = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@fixture
def connection(database: str) -> Iterator[Connection]:
    with connect(database, "test") as connection:
        connection.autocommit = True
        bring_up_to_date(connection)
        connection.autocommit = False
        ownership.join(connection, NUMBER, "here:1", True, 6_000)
        yield connection


def owners(connection: Connection) -> set[int | None]:
    found = {owner for (owner,) in connection.execute("SELECT owner FROM shards")}
    connection.rollback()
    return found


def test_who_was_declared_dead_takes_no_shards(connection: Connection) -> None:
    """It stood still between the renewal that found them free and this."""
    ownership.bury(connection, {NUMBER: 0})
    assert ownership.take_free(connection, NUMBER, range(256)) == {}
    assert owners(connection) == {None}


def test_who_is_just_declared_dead_takes_no_shards(connection: Connection, database: str) -> None:
    with ThreadPoolExecutor(1) as pool, psycopg.connect(database, options="-c search_path=holdfast") as other:
        other.execute("DELETE FROM members")
        taken = pool.submit(ownership.take_free, connection, NUMBER, range(256))
        until(lambda: other.execute(WAITS).fetchone())
        other.commit()
        assert taken.result() == {}
    assert owners(connection) == {None}
