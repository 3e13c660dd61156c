"""Prepared statements that are executed on the loop, and lists that are sent as binary arrays."""

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from holdfast.core.errors import CommitFailed, StoreUnreachable
from holdfast.store.postgres.client import Client
from holdfast.store.postgres.statements import Statement
from holdfast.store.postgres.transactions import connect
from tests.support.harness import PATIENCE

ROWS = Statement(
    """SELECT * FROM unnest(%(bytes)s::bytea[], %(longs)s::bigint[], %(ints)s::integer[], %(shorts)s::smallint[],
    %(flags)s::boolean[]) WHERE %(one)s::bigint = 1"""
)
VALUES = {
    "bytes": [b"", None, b"\x00a"],
    "longs": [-1, 1 << 62, None],
    "ints": [None, -5, 1 << 30],
    "shorts": [7, -7, None],
    "flags": [True, None, False],
    "one": 1,
}
FOUND = [(b"", -1, None, 7, True), (None, 1 << 62, -5, -7, None), (b"\x00a", None, 1 << 30, None, False)]


@pytest.fixture
async def client(database: str) -> AsyncIterator[Client]:
    client = Client(database, "test", threaded=True)
    yield client
    client.close()


async def carry_out(client: Client, statement: Statement, **values: object) -> list[object]:
    return await client.execute(statement, values, within=PATIENCE)


async def test_values_of_every_kind_come_back_as_they_were(client: Client) -> None:
    assert await carry_out(client, ROWS, **VALUES) == FOUND
    empty = {key: [] for key in VALUES} | {"one": 1}
    assert await carry_out(client, ROWS, **empty) == []


async def test_the_driver_executes_the_same_text(client: Client) -> None:
    found = await client.run(lambda it: it.execute(ROWS.text, VALUES).fetchall(), within=PATIENCE)
    assert found == FOUND


async def test_one_that_the_server_has_forgotten_is_prepared_again(client: Client) -> None:
    assert await carry_out(client, ROWS, **VALUES) == FOUND
    await client.run(lambda it: it.execute("DEALLOCATE ALL"), within=PATIENCE)
    assert await carry_out(client, ROWS, **VALUES) == FOUND


async def test_a_connection_that_was_cut_off_is_made_anew(client: Client, database: str) -> None:
    backend = Statement("SELECT pg_backend_pid() WHERE %(one)s::bigint = 1")
    [(first,)] = await carry_out(client, backend, one=1)
    with psycopg.connect(database, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (first,))
    [(second,)] = await carry_out(client, backend, one=1)
    assert first != second


async def test_no_answer_in_time_gives_the_connection_up(client: Client) -> None:
    slow = Statement("SELECT 1 FROM pg_sleep(%(seconds)s::bigint)")
    assert await carry_out(client, slow, seconds=0) == [(1,)]
    with pytest.raises(StoreUnreachable, match="did not answer"):
        await client.execute(slow, {"seconds": 3600}, within=0.01)
    assert await carry_out(client, slow, seconds=0) == [(1,)]


async def test_what_the_server_refuses_is_a_failed_commit_and_the_client_goes_on(client: Client) -> None:
    wrong = Statement("SELECT sqrt(%(number)s::bigint)::bigint")
    assert await carry_out(client, wrong, number=4) == [(2,)]
    with pytest.raises(CommitFailed, match="square root"):
        await carry_out(client, wrong, number=-4)
    assert await carry_out(client, wrong, number=9) == [(3,)]


@pytest.mark.parametrize(
    ("kind", "items"),
    [
        ("boolean", [True, None, False]),
        ("bigint", [1, -5, None, (1 << 63) - 1]),
        ("bigint", [0, -(1 << 63)]),
        ("integer", [1, 2, 3]),
        ("smallint", [None, 7]),
        ("bytea", [b"", None, b"\x00\xff\\x41", b"x" * 70_000]),
        ("text", ["", None, 'ä"\\{},NULL', "NULL"]),
        ("text", []),
        ("bigint", [None, None]),
    ],
)
def test_lists_arrive_as_they_are(database: str, kind: str, items: list[Any]) -> None:
    with connect(database, "test") as connection:
        found = connection.execute(f"SELECT %s::{kind}[], array_length(%s::{kind}[], 1)", (items, items)).fetchone()
    assert found == (items, len(items) or None)


def test_one_statement_is_enough_for_numbers_of_any_size(database: str) -> None:
    with connect(database, "test") as connection:
        for number in [0, 1 << 20, 1 << 40] * 4:
            connection.execute("SELECT 'numbers', unnest(%s::bigint[])", ([number],))
        found = connection.execute("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%numbers%'")
        assert found.fetchone() == (1,)
