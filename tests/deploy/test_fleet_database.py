"""The roles that docs/fleet.md shows, on a real server: what the page's statements give is enough, and no more."""

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import psycopg
import pytest

from deploy.dockerfile import REPOSITORY
from holdfast.store.postgres import presence, schema
from holdfast.store.postgres.connection import connect
from postgres import Server

PAGE = REPOSITORY / "docs" / "fleet.md"
PASSWORD = "of-this-test"
SIMPLE, APART = re.findall(r"^```text\n(CREATE ROLE .*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
FLEET_S_OWN = re.compile(r"\b(ROLE|OWNER|TO|DATABASE|connect) holdfast\b")


@dataclass(frozen=True)
class Database:
    """Made by the page's statements, with names that no other test has. `schema` keeps its own."""

    server: Server
    name: str
    owner: str

    def url(self, role: str) -> str:
        whole = urlsplit(self.server.url(self.name))
        return whole._replace(netloc=f"{role}:{PASSWORD}@{whole.netloc.rpartition('@')[2]}").geturl()


@pytest.fixture(params=[SIMPLE, APART], ids=["one role", "two roles"])
def database(postgres: Server, request: pytest.FixtureRequest) -> Iterator[Database]:
    name = f"fleet_{secrets.token_hex(4)}"
    owner = f"{name}_owner" if "holdfast_owner" in request.param else name
    text = FLEET_S_OWN.sub(rf"\1 {name}", request.param.replace("holdfast_owner", owner)).replace("...", PASSWORD)
    made = Database(postgres, name, owner)
    before, _, after = text.partition("\\connect")
    try:
        for statement in filter(str.strip, before.split(";")):
            postgres.administer(statement)
        if after:
            with psycopg.connect(made.url(owner), autocommit=True) as connection:
                connection.execute(after.partition("\n")[2].encode())
        yield made
    finally:
        postgres.administer(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        for role in {name, owner}:
            postgres.administer(f"DROP ROLE IF EXISTS {role}")


def test_who_owns_the_tables_makes_them_and_the_replicas_can_work(database: Database) -> None:
    assert schema.migrate(database.url(database.owner)) == (0, schema.VERSION)
    connection = connect(database.url(database.name), "test")
    with connection:
        connection.autocommit = True
        assert schema.bring_up_to_date(connection) == (schema.VERSION, schema.VERSION)
        connection.autocommit = False
        assert presence.register(connection, "test", True, 1, 1).number == 1
        refused = connection.execute(
            """SELECT tablename, needed FROM pg_tables, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS needed
            WHERE schemaname = 'holdfast' AND NOT has_table_privilege(format('holdfast.%I', tablename), needed)"""
        ).fetchall()
    assert refused == []


@pytest.mark.parametrize("database", [APART], ids=["two roles"], indirect=True)
def test_with_two_roles_the_replicas_can_not_change_tables(database: Database) -> None:
    schema.migrate(database.url(database.owner))
    with psycopg.connect(database.url(database.name), autocommit=True) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("ALTER TABLE holdfast.meta ADD COLUMN more integer")
