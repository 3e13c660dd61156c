"""Messages go from an embedded store to a database: whole, in order, and once, whatever ends in between."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio
from pytest import fixture, mark, raises

from holdfast.core.errors import StoreUnreachable
from holdfast.core.message import MessageState, Place, Standing
from holdfast.store.port import Accept, Accepted, Deliver, DropMessages, Duplicate, Fail, MessageFilter
from holdfast.store.transfer import PAGE, StoredMessage, Transferred, transfer_to_database
from tests.contract import consistency_postgres as consistency
from tests.contract.builders import DAY, HOST, HOUR, MINUTE, NOW, RULES, Desk, HandClock, attempt, lane, retry_at
from tests.store.fleets import Replica, every, fleet, ids_in, keyed, sidecar
from tests.store.populated import build

OTHER = "other:443"
STATES = {
    "active": MessageState.QUEUED,
    "waiting": MessageState.QUEUED,
    "retry": MessageState.RETRYING,
    "dead": MessageState.DEAD,
}


@fixture
def populated(tmp_path: Path) -> Path:
    """The folder of a store with a message in every state."""
    return build(tmp_path / "store").folder


def arrived(place: Place) -> Place:
    """What waited for its turn alone is in the memory of its new owner now."""
    return place._replace(standing=Standing.ACTIVE) if place.standing is Standing.WAITING else place


async def move(desk: Desk, store: Replica) -> Transferred:
    moved = Transferred()
    await transfer_to_database(desk.ledger, store.take_in, moved)
    return moved


# -- what arrives ------------------------------------------------------------------------------------------------------


async def test_whatever_is_not_delivered_arrives_with_all_that_is_known_of_it(populated: Path, database: str) -> None:
    clock = HandClock()
    async with sidecar(populated, clock) as desk, fleet(database, clock) as store:
        before = await every(desk)
        assert {each.place.standing for each in before} == set(STATES) - {"active"}
        moved = await move(desk, store)
        assert (moved.count, moved.dead, moved.known, moved.left) == (15, 2, 0, {})
        assert await every(desk) == []
        assert ids_in(database) == [each.message.id for each in before]
        for each in before:
            view = await store.message_view(each.message.id)
            assert view is not None
            assert (view.message, view.place) == (each.message, arrived(each.place))
            assert (view.attempts, view.dead_reason) == (each.attempts, each.reason)
        assert (await move(desk, store)).count == 0
    consistency.check(database, RULES, clock.at)


async def test_circuits_stay_behind(populated: Path, database: str) -> None:
    clock = HandClock()
    async with sidecar(populated, clock) as desk, fleet(database, clock) as store:
        await move(desk, store)
        assert await store.circuits(None, None, 100) == ([], None)


async def test_each_host_has_its_messages_in_the_order_of_acceptance(tmp_path: Path, database: str) -> None:
    clock = HandClock()
    async with sidecar(tmp_path / "store", clock) as desk, fleet(database, clock) as store:
        for number in range(PAGE + 50):
            await desk.accept(HOST if number % 3 else OTHER)
            clock.at += number % 2
        moved = await move(desk, store)
        assert moved.count == PAGE + 50
        for lane in (HOST, OTHER):
            sent = [message.id for message in desk.messages if message.lane == lane]
            assert [entry.message.id for entry in await store.given(lane, len(sent))] == sent


async def test_attempts_go_on_where_they_were(tmp_path: Path, database: str) -> None:
    clock = HandClock()
    async with sidecar(tmp_path / "store", clock) as desk, fleet(database, clock) as store:
        entry = await desk.retrying(NOW + HOUR, retry=1)
        await move(desk, store)
        [came] = await store.given(HOST, 1)
        assert came.place == entry.place._replace(standing=Standing.ACTIVE)
        await store.perform(Fail(came, attempt(2), retry_at(2, NOW + 2 * HOUR), lane()))
        view = await store.message_view(entry.message.id)
        assert view is not None
        assert [each.number for each in view.attempts] == [1, 2]


# -- once --------------------------------------------------------------------------------------------------------------


class Cut:
    """A database whose answer gets lost after it has done what was asked."""

    def __init__(self, store: Replica) -> None:
        self._store = store

    async def take_in(self, page: Sequence[StoredMessage]) -> list[Any]:
        await self._store.take_in(page)
        raise StoreUnreachable("cut off")


async def test_what_was_taken_and_not_forgotten_is_known_the_second_time(populated: Path, database: str) -> None:
    clock = HandClock()
    async with sidecar(populated, clock) as desk, fleet(database, clock) as store:
        before = await every(desk)
        with raises(StoreUnreachable):
            await transfer_to_database(desk.ledger, Cut(store).take_in, Transferred())
        assert await every(desk) == before
        moved = await move(desk, store)
        assert (moved.count, moved.known, moved.duplicates) == (15, 15, 0)
        assert await every(desk) == []
        assert len(ids_in(database)) == 15
    consistency.check(database, RULES, clock.at)


@mark.parametrize("end", ["delivered", "dropped"])
async def test_what_came_to_its_end_there_is_not_taken_again(tmp_path: Path, database: str, end: str) -> None:
    clock = HandClock()
    async with sidecar(tmp_path / "store", clock) as desk, fleet(database, clock) as store:
        await desk.accept()
        with raises(StoreUnreachable):
            await transfer_to_database(desk.ledger, Cut(store).take_in, Transferred())
        [entry] = await store.given(HOST, 1)
        if end == "delivered":
            await store.perform(Deliver(entry, attempt(), None))
        else:
            await store.perform(DropMessages(MessageFilter(id=entry.message.id), 1))
        assert (await move(desk, store)).known == 1
        assert ids_in(database) == []
        assert await every(desk) == []


async def test_two_that_bring_the_same_bring_it_once(tmp_path: Path, database: str) -> None:
    """As a process that was killed and the one after it: what the first one asked for may still be under way."""
    clock = HandClock()
    async with sidecar(tmp_path / "store", clock) as desk, fleet(database, clock) as store, fleet(database, clock) as b:
        for _ in range(20):
            await desk.accept()
        page = await every(desk)
        async with trio.open_nursery() as nursery:
            for each in (store, b):
                nursery.start_soon(each.take_in, page)
        assert ids_in(database) == [each.message.id for each in page]
    consistency.check(database, RULES, clock.at)


# -- keys --------------------------------------------------------------------------------------------------------------


async def test_a_key_goes_on_answering_there(tmp_path: Path, database: str) -> None:
    clock = HandClock()
    async with sidecar(tmp_path / "store", clock) as desk, fleet(database, clock) as store:
        first = await desk.accept(HOST, **keyed("k", HOST))
        await move(desk, store)
        again = desk.message(HOST)
        assert await store.perform(Accept(again, keyed("k", HOST)["key"])) == Duplicate(first.message.id)
        clock.at = NOW + DAY
        later = desk.message(HOST)
        assert await store.perform(Accept(later, keyed("k", HOST)["key"])) == Accepted(active=True)


async def test_a_routes_key_goes_on_answering_for_that_route_alone(tmp_path: Path, database: str) -> None:
    clock = HandClock()
    async with sidecar(tmp_path / "store", clock) as desk, fleet(database, clock) as store:
        there = desk.message(HOST)
        await store.perform(Accept(there, keyed("k", HOST)["key"]))
        first = await desk.accept(HOST, **keyed("k", HOST, route="billing"))
        moved = await move(desk, store)
        assert (moved.count, moved.duplicates) == (1, 0)
        for route, id in ((None, there.id), ("billing", first.message.id)):
            again = keyed("k", HOST, route=route)["key"]
            assert await store.perform(Accept(desk.message(HOST), again)) == Duplicate(id)


async def test_a_webhook_that_came_to_both_under_one_key_is_one(tmp_path: Path, database: str) -> None:
    clock = HandClock()
    async with sidecar(tmp_path / "store", clock) as desk, fleet(database, clock) as store:
        there = desk.message(HOST)
        await store.perform(Accept(there, keyed("k", HOST)["key"]))
        clock.at += MINUTE
        await desk.accept(HOST, **keyed("k", HOST))
        moved = await move(desk, store)
        assert (moved.count, moved.known, moved.duplicates) == (1, 0, 1)
        assert ids_in(database) == [there.id]
        assert await every(desk) == []


@mark.parametrize(("body", "apart"), [(b"another", MINUTE), (b"{}", DAY)], ids=["another body", "another day"])
async def test_what_was_acknowledged_is_taken_even_if_its_key_is_not_its_own(
    tmp_path: Path, database: str, body: bytes, apart: int
) -> None:
    clock = HandClock()
    async with sidecar(tmp_path / "store", clock) as desk, fleet(database, clock) as store:
        await desk.accept(HOST, **keyed("k", HOST, body))
        clock.at += apart
        there = desk.message(HOST)
        await store.perform(Accept(there, keyed("k", HOST)["key"]))
        assert (await move(desk, store)).duplicates == 0
        assert len(ids_in(database)) == 2
        again = desk.message(HOST)
        assert await store.perform(Accept(again, keyed("k", HOST)["key"])) == Duplicate(there.id)


async def test_a_header_that_a_route_put_there_is_no_key(tmp_path: Path, database: str) -> None:
    clock = HandClock()
    async with sidecar(tmp_path / "store", clock) as desk, fleet(database, clock) as store:
        fixed = keyed("the route's", HOST)["headers"]
        for _ in range(2):
            await desk.accept(HOST, headers=fixed)
            moved = await move(desk, store)
            assert (moved.count, moved.duplicates) == (1, 0)
        assert len(ids_in(database)) == 2


# -- room --------------------------------------------------------------------------------------------------------------


async def test_what_a_host_has_no_room_for_stays_with_all_behind_it(tmp_path: Path, database: str) -> None:
    clock = HandClock()
    large, small = bytes(60_000), b"{}"
    async with sidecar(tmp_path / "store", clock) as desk, fleet(database, clock, size=400_000) as store:
        bodies = [large, large, large, large, small]
        mine = [await desk.accept(HOST, body) for body in bodies]
        others = [await desk.accept(OTHER, small)]
        moved = await move(desk, store)
        assert list(moved.left) == [HOST]
        assert not moved.full
        left = [each.message.id for each in await every(desk)]
        assert left == [entry.message.id for entry in mine[3:]]
        assert ids_in(database) == [entry.message.id for entry in (*mine[:3], *others)]
        for entry in await store.given(HOST, 3):
            await store.perform(Deliver(entry, attempt(), None))
        assert (await move(desk, store)).left == {}
        assert [entry.message.id for entry in await store.given(HOST, 5)][3:] == left
    consistency.check(database, RULES, clock.at)


async def test_a_full_database_takes_nothing_more(tmp_path: Path, database: str) -> None:
    clock = HandClock()
    async with sidecar(tmp_path / "store", clock) as desk, fleet(database, clock, size=20_000) as store:
        for host in "abcdefghijkl":
            await desk.accept(f"{host}:443")
        moved = await move(desk, store)
        assert moved.full
        assert len(ids_in(database)) == moved.count == 5
        assert len(await every(desk)) == 7
