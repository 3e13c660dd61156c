"""A replica that stalls inside a transaction holds locks. The next owner waits for them, but not for long."""

from pathlib import Path

import psycopg
import pytest

from holdfast.core.ownership import SHARDS
from holdfast.store.postgres.schema import VERSION
from tests.support import fork_server
from tests.support.harness import Receiver, running, settings, until

OTHER = 1
"""The number of one that owns everything."""


@pytest.mark.parametrize("pipelined", [False, True], ids=["between two statements", "in a pipeline"])
def test_the_sessions_of_a_stalled_replica_are_ended(
    tmp_path: Path, receiver: Receiver, database: str, pipelined: bool
) -> None:
    assert fork_server.run("migrate", env=settings(tmp_path, store__url=database)).returncode == 0
    register_other(database)
    name = "holdfast outcomes other:1"
    with (
        psycopg.connect(database, options="-c search_path=holdfast", application_name=name) as other,
        running(tmp_path / "store", store__url=database) as gateway,
    ):
        lock(other, pipelined=pipelined)
        id = gateway.post(f"{receiver.url}/hook").json()["id"]
        until(lambda: gateway.message(id)["state"] == "delivered")
        with pytest.raises(psycopg.OperationalError):
            other.execute("SELECT 1")


def register_other(database: str) -> None:
    with psycopg.connect(database, options="-c search_path=holdfast") as connection:
        connection.execute(
            """INSERT INTO members (number, name, delivers, version, tables, started_at, lease_until, renewals)
            VALUES (%s, 'other:1', true, '', %s, clock_timestamp(), clock_timestamp(), 0)""",
            (OTHER, VERSION),
        )
        connection.execute("INSERT INTO fences (number, writes) VALUES (%s, 0)", (OTHER,))
        connection.execute(
            "INSERT INTO shards (shard, owner, epoch) SELECT v, %s, 1 FROM generate_series(0, %s) AS v",
            (OTHER, SHARDS - 1),
        )


def lock(connection: psycopg.Connection, *, pipelined: bool) -> None:
    """Pass the fence, and say nothing more."""
    statement = "UPDATE fences SET writes = writes + 1 WHERE number = %s RETURNING 1"
    if not pipelined:
        assert connection.execute(statement, (OTHER,)).fetchall()
        return
    # Its end is never sent, as if the process had been stopped before.
    pipeline = connection.pipeline()
    pipeline.__enter__()
    assert connection.execute(statement, (OTHER,)).fetchall()
