"""The server that other tests rely on: it keeps what was committed, gives each test a database, and ends with us."""

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.support.harness import until
from tests.support.postgres import ELSEWHERE, OwnServer, Server

ROOT = Path(__file__).parents[2]


def value(url: str, query: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]


def test_what_was_committed_survives_a_crash(own_postgres: OwnServer) -> None:
    url = own_postgres.fresh_database()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept (number int)")
        connection.execute("INSERT INTO kept VALUES (7)")
        connection.commit()
        connection.execute("INSERT INTO kept VALUES (8)")
        own_postgres.stop("immediate")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    own_postgres.start()
    assert value(url, "SELECT array_agg(number) FROM kept") == [7]
    assert value(url, "SHOW fsync") == "on"


def test_a_database_is_empty_and_ours(database: str) -> None:
    assert value(database, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE held (number int)")


def test_a_dropped_database_is_gone_whoever_is_connected(postgres: Server) -> None:
    url = postgres.fresh_database()
    with psycopg.connect(url) as connection:
        postgres.drop(url)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


@pytest.mark.skipif(ELSEWHERE is not None, reason="HOLDFAST_TEST_POSTGRES names a server with roles of its own")
def test_a_wrong_password_does_not_connect_and_the_socket_asks_for_none(postgres: Server) -> None:
    assert isinstance(postgres, OwnServer)
    url = postgres.url("postgres")
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(url.replace("not-to-be-shown", "guessed"))
    for way in (url, postgres.socket_url("postgres")):
        assert value(way, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is False


@pytest.mark.skipif(ELSEWHERE is not None, reason="HOLDFAST_TEST_POSTGRES names a server that is not ours to stop")
def test_nothing_is_left_of_it_when_its_tests_are_killed() -> None:
    script = "from tests.support.postgres import OwnServer; print(OwnServer(durable=False).folder, flush=True); input()"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        pid = int((folder / "data" / "postmaster.pid").read_text().splitlines()[0])
        assert Path(f"/proc/{pid}").exists()
        process.kill()
    until(lambda: not folder.exists() and not Path(f"/proc/{pid}").exists())
