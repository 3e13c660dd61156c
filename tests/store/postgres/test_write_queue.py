"""Operations on their way to a database that fails, or in which someone has locked rows: whoever waits hears of it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import trio

from holdfast.core.errors import CommitFailed, StoreError, StoreUnreachable
from holdfast.core.message import Entry, MessageState
from holdfast.store.port import Deliver, DoneOrFailed, Expire, Fail, ReviewLanes, SaveLane
from holdfast.store.postgres.schema import SCHEMA
from tests.contract.builders import MINUTE, NOW, RULES, HandClock, attempt, lane, retry_at, success
from tests.contract.shared import SharedDesk
from tests.store.fleets import fleet, rows
from tests.support.harness import PATIENCE

WAITS = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.mark.parametrize("table", ["messages", "lanes"])
async def test_all_who_wait_hear_that_a_commit_failed(table: str, database: str, nursery: trio.Nursery) -> None:
    """Apps or operators: those whose group was under way, and those behind it."""
    desk = SharedDesk(nursery, None, RULES, HandClock(), url=database)
    await desk.open()

    async def ask() -> None:
        with pytest.raises(CommitFailed):
            await (desk.accept() if table == "messages" else desk.ledger.perform(SaveLane(lane())))

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as waiting:
            with psycopg.connect(database) as connection:
                no_row = f"ALTER TABLE {SCHEMA}.{table} ADD CONSTRAINT no_row CHECK (false) NOT VALID"
                connection.execute(no_row.encode())
                waiting.start_soon(ask)
                while not rows(database, WAITS):
                    await trio.sleep(0.01)
                waiting.start_soon(ask)
                waiting.start_soon(ask)
                while desk.ledger.pending < 3:
                    await trio.lowlevel.checkpoint()
        await desk.ledger.broken.wait()
    assert desk.ledger.failed is not None


# -- rows that someone else has locked ---------------------------------------------------------------------------------

LOCKED, FREE, ALSO_FREE = "locked:443", "free:443", "also-free:443"


class Told(DoneOrFailed):
    """What becomes of operations, in the order in which it is told."""

    def __init__(self) -> None:
        self.results: list[Any] = []

    def __call__(self, result: Any) -> None:
        self.results.append(result)


@pytest.fixture
async def desk(database: str, nursery: trio.Nursery) -> SharedDesk:
    desk = SharedDesk(nursery, None, RULES, HandClock(), url=database)
    await desk.open()
    return desk


@contextmanager
def locked(desk: SharedDesk, what: str = "lanes") -> Iterator[psycopg.Connection]:
    with psycopg.connect(desk.url, options="-c search_path=holdfast") as connection:
        held = connection.execute(f"SELECT 1 FROM {what} WHERE lane = %s FOR UPDATE".encode(), (LOCKED,))
        assert held.fetchall()
        yield connection


async def until(condition: Any) -> None:
    with trio.fail_after(PATIENCE):
        while not condition():
            await trio.sleep(0.01)


async def accepted(desk: SharedDesk, *lanes: str) -> list[Entry]:
    return [await desk.accept(each) for each in lanes]


def fail(desk: SharedDesk, entry: Entry, told: Told, number: int = 1) -> None:
    """One more failed attempt, on its way to the database."""
    entry = entry._replace(place=entry.place._replace(attempts=number - 1))
    made = attempt(number)
    on = lane(entry.message.lane)
    on.circuit.consecutive_failures = number
    desk.ledger.submit(Fail(entry, made, retry_at(number, NOW + number * MINUTE), on, done=told))


async def failures(desk: SharedDesk, lanes: Sequence[str]) -> list[int]:
    views = [await desk.ledger.circuit(each) for each in lanes]
    return [view.record.circuit.consecutive_failures for view in views]


@pytest.mark.parametrize("what", ["lanes", "messages"])
async def test_a_locked_row_holds_up_the_outcomes_of_its_own_host_alone(desk: SharedDesk, what: str) -> None:
    lanes = (LOCKED, FREE, ALSO_FREE)
    entries = await accepted(desk, *lanes)
    waiting, others = Told(), Told()
    with locked(desk, what) as lock:
        for entry in entries:
            fail(desk, entry, waiting if entry.message.lane == LOCKED else others)
        await until(lambda: len(others.results) == 2)
        # What comes later waits only if it is about the same host, and behind what came before.
        for entry in entries:
            fail(desk, entry, waiting if entry.message.lane == LOCKED else others, 2)
        await until(lambda: len(others.results) == 4)
        assert waiting.results == []
        assert await failures(desk, lanes) == [0, 2, 2]
        assert not desk.ledger.unreachable
        assert desk.ledger.pending == 2
        assert (await desk.accept(LOCKED)).message.lane == LOCKED
        lock.rollback()
        await until(lambda: len(waiting.results) == 2)
    assert waiting.results + others.results == [None] * 6
    assert await failures(desk, lanes) == [2, 2, 2]
    assert [(await desk.message_view(entry)).state for entry in entries] == [MessageState.RETRYING] * 3
    desk.check()
    await desk.close()


async def test_deliveries_to_others_are_recorded_beside_a_message_that_is_locked(desk: SharedDesk) -> None:
    entries = await accepted(desk, LOCKED, FREE, ALSO_FREE)
    told = {entry.message.lane: Told() for entry in entries}
    with locked(desk, "messages"):
        for entry in entries:
            desk.ledger.submit(Deliver(entry, success(), None, done=told[entry.message.lane]))
        await until(lambda: told[FREE].results and told[ALSO_FREE].results)
        assert told[LOCKED].results == []
    await until(lambda: told[LOCKED].results)
    assert [(await desk.message_view(entry)).state for entry in entries] == [MessageState.DELIVERED] * 3
    desk.check()
    await desk.close()


async def test_what_is_asked_of_all_lanes_is_refused_while_one_is_locked(desk: SharedDesk) -> None:
    await accepted(desk, LOCKED, FREE)
    with locked(desk):
        with pytest.raises(StoreUnreachable, match="locked by someone else"):
            await desk.perform(ReviewLanes(None, 100))
        assert not desk.ledger.unreachable
    assert await desk.perform(ReviewLanes(None, 100)) is None
    await desk.close()


async def test_expiry_of_a_lane_that_is_locked_waits_for_it(desk: SharedDesk) -> None:
    [entry] = await desk.accept_waiting(LOCKED)
    told = Told()
    with locked(desk):
        desk.ledger.submit(Expire(LOCKED, NOW + MINUTE, NOW + MINUTE, 10, done=told))
        await desk.add_dead(await desk.accept(FREE))
        assert told.results == []
    await until(lambda: told.results)
    assert told.results == [[entry.message.id]]
    await desk.close()


async def test_a_replica_comes_to_own_all_hosts_while_a_row_is_locked(desk: SharedDesk) -> None:
    entries = await accepted(desk, LOCKED, FREE)
    await desk.kill()
    with locked(desk):
        async with fleet(desk.url, desk.clock) as store:
            for entry in entries:
                [came] = await store.given(entry.message.lane, 1)
                assert came == entry


async def test_at_its_end_a_replica_writes_what_is_not_locked_and_tells_the_others(desk: SharedDesk) -> None:
    entries = await accepted(desk, LOCKED, FREE)
    waiting, others = Told(), Told()
    with locked(desk):
        fail(desk, entries[0], waiting)
        fail(desk, entries[1], others)
        await desk.close()
    assert others.results == [None]
    assert [type(result) for result in waiting.results] == [CommitFailed]
    assert isinstance(waiting.results[0], StoreError)
