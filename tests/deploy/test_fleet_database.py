"""The roles of docs/fleet.md on a real server: the page's statements grant enough, and no more."""

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.deploy.dockerfile import REPOSITORY
from tests.support import fork_server
from tests.support.harness import Receiver, running, until
from tests.support.postgres import Server

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


def migrate(database: Database) -> None:
    """As the Job does."""
    url = database.url(database.owner)
    assert fork_server.run("migrate", env={"HOME": "/", "HOLDFAST_STORE__URL": url}).returncode == 0


def test_who_owns_the_tables_makes_them_and_the_replicas_can_work(
    database: Database, tmp_path: Path, receiver: Receiver
) -> None:
    migrate(database)
    url = database.url(database.name)
    with running(tmp_path / "store", store__url=url) as gateway:
        id = gateway.post(f"{receiver.url}/x").json()["id"]
        assert receiver.wait_for_one().id == id
        until(lambda: gateway.message(id)["state"] == "delivered")
        assert gateway.call("POST", "/v1/circuits/a.example:443/freeze").is_success
    with psycopg.connect(url) as connection:
        refused = connection.execute(
            """SELECT tablename, needed FROM pg_tables, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS needed
            WHERE schemaname = 'holdfast' AND NOT has_table_privilege(format('holdfast.%I', tablename), needed)"""
        ).fetchall()
    assert refused == []


@pytest.mark.parametrize("database", [APART], ids=["two roles"], indirect=True)
def test_with_two_roles_the_replicas_can_not_change_tables(database: Database) -> None:
    migrate(database)
    with psycopg.connect(database.url(database.name), autocommit=True) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("ALTER TABLE holdfast.meta ADD COLUMN more integer")
