"""What lists become on their way to the server."""

from typing import Any

import pytest

from holdfast.store.postgres.connection import connect


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
