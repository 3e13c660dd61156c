"""The first word with a database: what lets nobody in is told at once, what may pass is not taken for that."""

import psycopg
import pytest

from holdfast.core.errors import StoreUnreachable, StoreUnusable
from holdfast.store.postgres.migration import migrate, prepare_database
from holdfast.store.postgres.schema import SCHEMA, VERSION
from holdfast.store.postgres.transactions import url_fault
from tests.support.ports import dead_port, refusing_port
from tests.support.postgres import PASSWORD, ROLE, OwnServer, Server


def test_the_first_one_makes_the_tables_and_hears_the_time(database: str) -> None:
    with psycopg.connect(database) as connection:
        before = connection.execute("SELECT extract(epoch FROM clock_timestamp()) * 1000").fetchone()
    heard = prepare_database(database)
    assert before is not None
    assert heard >= int(before[0])
    assert migrate(database) == (VERSION, VERSION)


def test_a_migration_tells_the_version_before_and_after(database: str) -> None:
    assert migrate(database) == (0, VERSION)
    assert migrate(database) == (VERSION, VERSION)


def test_tables_of_a_newer_version_are_left_alone(database: str) -> None:
    migrate(database)
    with psycopg.connect(database) as connection:
        connection.execute(f"INSERT INTO {SCHEMA}.versions VALUES (%s, %s)".encode(), (VERSION + 1, VERSION + 1))
    for ask in (prepare_database, migrate):
        with pytest.raises(StoreUnusable, match=f"version {VERSION + 1}, and this holdfast knows {VERSION}"):
            ask(database)


def refusal(url: str) -> str:
    with pytest.raises(StoreUnusable) as refused:
        prepare_database(url)
    text = str(refused.value)
    assert "\n" not in text
    assert PASSWORD not in text
    return text


@pytest.fixture
def own(postgres: Server) -> OwnServer:
    if not isinstance(postgres, OwnServer):
        pytest.skip("HOLDFAST_TEST_POSTGRES names a server that lets in whom it likes")
    return postgres


def test_what_no_waiting_would_mend_is_refused(own: OwnServer, database: str) -> None:
    assert "password authentication failed" in refusal(database.replace(PASSWORD, "wrong"))
    assert "no password supplied" in refusal(database.replace(f":{PASSWORD}", ""))
    assert 'database "nowhere" does not exist' in refusal(own.url("nowhere"))
    assert 'role "nobody" does not exist' in refusal(own.socket_url("postgres").replace(f"{ROLE}@", "nobody@"))
    assert "invalid sslmode value" in refusal(f"{database}?sslmode=perhaps")


def test_a_role_that_may_not_make_tables_is_refused(own: OwnServer) -> None:
    # The database of the server's owner, in which the tests' role may only look around.
    assert "permission denied for database postgres" in refusal(own.url("postgres"))


def test_one_of_several_hosts_is_enough(own: OwnServer, database: str) -> None:
    here = f"127.0.0.1:{own.port}"
    assert prepare_database(database.replace(here, f"127.0.0.1:{refusing_port()},{here}"))


@pytest.mark.parametrize("host", ["127.0.0.1", "no.such.host.invalid"])
def test_a_server_that_can_not_be_reached_may_come_back(host: str) -> None:
    with pytest.raises(StoreUnreachable, match=r"postgresql://") as away:
        prepare_database(f"postgresql://u:hunter2@{host}:{refusing_port()}/hooks")
    assert "hunter2" not in str(away.value)


def test_a_server_that_says_nothing_is_not_waited_for_long() -> None:
    with dead_port() as port, pytest.raises(StoreUnreachable, match="timeout"):
        prepare_database(f"postgresql://127.0.0.1:{port}/hooks")


def test_a_server_that_just_stops_may_come_back(own_postgres: OwnServer) -> None:
    url = own_postgres.fresh_database()
    prepare_database(url)
    own_postgres.stop("immediate")
    with pytest.raises(StoreUnreachable):
        prepare_database(url)
    own_postgres.start()
    prepare_database(url)


def test_options_that_libpq_does_not_know_are_told_without_their_values() -> None:
    assert url_fault("postgresql://db/hooks?sslmode=require&connect_timeout=3") is None
    found = url_fault("postgresql://u:hunter2@db/hooks?sslmod=hunter2")
    assert found is not None
    assert 'invalid URI query parameter: "sslmod"' in found
    assert "hunter2" not in found
