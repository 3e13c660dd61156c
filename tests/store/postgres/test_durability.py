"""What is acknowledged is on disk, and on the standby if there is one, whatever the server's config says meanwhile."""

from pathlib import Path

import psycopg
import pytest
import trio

from holdfast.core.errors import StoreUnreachable
from holdfast.store.postgres.transactions import connect
from tests.contract.builders import RULES, HandClock
from tests.contract.shared import SharedDesk
from tests.store.fleets import rows
from tests.support.harness import PATIENCE, Receiver, running, until
from tests.support.postgres import OwnServer

SOME = 40
WAITS_FOR_STANDBY = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = current_database()"


def set_to(server: OwnServer, value: str, witness: psycopg.Connection) -> None:
    """For sessions that did not set it themselves, such as the witness."""
    server.administer(f"ALTER SYSTEM SET synchronous_commit = {value}")
    server.administer("SELECT pg_reload_conf()")
    until(lambda: shown(witness) == value)


def shown(connection: psycopg.Connection) -> str:
    found = connection.execute("SHOW synchronous_commit").fetchone()
    connection.rollback()
    assert found is not None
    return str(found[0])


@pytest.mark.parametrize(
    ("first", "ours"), [("on", "on"), ("local", "on"), ("off", "on"), ("remote_apply", "remote_apply")]
)
def test_a_session_stays_as_durable_as_it_was(own_postgres: OwnServer, first: str, ours: str) -> None:
    url = own_postgres.fresh_database()
    with psycopg.connect(url, autocommit=True) as witness:
        set_to(own_postgres, first, witness)
        with connect(url, "test") as connection:
            assert shown(connection) == ours
            set_to(own_postgres, "local" if first == "off" else "off", witness)
            assert shown(connection) == ours


def test_nothing_acknowledged_is_lost_in_a_crash_when_the_server_stops_waiting_for_its_disk(
    own_postgres: OwnServer, tmp_path: Path, receiver: Receiver
) -> None:
    entered, let_go = receiver.hang()
    own_postgres.administer("ALTER SYSTEM SET wal_writer_delay = '10s'")
    url = own_postgres.fresh_database()
    with running(tmp_path / "store", store__url=url) as gateway, psycopg.connect(url, autocommit=True) as witness:
        gateway.post(f"{receiver.url}/hook")
        assert entered.wait(PATIENCE)
        set_to(own_postgres, "off", witness)
        ids = {gateway.post(f"{receiver.url}/hook").json()["id"] for _ in range(SOME)}
        own_postgres.stop("immediate")
        gateway.kill()
        let_go.set()
    own_postgres.start()
    assert ids <= {f"msg_{bytes(id).hex()}" for (id,) in rows(url, "SELECT id FROM messages")}


async def test_a_commit_that_no_longer_waits_for_its_standby_is_not_acknowledged(
    own_postgres: OwnServer, nursery: trio.Nursery
) -> None:
    """The server commits it here, warns, and reports success."""
    url = own_postgres.fresh_database()
    desk = SharedDesk(nursery, None, RULES, HandClock(), url=url)
    await desk.open()
    own_postgres.administer("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    own_postgres.administer("SELECT pg_reload_conf()")
    heard: list[BaseException] = []

    async def accept() -> None:
        try:
            await desk.accept()
        except StoreUnreachable as error:
            heard.append(error)

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as waiting:
            waiting.start_soon(accept)
            while not (found := rows(url, WAITS_FOR_STANDBY)):
                await trio.sleep(0.01)
            rows(url, "SELECT pg_cancel_backend(%s)", found[0])
    own_postgres.restore()  # Else the end of the desk would wait for the standby too.
    assert "standby" in str(heard)
