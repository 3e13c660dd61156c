"""A replica that stands still in the middle of a transaction has locks that all others wait for, and not for long."""

from pathlib import Path

import psycopg
import pytest

from harness import Receiver, running, until


@pytest.mark.parametrize("pipelined", [False, True], ids=["between two statements", "in a pipeline"])
def test_its_sessions_are_ended(tmp_path: Path, receiver: Receiver, database: str, pipelined: bool) -> None:
    key = f"127.0.0.1:{receiver.port}"
    with running(tmp_path / "store", store__url=database) as gateway:
        first = gateway.post(f"{receiver.url}/first").json()["id"]
        until(lambda: gateway.message(first)["state"] == "delivered")
        name = "holdfast outcomes other:1"
        with psycopg.connect(database, options="-c search_path=holdfast", application_name=name) as other:
            lock(other, key, pipelined=pipelined)
            second = gateway.post(f"{receiver.url}/second").json()["id"]
            until(lambda: gateway.message(second)["state"] == "delivered")
            with pytest.raises(psycopg.OperationalError):
                other.execute("SELECT 1")
    assert [request.path for request in receiver.requests] == ["/first", "/second"]


def lock(connection: psycopg.Connection, lane: str, *, pipelined: bool) -> None:
    """Take a lane's row, and say nothing more."""
    statement = "SELECT lane FROM lanes WHERE lane = %s FOR UPDATE"
    if not pipelined:
        assert connection.execute(statement, (lane,)).fetchall()
        return
    # Its end is never sent, as if the process had been stopped before.
    pipeline = connection.pipeline()
    pipeline.__enter__()
    assert connection.execute(statement, (lane,)).fetchall()
