"""handoff as the real executable: it moves a stopped store to a database, each message once."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from holdfast.core.message import Message
from holdfast.store.embedded.tables import Table
from holdfast.store.port import Accept, Fail
from holdfast.store.transfer import PAGE
from tests.cli.conftest import EXECUTABLE, Run
from tests.contract.builders import EXHAUSTED, Desk, active, attempt, lane
from tests.store.fleets import ids_in, rows
from tests.store.populated import Populated, build, populate, put
from tests.support.harness import PATIENCE, running, until
from tests.support.ports import refusing_port
from tests.support.postgres import PASSWORD, OwnServer
from tests.support.repetitions import amount

NOBODY = "postgresql://holdfast:s3cret@127.0.0.1"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Populated:
    monkeypatch.setenv("HOLDFAST_STORE__PATH", str(tmp_path / "store"))
    return build(tmp_path / "store")


def shown(url: str) -> str:
    return "postgresql://" + url.partition("@")[2]


def test_all_messages_move_and_a_second_run_moves_none(holdfast: Run, store: Populated, database: str) -> None:
    first, second = holdfast("handoff", "--to", database), holdfast("handoff", "--to", database)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == f"15 messages moved to {shown(database)}, 2 of them dead; 0 left here\n"
    assert (second.returncode, second.stdout.split(",")[0]) == (0, f"0 messages moved to {shown(database)}")
    delivered = {store["delivered"], store["delivered late"]}
    assert set(ids_in(database)) == {message.id for message in store.by_name.values()} - delivered
    assert holdfast("fsck").stdout == "the store is clean\n"
    assert PASSWORD not in first.stdout + second.stdout


def test_the_config_may_name_the_database(
    holdfast: Run, store: Populated, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE__URL", database)
    done = holdfast("handoff", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"moved": 15, "dead": 2, "already_there": 0, "duplicates": 0, "left": 0}


def test_an_unreadable_message_stays_and_is_reported(holdfast: Run, store: Populated, database: str) -> None:
    put(store, Table.MESSAGES, store["waiting"], b"\xc1")
    done = holdfast("handoff", "--to", database)
    assert done.returncode == 1
    assert done.stdout.endswith("; 1 left here\n")
    assert done.stderr.startswith(f"holdfast: unreadable, so it stays: messages {store['waiting'].hex()}: ")
    assert len(ids_in(database)) == 14


@pytest.mark.parametrize(
    ("to", "status", "said"),
    [
        ("mysql://here", 2, "--to: is not a postgresql:// URL"),
        (None, 2, "handoff needs --to, or store.url in the config"),
        (f"{NOBODY}:1/none?unknown=1", 2, "store.url: "),
        (f"{NOBODY}:{{port}}/none", 1, "postgresql://127.0.0.1:{port}/none: "),
    ],
    ids=["another scheme", "nothing", "an unknown option", "no server"],
)
def test_with_an_unusable_database_nothing_moves(
    holdfast: Run, store: Populated, to: str | None, status: int, said: str
) -> None:
    port = str(refusing_port())
    given = [] if to is None else ["--to", to.replace("{port}", port)]
    done = holdfast("handoff", *given)
    assert done.returncode == status
    assert said.replace("{port}", port) in done.stderr
    assert "s3cret" not in done.stdout + done.stderr
    assert holdfast("export", "-").stdout.count('"kind": "message"') == 15


def test_a_wrong_password_is_not_printed(holdfast: Run, store: Populated, database: str) -> None:
    done = holdfast("handoff", "--to", database.replace(PASSWORD, "wr0ng"))
    assert done.returncode == 3
    assert "password authentication failed" in done.stderr
    assert "wr0ng" not in done.stdout + done.stderr


def test_the_store_of_a_running_gateway_is_not_touched(holdfast: Run, tmp_path: Path, database: str) -> None:
    with running(tmp_path / "store") as gateway:
        done = holdfast("handoff", "--to", database, env={"HOLDFAST_STORE__PATH": str(tmp_path / "store")})
        assert done.returncode == 3
        assert done.stderr == f"holdfast: {tmp_path}/store is in use by process {gateway.process.pid}\n"


# -- interrupted -------------------------------------------------------------------------------------------------------

KILLS = amount(2, 10)
MANY = (KILLS + 10) * PAGE
"""Enough that the last killed run is still far from its end."""
HOSTS = ("a:443", "b:443", "c:443")


@pytest.fixture
def crowded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """A store with many messages, some of them dead."""
    monkeypatch.setenv("HOLDFAST_STORE__PATH", str(tmp_path / "store"))
    accepted: list[Message] = []

    async def fill(desk: Desk) -> None:
        for number in range(MANY):
            desk.clock.at += number % 2
            accepted.append(desk.message(HOSTS[number % 3]))
        await desk.together(*(Accept(message) for message in accepted))
        dead = (Fail(active(message), attempt(), EXHAUSTED, lane(message.lane)) for message in accepted[:: MANY // 50])
        await desk.together(*dead)

    populate(tmp_path / "store", fill)
    return accepted


def count_in(url: str) -> int:
    try:
        [(number,)] = rows(url, "SELECT count(*) FROM messages")
    except psycopg.errors.UndefinedTable:
        return 0
    return int(str(number))


def start(url: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [EXECUTABLE, "handoff", "--to", url, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_after_repeated_kills_each_message_is_there_once(
    holdfast: Run, crowded: list[Message], database: str, measured: Callable[[str], None]
) -> None:
    killed = 0
    for _ in range(KILLS):
        there = count_in(database)
        with start(database) as process:
            until(lambda there=there, process=process: count_in(database) > there or process.poll() is not None)
            process.kill()
            killed += process.wait() == -signal.SIGKILL
        assert len(ids_in(database)) == len(set(ids_in(database)))
    assert killed == KILLS
    done = holdfast("handoff", "--to", database, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    assert summary["left"] == summary["duplicates"] == 0
    assert ids_in(database) == sorted(message.id for message in crowded)
    assert rows(database, "SELECT count(*) FROM messages WHERE standing = 3") == [(len(crowded[:: MANY // 50]),)]
    measured(f"handoff: of {MANY} messages {summary['already_there']} were given twice after the last of {KILLS} kills")


def test_ctrl_c_prints_the_progress_and_the_next_run_goes_on(
    holdfast: Run, crowded: list[Message], database: str
) -> None:
    with start(database) as process:
        until(lambda: count_in(database))
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=PATIENCE)
    summary = json.loads(out)
    assert (process.returncode, said) == (130, "")
    assert summary["moved"] + summary["left"] == MANY
    assert summary["left"] > 0
    assert holdfast("handoff", "--to", database).returncode == 0
    assert ids_in(database) == sorted(message.id for message in crowded)


def test_when_the_database_is_lost_the_rest_stays(
    holdfast: Run, crowded: list[Message], own_postgres: OwnServer
) -> None:
    database = own_postgres.fresh_database()
    with start(database) as process:
        until(lambda: count_in(database))
        own_postgres.stop("immediate")
        out, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert said.startswith("holdfast: ")
    assert json.loads(out)["left"] > 0
    own_postgres.start()
    assert holdfast("handoff", "--to", database).returncode == 0
    assert ids_in(database) == sorted(message.id for message in crowded)
