"""A replica that lost its hosts can't write, and joins the fleet again: after a stop past its lease, after a cut
connection, and after the database was restored from a copy.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.fleet.pair import Pair, key, told, two
from tests.support.database_link import DatabaseLink
from tests.support.harness import PATIENCE, Received, until
from tests.support.postgres import Server

RULES = {"delivery__timeout": "5m", "delivery__per_host": 2}


class FirstHangs:
    """A receiver that answers 500 to the first request, when it is let go, and 200 to all others."""

    def __init__(self, pair: Pair) -> None:
        self.entered, self.let_go = pair.other.hang()
        self._hang = pair.other.answer
        pair.other.answer = self._answer

    def _answer(self, request: Received) -> int:
        if self.entered.is_set():
            return 200
        self._hang(request)
        return 500


@contextmanager
def out_of_reach(pair: Pair, link: DatabaseLink | None) -> Iterator[None]:
    """The owner of `other` stands still, or is cut off, until another one has taken over; then it is back."""
    pid = pair.there.process.pid
    if link is None:
        os.kill(pid, signal.SIGSTOP)
    else:
        link.cut()
    until(lambda: pair.database.owner(key(pair.other)) == pair.here.process.pid)
    yield
    if link is None:
        os.kill(pid, signal.SIGCONT)
    else:
        link.restore()


@pytest.mark.parametrize("why", ["it stands still", "it is cut off"])
def test_a_replica_can_not_write_to_shards_that_another_has_taken_over(why: str, tmp_path: Path, database: str) -> None:
    with ExitStack() as stack:
        link = stack.enter_context(closing(DatabaseLink(database))) if why == "it is cut off" else None
        pair = stack.enter_context(two(tmp_path, database, link and link.url, **RULES))
        before = pair.numbers(pair.there)
        first = FirstHangs(pair)
        [id] = pair.post(pair.other)
        assert first.entered.wait(PATIENCE)
        with out_of_reach(pair, link):
            until(lambda: pair.states(id) == {"delivered"})
        first.let_go.set()
        (fenced,) = until(lambda: told(pair.there, "outcome_fenced"))
        assert fenced["message"] == id
        until(lambda: pair.numbers(pair.there) - before)
        [attempt] = pair.here.message(id)["attempts"]
        assert attempt["status"] == 200
        assert pair.here.get(f"/circuits/{key(pair.other)}").json()["consecutive_failures"] == 0
        until(pair.database.is_shared_out)
        again = pair.post(pair.other, 3) + pair.post(pair.own, 3)
        until(lambda: pair.states(*again) == {"delivered"})
        assert len(pair.other.requests) == 2 + 3


def test_a_restored_database_accepts_no_running_replica(tmp_path: Path, postgres: Server) -> None:
    """What it knows of was acknowledged before the copy, and is delivered."""
    database = postgres.fresh_database()
    with two(tmp_path, database, **RULES) as pair:
        before = pair.numbers(pair.here, pair.there)
        first = FirstHangs(pair)
        [known] = pair.post(pair.other)
        assert first.entered.wait(PATIENCE)
        copy = postgres.copy(database)
        until(lambda: pair.here.get("/readyz").status_code == 200)
        unknown = pair.post(pair.other, 3) + pair.post(pair.own, 3)
        until(lambda: pair.states(*unknown) == {"delivered"})
        postgres.put_back(copy, database)
        until(lambda: pair.numbers(pair.here, pair.there).isdisjoint(before) and pair.database.is_shared_out())
        first.let_go.set()
        (fenced,) = until(lambda: told(pair.there, "outcome_fenced"))
        assert fenced["message"] == known
        until(lambda: pair.states(known) == {"delivered"})
        again = pair.post(pair.other, 3) + pair.post(pair.own, 3)
        until(lambda: pair.states(*again) == {"delivered"})
        assert pair.database.stored() == {}
        assert pair.database.delivered() == {known, *again}
        assert [gateway.stop() for gateway in (pair.here, pair.there)] == [0, 0]
    postgres.drop(database)
