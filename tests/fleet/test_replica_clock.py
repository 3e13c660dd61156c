"""A replica that starts without its database has only its own clock, which may be wrong."""

from pathlib import Path

import psycopg
import pytest

from tests.crash.wall_clock import WallClock
from tests.support.harness import Receiver, running, until
from tests.support.postgres import OwnServer

HOUR, DAY = 3_600, 86_400
IN_ORDER = 100
"""Seconds that nobody's clock is off by in a test, however slow the machine is."""
AGES = "SELECT extract(epoch FROM clock_timestamp()) - born / 1000.0 FROM holdfast.messages ORDER BY id"
LEASES = "SELECT extract(epoch FROM lease_until - clock_timestamp()) FROM holdfast.members"


@pytest.mark.parametrize(("days", "held_for"), [(40, HOUR), (-40, 0)])
def test_a_start_without_the_database_ignores_a_wrong_clock(
    own_postgres: OwnServer, tmp_path: Path, receiver: Receiver, days: int, held_for: int
) -> None:
    """How long a delay has still to go nobody can tell: it is held no longer than from now on."""
    url = own_postgres.fresh_database()
    own_postgres.stop()
    _, let_go = receiver.hang()
    wall_clock = WallClock(tmp_path)
    wall_clock.set(days * DAY)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in wall_clock.environment.items():
            patch.setenv(name, value)
        starting = running(tmp_path / "store", store__url=url, store__spool="true")
        gateway = starting.__enter__()
    try:
        target = f"{receiver.url}/hook"
        assert gateway.post(target).status_code == 202
        assert gateway.post(target, holdfast_delay="1h").status_code == 202
        own_postgres.start()
        until(lambda: "store_back" in [event["event"] for event in gateway.events()])
        until(lambda: gateway.get("/status").json()["store"]["spool"] == 0)
        with psycopg.connect(url) as connection:
            (at_once,), (delayed,) = connection.execute(AGES).fetchall()
            [(lease,)] = connection.execute(LEASES).fetchall()
        assert abs(at_once) < IN_ORDER
        assert abs(delayed + held_for) < IN_ORDER
        assert lease < IN_ORDER
        # Time goes on, and is the database's.
        let_go.set()
        receiver.answer = lambda request: 200
        id = gateway.post(target).json()["id"]
        until(lambda: gateway.message(id)["state"] == "delivered")
        assert abs(gateway.get("/status").json()["clock"]["offset"] + days * DAY) < IN_ORDER
    finally:
        starting.__exit__(None, None, None)
