"""Operations on their way to a database that fails: whoever waits for one hears of it."""

import psycopg
import pytest
import trio

from contract.builders import RULES, HandClock
from contract.shared import SharedDesk
from harness import PATIENCE
from holdfast.core.errors import CommitFailed
from holdfast.store.postgres.schema import SCHEMA
from store.fleets import rows

WAITS = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


async def test_all_who_wait_hear_that_a_commit_failed(database: str, nursery: trio.Nursery) -> None:
    """Those whose group was under way, and those behind it."""
    desk = SharedDesk(nursery, None, RULES, HandClock(), url=database)
    await desk.open()

    async def accept() -> None:
        with pytest.raises(CommitFailed):
            await desk.accept()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as waiting:
            with psycopg.connect(database) as connection:
                no_row = f"ALTER TABLE {SCHEMA}.messages ADD CONSTRAINT no_row CHECK (false) NOT VALID"
                connection.execute(no_row.encode())
                waiting.start_soon(accept)
                while not rows(database, WAITS):
                    await trio.sleep(0.01)
                waiting.start_soon(accept)
                waiting.start_soon(accept)
                while desk.ledger.pending < 3:
                    await trio.lowlevel.checkpoint()
        await desk.ledger.broken.wait()
    assert desk.ledger.failed is not None
