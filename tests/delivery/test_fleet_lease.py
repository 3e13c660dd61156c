"""What a replica has claimed is its own while its lease lasts, and then anybody else's."""

from collections import Counter
from collections.abc import Iterator

import pytest
import trio

from cable import Cable
from delivery.fleet import BEAT, LEASE, Replica, fleet
from holdfast.core.errors import StoreAway
from holdfast.core.message import State
from sim.world import HOST, NO_TRIPS, hang, settle, slow

TAKEN_OVER = LEASE + 2 * BEAT
"""Seconds after which what a replica had is another's, at the latest."""


@pytest.fixture
def cable(database: str) -> Iterator[Cable]:
    cable = Cable(database)
    yield cable
    cable.close()


async def states(replica: Replica, ids: list[str]) -> Counter[State]:
    return Counter([await replica.state(id) for id in ids])


async def test_what_a_replica_had_that_is_cut_off_is_taken_over(
    database: str, cable: Cable, autojump_clock: object
) -> None:
    it = fleet(database, delivery={"per_host": 4})
    it.scripts[HOST] = hang
    async with it.running(1) as [there], it.replica(cable) as gone:
        await trio.sleep(3 * BEAT)
        ids = await gone.accept_many(10)
        await settle()
        assert gone.made
        first = gone.ledger.number
        it.scripts[HOST] = 200
        cable.cut()
        begun = len(gone.made)
        await it.until(lambda: there.tally.delivered == 10, TAKEN_OVER + BEAT)
        assert await states(there, ids) == {State.DELIVERED: 10}
        # Nothing began there after the end of its lease; what was under way went on.
        assert len(gone.made) == begun
        assert gone.held
        cable.mend()
        await it.until(lambda: gone.ledger.number not in (0, first), 3)
        # Attempts that were under way have failed by now, or end later: nobody counts them.
        await trio.sleep(30)
        assert gone.tally.fenced == begun
        assert (await there.circuit()).consecutive_failures == 0
        assert gone.held == 0
    assert max(it.sent().values()) <= 2


async def test_nothing_begins_after_the_end_of_the_lease(database: str, cable: Cable, autojump_clock: object) -> None:
    it = fleet(database, delivery={"per_host": 1}, circuit=NO_TRIPS)
    it.scripts[HOST] = slow(0.5)
    async with it.replica(cable) as alone:
        await alone.accept_many(40)
        await trio.sleep(3.2)
        cable.cut()
        cut_at = alone.now
        await trio.sleep(20)
        assert cut_at < alone.made[-1] < cut_at + LEASE
        assert len(set(it.sent())) == len(it.requests)
        cable.mend()
        await it.until(lambda: alone.tally.delivered >= 40)
        # Its claims were nobody else's: it goes on under the same number, and nothing is sent twice.
        assert alone.tally.fenced == 0
    assert max(it.sent().values()) == 1


async def test_outcomes_are_recorded_when_the_store_is_back(
    database: str, cable: Cable, autojump_clock: object
) -> None:
    it = fleet(database)
    it.scripts[HOST] = slow(2)
    async with it.replica(cable) as alone:
        ids = await alone.accept_many(5)
        await settle()
        cable.cut()
        await trio.sleep(3)
        with pytest.raises(StoreAway):
            await alone.accept()
        cable.mend()
        await trio.sleep(2)
        assert await states(alone, ids) == {State.DELIVERED: 5}
    assert max(it.sent().values()) == 1


async def test_what_is_in_memory_of_a_replica_that_was_taken_for_dead_is_forgotten(
    database: str, cable: Cable, autojump_clock: object
) -> None:
    it = fleet(database, delivery={"per_host": 2})
    it.scripts[HOST] = slow(25)
    async with it.replica(cable) as gone:
        ids = await gone.accept_many(8)
        await settle()
        assert (gone.held, len(gone.made)) == (8, 2)
        cable.cut()
        it.scripts[HOST] = slow(0.1)
        async with it.replica() as other:
            await it.until(lambda: other.tally.delivered == 8, TAKEN_OVER + LEASE)
            cable.mend()
            await trio.sleep(2 * BEAT)
            assert gone.held == 2
            await trio.sleep(30)
            assert gone.held == 0
            assert await states(other, ids) == {State.DELIVERED: 8}
    assert sum(it.sent().values()) == 8 + 2


async def test_a_replica_that_ends_gives_back_what_it_has_not_begun(database: str, autojump_clock: object) -> None:
    it = fleet(database, delivery={"per_host": 2})
    it.scripts[HOST] = slow(5)
    async with it.running(1) as [there]:
        async with it.replica() as leaving:
            await trio.sleep(3 * BEAT)
            await leaving.accept_many(6)
            await settle()
            assert leaving.held == 6
            it.scripts[HOST] = 200
        began = there.now
        await it.until(lambda: there.tally.delivered == 6, LEASE)
        assert there.now - began < 3 * BEAT
    assert sum(it.sent().values()) == 6 + 1


async def test_a_drain_ends_though_others_have_work(database: str, autojump_clock: object) -> None:
    it = fleet(database, delivery={"per_host": 1})
    it.scripts[HOST] = slow(2)
    async with it.running(2) as replicas:
        for replica in replicas:
            await replica.accept_many(10)
        await trio.sleep(3)
        idle = min(replicas, key=lambda replica: len(replica.made))
        assert not idle.made
        with trio.fail_after(2 * BEAT):
            await idle.dispatcher.wait_quiet()
        assert it.open[HOST] == 1


@pytest.mark.parametrize("what", ["accept", "outcome", "claim"])
async def test_a_commit_whose_answer_is_lost_loses_and_repeats_nothing(
    what: str, database: str, cable: Cable, autojump_clock: object
) -> None:
    it = fleet(database)
    it.scripts[HOST] = slow(0.3)
    async with it.replica(cable) as alone:
        if what == "claim":
            await alone.dispatcher.freeze(HOST, HOST)
        await trio.sleep(1.5)
        if what == "accept":
            cable.loses_next_commit = True
            with pytest.raises(StoreAway):
                await alone.accept()
        else:
            await alone.accept()
        if what == "claim":
            await alone.dispatcher.unfreeze(HOST, HOST)
        if what == "outcome":
            await settle()
            await trio.sleep(0.1)
        if what != "accept":
            cable.loses_next_commit = True
        await trio.sleep(10)
        assert not cable.loses_next_commit
        assert len(it.requests) == 1
        assert (await alone.ledger.statistics()).waiting == 0
        assert not alone.held


async def test_nothing_expires_for_a_while_after_the_store_was_away(
    database: str, cable: Cable, autojump_clock: object
) -> None:
    it = fleet(database, circuit={"probe_every": "20s"}, retry={"expire_after": "40s"})
    async with it.replica(cable) as alone:
        await alone.dispatcher.freeze(HOST, HOST)
        ids = await alone.accept_many(4)
        await trio.sleep(25)
        cable.cut()
        await trio.sleep(60)
        cable.mend()
        await trio.sleep(18)
        assert await states(alone, ids) == {State.HELD: 4}
        await trio.sleep(10)
        assert await states(alone, ids) == {State.DEAD: 4}
