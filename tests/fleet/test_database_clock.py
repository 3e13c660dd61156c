"""The database's clock jumps under two replicas: leases, retries and waiting messages are not affected."""

import shutil
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.crash.wall_clock import WallClock
from tests.support.harness import Gateway, Receiver, running, until
from tests.support.postgres import OwnServer

DAY = 86_400
SETTLED = 7
"""Renewals after which a replica does not follow a jump any more."""
IN_ORDER = 100
"""Seconds that nobody's clock is off by in a test, however slow the machine is."""
KEYS: dict[str, object] = {
    "retry__base": "200ms",
    "retry__expire_after": "5h",
    "retry__max_retries": 1,
    "retention__dead": "5h",
    "circuit__probe_every": "1s",  # and so long nothing expires after a start
    "circuit__min_attempts": 1_000,
    "circuit__disable_after": 1_000,
}


class Database:
    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, options="-c search_path=holdfast") as connection:
            return connection.execute(query.encode()).fetchall()

    def members(self) -> set[int]:
        return {number for (number,) in self.ask("SELECT number FROM members")}

    def renewals(self) -> set[tuple[int, int]]:
        return {(number, renewal) for number, renewal in self.ask("SELECT number, renewals FROM members")}

    def beats(self, count: int) -> None:
        """Wait until each replica has renewed its lease so often."""
        for _ in range(count):
            before = self.renewals()
            until(lambda before=before: not before & self.renewals())

    def owners(self) -> set[int]:
        return {owner for (owner,) in self.ask("SELECT owner FROM shards")}


@pytest.fixture
def clock(own_postgres: OwnServer) -> Iterator[Callable[[int], None]]:
    """Sets the database's clock, in seconds ahead of the right time."""
    folder = own_postgres.folder / "clock"
    folder.mkdir(mode=0o755)
    shifted = WallClock(folder)
    own_postgres.stop()
    own_postgres.start(**shifted.environment)
    yield shifted.set
    shifted.set(0)
    own_postgres.stop()
    shutil.rmtree(folder)


def jumps(gateway: Gateway) -> list[int]:
    """That it told of: not those that the other one had put right before it looked."""
    return [round(event["jump"]) for event in gateway.events() if event["event"] == "clock_jumped"]


def test_a_jump_of_the_database_s_clock_changes_nothing(
    own_postgres: OwnServer, clock: Callable[[int], None], tmp_path: Path, receiver: Receiver
) -> None:
    database = Database(own_postgres.fresh_database())
    keys = {"store__url": database.url, **KEYS}
    failing: set[bytes] = {b"dead"}

    def answer(request: Any) -> int:
        """Those of `failing` fail, `dead` again and again, and all others at first alone."""
        is_first = request.body not in failing
        failing.add(request.body)
        return 500 if is_first or request.body == b"dead" else 200

    receiver.answer = answer

    def goes_through(gateway: Gateway, body: bytes) -> None:
        """With a retry: time goes on."""
        id = gateway.post(f"{receiver.url}/hook", body).json()["id"]
        until(lambda: gateway.message(id)["state"] == "delivered")
        accepted = datetime.fromisoformat(gateway.message(id)["accepted_at"]).timestamp()
        assert abs(accepted - datetime.now().timestamp()) < IN_ORDER

    with running(tmp_path / "one", **keys) as one, running(tmp_path / "two", **keys) as two:
        until(lambda: two.call("POST", "/v1/circuits/127.0.0.1:9/freeze").status_code == 200)
        held = one.post("http://127.0.0.1:9/hook").json()["id"]
        dead = one.post(f"{receiver.url}/hook", b"dead").json()["id"]
        until(lambda: one.message(dead)["state"] == "dead")
        until(lambda: len(database.members()) == 2)
        database.beats(SETTLED)
        members = database.members()

        told = []
        for ahead, jump in ((40 * DAY, 40 * DAY), (0, -40 * DAY), (10, 10), (-50, -60)):
            clock(ahead)
            told.append(jump)
            until(lambda: {*jumps(one), *jumps(two)} == {*told})
            database.beats(2)
            for gateway in (one, two):
                goes_through(gateway, f"{ahead} {gateway.ingest}".encode())
            assert one.message(held)["state"] == "held"
            assert one.message(dead)["state"] == "dead"
            assert database.members() == members

        # Now 60 s behind what leases were last written by: whoever is killed is taken over all the same.
        clock(-110)
        two.kill()
        until(lambda: len(database.owners()) == 1)
        goes_through(one, b"after all")


def test_a_replica_that_starts_after_a_jump_has_the_fleet_s_time(
    own_postgres: OwnServer, clock: Callable[[int], None], tmp_path: Path, receiver: Receiver
) -> None:
    """While another is there; the first to come believes a clock that is ahead, and goes on from there if it is not."""
    database = Database(own_postgres.fresh_database())

    def offset(gateway: Gateway) -> float:
        return float(gateway.get("/status").json()["clock"]["offset"])

    with running(tmp_path / "one", store__url=database.url) as one:
        database.beats(SETTLED)
        clock(DAY)
        until(lambda: jumps(one))
        database.beats(2)
        with running(tmp_path / "two", store__url=database.url) as two:
            assert abs(offset(two)) < IN_ORDER
            id = two.post(f"{receiver.url}/hook").json()["id"]
            until(lambda: two.message(id)["state"] == "delivered")
            assert two.stop() == 0
        assert one.stop() == 0
    with running(tmp_path / "one", store__url=database.url) as one:
        assert abs(offset(one) - DAY) < IN_ORDER
        until(lambda: database.owners() != {None})
        database.beats(2)
        assert one.stop() == 0
    clock(0)
    with running(tmp_path / "one", store__url=database.url) as one:
        assert abs(offset(one) - DAY) < IN_ORDER
        id = one.post(f"{receiver.url}/hook").json()["id"]
        until(lambda: one.message(id)["state"] == "delivered")
