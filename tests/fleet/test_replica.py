"""The process on a shared database: its start and end, roles, an unreachable database, and no password in output."""

import re
import stat
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import httpx
import psycopg
import pytest
from standardwebhooks import Webhook

from holdfast.core.message import parse_id
from holdfast.core.ownership import SHARDS
from holdfast.store.postgres.schema import SCHEMA
from tests.crash.wall_clock import WallClock
from tests.fleet.replicas import Database
from tests.support import fork_server
from tests.support.harness import PATIENCE, PLAIN, Gateway, Receiver, running, settings, until
from tests.support.postgres import PASSWORD, OwnServer

INGEST, DELIVER = ("--role", "ingest"), ("--role", "deliver")


def place(url: str) -> str:
    """As it may be shown."""
    return re.sub(r"//[^@]*@", "//", url)


def run(folder: Path, *flags: str, **keys: object) -> "subprocess.CompletedProcess[str]":
    """A gateway that is expected to give up by itself."""
    return fork_server.run("run", *flags, env=settings(folder, **keys))


def events(gateway: Gateway, name: str) -> list[dict[str, object]]:
    return [event for event in gateway.events() if event["event"] == name]


# -- time --------------------------------------------------------------------------------------------------------------


def test_time_is_the_database_s_but_signatures_use_the_wall_clock(
    database: str, tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`clock.offset` says how far the two are apart, from the start on and after a jump."""
    wall_clock, ahead = WallClock(tmp_path), 3 * 86_400
    for name, value in wall_clock.environment.items():
        monkeypatch.setenv(name, value)
    secret, config = "whsec_" + "c2VjcmV0" * 4, tmp_path / "holdfast.toml"
    (tmp_path / "secret").write_text(secret)
    config.write_text(f'[routes.billing]\nurl = "{receiver.url}/in"\nsign = {{ secret_file = "{tmp_path}/secret" }}\n')

    def is_off_by(seconds: int) -> bool:
        return abs(float(gateway.get("/status").json()["clock"]["offset"]) - seconds) < 100

    wall_clock.set(ahead)
    with running(tmp_path / "store", config, store__url=database) as gateway:
        id = httpx.post(f"http://{gateway.ingest}/to/billing", content=b"1", **PLAIN).json()["id"]
        by_wall = int(receiver.wait_for_one().headers["webhook-timestamp"])
        accepted = datetime.fromisoformat(gateway.message(id)["accepted_at"]).timestamp()
        assert abs(by_wall - accepted - ahead) < 100
        assert is_off_by(-ahead)
        (told,) = events(gateway, "clock_off")
        assert abs(float(str(told["offset"])) + ahead) < 100
        wall_clock.set(0)
        until(lambda: is_off_by(0))
        httpx.post(f"http://{gateway.ingest}/to/billing", content=b"2", **PLAIN)
        request = receiver.wait_for(lambda requests: len(requests) == 2)[1]
        Webhook(secret).verify(request.body, dict(request.headers))


# -- start and end ---------------------------------------------------------------------------------------------------


def test_a_webhook_is_delivered_and_status_names_the_database(
    database: str, tmp_path: Path, receiver: Receiver
) -> None:
    with running(tmp_path / "store", store__url=database) as gateway:
        assert gateway.out[0].endswith(f", store {place(database)}, role all\n")
        assert gateway.get("/readyz").status_code == 200
        id = gateway.post(f"{receiver.url}/hook").json()["id"]
        until(lambda: gateway.message(id)["state"] == "delivered")
        status = gateway.get("/status").json()
        assert (status["role"], status["store"]["path"]) == ("all", place(database))
        (started,) = events(gateway, "start")
        assert (started["role"], started["store"]) == ("all", place(database))
        assert gateway.stop() == 0
        assert gateway.events()[-1]["event"] == "exit"
    assert [request.path for request in receiver.requests] == ["/hook"]


def test_the_folder_holds_the_control_socket_alone_and_is_private(database: str, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with running(folder, store__url=database) as gateway:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(gateway.control.stat().st_mode) == 0o600
        assert sorted(path.name for path in folder.iterdir()) == ["control.sock", "holdfast.lock"]
        second = run(folder, store__url=database)
        assert second.returncode == 3
        assert f"in use by process {gateway.process.pid}" in second.stderr
        with running(tmp_path / "other", store__url=database) as other:
            assert other.get("/readyz").status_code == 200


def test_an_embedded_store_that_is_left_behind_is_logged(database: str, tmp_path: Path) -> None:
    with running(tmp_path / "store"):
        pass
    with running(tmp_path / "store", store__url=database) as gateway:
        (told,) = events(gateway, "store_left_behind")
        assert told["path"] == str(tmp_path / "store")


def test_psycopg_is_not_loaded_for_an_embedded_store() -> None:
    code = "import sys, holdfast.app; print(sorted(name for name in sys.modules if 'psycopg' in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_new_url_waits_for_a_restart(database: str, tmp_path: Path) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text(f'[store]\nurl = "{database}"\n')
    with running(tmp_path / "store", config) as gateway:
        config.write_text('[store]\nurl = "postgresql://u:hunter2@db/hooks"\n')
        answer = gateway.call("POST", "/v1/reload")
        assert answer.json() == {"changed": [], "needs_restart": ["store.url"]}
        assert "hunter2" not in answer.text + gateway.log.read_text()
        config.write_text('[store]\nurl = "postgresql://u:hunter2@db:x/hooks"\n')
        answer = gateway.call("POST", "/v1/reload")
        assert answer.status_code == 422
        assert "store.url" in answer.text
        assert "hunter2" not in answer.text + gateway.log.read_text()


def test_the_password_shows_nowhere(own_postgres: OwnServer, tmp_path: Path) -> None:
    url = own_postgres.fresh_database()
    folder = tmp_path / "store"
    with running(folder, store__url=url) as gateway:

        def shown() -> str:
            read = [gateway.get(path).text for path in ("/", "/status", "/metrics", "/readyz", "/healthz", "/circuits")]
            asked = [gateway.call("GET", f"/v1/{path}").text for path in ("status", "circuits", "messages")]
            words = (["status"], ["circuits"], ["reload"], ["check"], ["tail", "--help"])
            environ = settings(folder, store__url=url)
            told = [fork_server.run(*each, env=environ) for each in words]
            return "".join([*read, *asked, *(each.stdout + each.stderr for each in told)])

        while_there = shown()
        own_postgres.stop("immediate")
        until(lambda: gateway.get("/readyz").status_code == 503)
        while_away = shown() + gateway.post("http://127.0.0.1:1/hook").text
        gateway.stop()
        assert place(url) in while_there
        for text in (while_there, while_away, gateway.out[0], gateway.log.read_text()):
            assert PASSWORD not in text


# -- a start that can't be -------------------------------------------------------------------------------------------


def refused(folder: Path, url: str) -> str:
    done = run(folder, store__url=url)
    assert done.returncode == 3
    assert PASSWORD not in done.stderr
    (line,) = done.stderr.splitlines()
    return line


def test_refused_credentials_exit_3(own_postgres: OwnServer, tmp_path: Path) -> None:
    url = own_postgres.fresh_database()
    folder = tmp_path / "store"
    assert "password authentication failed" in refused(folder, url.replace(PASSWORD, "wrong"))
    assert 'database "nowhere" does not exist' in refused(folder, own_postgres.url("nowhere"))


def test_tables_of_a_newer_version_exit_3(database: str, tmp_path: Path) -> None:
    assert fork_server.run("migrate", env=settings(tmp_path, store__url=database)).returncode == 0
    with psycopg.connect(database) as connection:
        connection.execute(f"INSERT INTO {SCHEMA}.versions VALUES (99, 99)".encode())
    assert "version 99" in refused(tmp_path / "store", database)


# -- a database that is away -----------------------------------------------------------------------------------------


def test_a_start_waits_for_an_unreachable_database(own_postgres: OwnServer, tmp_path: Path, receiver: Receiver) -> None:
    url = own_postgres.fresh_database()
    own_postgres.stop()
    with running(tmp_path / "store", store__url=url) as gateway:
        assert " not ready: ingest http://" in gateway.out[0]
        answer = gateway.get("/readyz")
        assert (answer.status_code, answer.json()["degraded"]) == (503, ["store_away"])
        assert gateway.get("/healthz").status_code == 200
        assert gateway.get("/metrics").status_code == 200
        assert gateway.get("/status").json()["ready"] is False
        refusal = gateway.post(f"{receiver.url}/hook")
        assert refusal.status_code == 503
        assert refusal.headers["retry-after"]
        own_postgres.start()
        until(lambda: gateway.get("/readyz").status_code == 200)
        id = gateway.post(f"{receiver.url}/hook").json()["id"]
        until(lambda: gateway.message(id)["state"] == "delivered")
        assert len(events(gateway, "not_ready")) == 1
        assert events(gateway, "store_away")
        assert len(events(gateway, "store_back")) == 1


def test_ready_again_means_that_webhooks_are_accepted_again(
    own_postgres: OwnServer, tmp_path: Path, receiver: Receiver
) -> None:
    """Also over connections that nobody has used since the server hung up on them."""
    url = own_postgres.fresh_database()
    with running(tmp_path / "store", store__url=url) as gateway:
        assert gateway.post(f"{receiver.url}/before").status_code == 202
        own_postgres.stop("immediate")
        until(lambda: gateway.get("/readyz").status_code == 503)
        own_postgres.start()
        until(lambda: gateway.get("/readyz").status_code == 200)
        assert gateway.post(f"{receiver.url}/after").status_code == 202
        receiver.wait_for(lambda requests: {request.path for request in requests} == {"/before", "/after"})


def test_a_newer_version_that_is_found_when_the_database_is_back_exits_3(
    own_postgres: OwnServer, tmp_path: Path
) -> None:
    url = own_postgres.fresh_database()
    with psycopg.connect(url) as connection:
        connection.execute(f"CREATE SCHEMA {SCHEMA}".encode())
        connection.execute(
            f"CREATE TABLE {SCHEMA}.versions (version integer PRIMARY KEY, needs integer NOT NULL)".encode()
        )
        connection.execute(f"INSERT INTO {SCHEMA}.versions VALUES (99, 99)".encode())
    own_postgres.stop()
    with running(tmp_path / "store", store__url=url) as gateway:
        own_postgres.start()
        assert gateway.process.wait(PATIENCE) == 3
        (told,) = events(gateway, "store_failed")
        assert "version 99" in str(told["detail"])


def test_a_replica_exits_with_0_while_its_database_is_unreachable(own_postgres: OwnServer, tmp_path: Path) -> None:
    url = own_postgres.fresh_database()
    with running(tmp_path / "store", store__url=url) as gateway:
        own_postgres.stop("immediate")
        until(lambda: gateway.get("/readyz").status_code == 503)
        assert gateway.stop() == 0
        assert gateway.events()[-1]["event"] == "exit"


# -- a database that refuses what it is asked ------------------------------------------------------------------------


def test_a_failed_commit_is_answered_without_any_part_of_the_row(database: str, tmp_path: Path) -> None:
    """The server's own words repeat the row, where the body and the headers are too."""
    with running(tmp_path / "store", store__url=database) as gateway:
        with psycopg.connect(database) as connection:
            connection.execute(f"ALTER TABLE {SCHEMA}.messages ADD CONSTRAINT no_row CHECK (false) NOT VALID".encode())
        answer = gateway.post("http://canary.example/hook", b"0123456789")
        assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
        assert gateway.process.wait(PATIENCE) == 4
        (told,) = events(gateway, "store_failed")
        refusal = 'new row for relation "messages" violates check constraint "no_row" (CheckViolation, SQLSTATE 23514)'
        assert told["detail"] == f"the database refused what was asked of it: {refusal}"
        (logged,) = events(gateway, "log")
        assert str(logged["exception"]).endswith(f"CommitFailed: {told['detail']}")
        shown = answer.text + gateway.log.read_text()
        for secret in ("DETAIL", "Failing row", "canary", b"canary".hex(), b"0123456789".hex()):
            assert secret not in shown, secret


# -- roles -----------------------------------------------------------------------------------------------------------


def test_ingest_and_delivery_run_in_separate_replicas(database: str, tmp_path: Path, receiver: Receiver) -> None:
    with running(tmp_path / "in", None, *INGEST, store__url=database) as takes:
        id = takes.post(f"{receiver.url}/hook").json()["id"]
        assert takes.message(id)["state"] == "queued"
        assert takes.out[0].endswith(", role ingest\n")
        assert Database(database).shares() == []
        with running(tmp_path / "out", None, *DELIVER, store__url=database) as sends:
            receiver.wait_for_one()
            until(lambda: takes.message(id)["state"] == "delivered")
            assert sends.message(id)["state"] == "delivered"
            taken, sent = takes.get("/status").json(), sends.get("/status").json()
            assert (taken["role"], taken["totals"]["accepted"], taken["totals"]["delivered"]) == ("ingest", 1, 0)
            assert (sent["role"], sent["totals"]["accepted"], sent["totals"]["delivered"]) == ("deliver", 0, 1)
            assert Database(database).owner(f"127.0.0.1:{receiver.port}") == sends.process.pid
            assert Database(database).shares() == [SHARDS]
            assert sends.stop() == 0
        assert takes.stop() == 0


def test_a_replica_that_only_delivers_opens_no_ingest_listener(database: str, tmp_path: Path) -> None:
    # The address is taken by another one: nobody misses it.
    with running(tmp_path / "in", None, *INGEST, store__url=database) as takes:
        with running(
            tmp_path / "out",
            None,
            *DELIVER,
            store__url=database,
            listen__ingest=takes.ingest,
            listen__probe="127.0.0.1:0",
        ) as sends:
            assert "ingest" not in sends.out[0]
            assert sends.out[0].partition(" ready: ")[2].startswith("status http://")
            assert sends.out[0].rpartition(", ")[2].startswith("probe http://")
            assert sends.get("/readyz").status_code == 200
            assert 'holdfast_connections_open{listener="ingest"} 0.0' in sends.get("/metrics").text
            probe = sends.out[0].rpartition(" ")[2].strip()
            assert httpx.get(f"{probe}/readyz", **PLAIN).status_code == 200
            assert sends.call("POST", "/v1/reload").json() == {"changed": [], "needs_restart": []}
            assert "ingest" not in events(sends, "ready")[0]


def test_operators_act_through_a_replica_with_the_role_ingest(
    database: str, tmp_path: Path, receiver: Receiver
) -> None:
    host = f"127.0.0.1:{receiver.port}"
    with (
        running(tmp_path / "in", None, *INGEST, store__url=database) as takes,
        running(tmp_path / "out", None, *DELIVER, store__url=database) as sends,
    ):
        until(lambda: takes.call("POST", f"/v1/circuits/{host}/freeze").is_success)
        assert sends.get(f"/circuits/{host}").json()["state"] == "frozen"
        id = takes.post(f"{receiver.url}/hook").json()["id"]
        assert takes.call("POST", f"/v1/circuits/{host}/probe").status_code == 409
        until(lambda: sends.get(f"/circuits/{host}").json()["waiting"] == 1)
        assert takes.call("POST", f"/v1/circuits/{host}/unfreeze").json()["changed"]
        until(lambda: takes.message(id)["state"] == "delivered")
        assert [event["after"] for event in events(sends, "circuit_changed")] == ["frozen", "enabled"]
        assert events(takes, "circuit_changed") == []


def test_a_replica_with_the_role_ingest_drops_and_drains(database: str, tmp_path: Path) -> None:
    with running(tmp_path / "in", None, *INGEST, store__url=database) as takes:
        ids = [takes.post("http://127.0.0.1:1/hook").json()["id"] for _ in range(3)]
        assert takes.call("DELETE", f"/v1/messages/{ids[0]}").json() == {"dropped": 1}
        assert takes.call("POST", f"/v1/messages/{ids[1]}/retry").json()["result"] == "due"
        refusal = takes.call("POST", "/v1/messages/drop")
        assert (refusal.status_code, refusal.json()["type"]) == (503, "urn:holdfast:problem:no-owner")
        drained = takes.call("POST", "/v1/drain")
        assert drained.is_success, drained.text
        status = takes.get("/status").json()
        assert (status["store"]["waiting"], status["draining"]) == (2, True)
        assert takes.stop() == 0
        last = takes.events()[-1]
        assert (last["waiting"], last["waiting_by_host"]) == (2, {"127.0.0.1:1": 2})


def test_a_replica_with_the_role_ingest_counts_and_logs_unreadable_records(database: str, tmp_path: Path) -> None:
    with running(tmp_path / "store", None, *INGEST, store__url=database) as gateway:
        id = gateway.post("http://127.0.0.1:9/hook").json()["id"]
        with psycopg.connect(database, options=f"-c search_path={SCHEMA}") as connection:
            connection.execute("UPDATE messages SET record = 'garbage'")
        for _ in range(2):
            assert gateway.call("GET", "/v1/messages").json()["messages"] == []
        (unreadable,) = events(gateway, "record_broken")
        assert (unreadable["table"], unreadable["key"]) == ("messages", id_of(id))
        assert "holdfast_broken_records_total 1" in gateway.get("/metrics").text


def id_of(text: str) -> str:
    """A message's id as the key of its row, in hex."""
    raw = parse_id(text)
    assert raw is not None
    return raw.hex()


def test_a_role_without_a_database_exits_2(tmp_path: Path) -> None:
    done = run(tmp_path / "store", *DELIVER)
    assert done.returncode == 2
    assert "store.url" in done.stderr
    assert not (tmp_path / "store").exists()
