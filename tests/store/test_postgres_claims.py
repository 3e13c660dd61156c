"""Claims that nobody knows of: their answer never arrived, or came for another one on the same connection."""

import threading

import psycopg
import pytest
import trio

from contract.builders import HOST, RULES, HandClock
from contract.shared import SharedDesk
from harness import PATIENCE, until
from holdfast.core.errors import StoreAway
from holdfast.store.port import Ask
from holdfast.store.postgres.connection import Connection, Line
from store.fleets import rows


async def test_claims_whose_answer_was_lost_are_given_back_by_whoever_wants_no_more(
    database: str, nursery: trio.Nursery
) -> None:
    desk = SharedDesk(nursery, None, RULES, HandClock(), url=database)
    await desk.open()
    await desk.accept_waiting(number=5)
    now, store = desk.clock.now(), desk.ledger
    lost = [entry.message.id for entry in (await store.survey([Ask(HOST, now, 5, 0, None, frozenset())]))[0].fresh]
    assert len(lost) == 5
    (view,) = await store.survey([Ask(HOST, now, 0, 0, None, frozenset(lost[:1]))])
    assert (view.fresh, view.more_fresh) == ([], True)
    assert rows(database, "SELECT id FROM messages WHERE owner IS NOT NULL") == [(lost[0],)]
    assert (await store.agenda(now, 10, ())).lanes == [HOST]
    await desk.close()


async def test_whoever_was_given_up_leaves_the_connection_to_the_next(database: str) -> None:
    """It met another transaction in its way, and would try again."""
    line, over = Line(database, "accepts", threaded=True), threading.Event()
    pids: list[int] = []

    def hanging(connection: Connection) -> None:
        pids.append(connection.info.backend_pid)
        assert over.wait(PATIENCE)
        raise psycopg.errors.SerializationFailure

    def next_one(connection: Connection) -> int:
        over.set()
        until(lambda: not rows(database, "SELECT 1 FROM pg_stat_activity WHERE pid = %s", pids))
        return connection.info.backend_pid

    with pytest.raises(StoreAway):
        await line.run(hanging, within=0.1)
    with trio.fail_after(PATIENCE):
        assert await line.run(next_one) not in pids
    assert len(pids) == 1
    line.close()
