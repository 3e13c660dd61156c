"""Records that can't be read are left out and reported; the rest goes on."""

from pytest import mark, raises

from holdfast.core.circuit import CircuitState
from holdfast.core.errors import CorruptRecord
from holdfast.store.embedded.tables import Table
from holdfast.store.port import DeadFilter, Expire, Forget, Purge, ReplayDead
from tests.contract.builders import (
    EVER,
    HOST,
    MINUTE,
    NOW,
    Desk,
    disabled,
    frozen,
    idempotency,
    ids,
    lane,
    retry_at,
    tried,
)
from tests.contract.conftest import embedded

GARBAGE = [b"", b"\xc1", b"\x93\x01\x02", b"\x05", b"\x92\x02\x00", b"garbage" * 10]


@mark.parametrize("garbage", GARBAGE)
async def test_a_broken_message_is_reported_and_the_rest_is_served(desk: Desk, garbage: bytes) -> None:
    waiting = await desk.accept_waiting(number=3)
    desk.spoil_message(waiting[1].message.id, garbage)
    view = await desk.look()
    assert view.fresh == [waiting[0], waiting[2]]
    assert [id for id, _ in view.broken] == ids([waiting[1]])
    assert waiting[1].message.id.hex() in view.broken[0][1]


async def test_a_broken_retry_is_reported_and_the_rest_is_served(desk: Desk) -> None:
    retries = [await desk.retrying(NOW + MINUTE) for _ in range(3)]
    desk.spoil_message(retries[0].message.id)
    view = await desk.look(at=NOW + MINUTE)
    assert view.due == retries[1:]
    assert [id for id, _ in view.broken] == ids(retries[:1])


async def test_a_body_with_a_piece_missing_is_reported(desk: Desk) -> None:
    waiting = await desk.accept_waiting(number=2, body=bytes(10_000))
    desk.cut_body(waiting[0].message.id)
    view = await desk.look()
    assert view.fresh == waiting[1:]
    assert [id for id, _ in view.broken] == ids(waiting[:1])


@embedded("places are records of their own there")
async def test_a_broken_place_is_reported_and_the_rest_is_served(desk: Desk) -> None:
    retries = [await desk.retrying(NOW + MINUTE) for _ in range(2)]
    await desk.save(disabled())
    desk.spoil(Table.PLACES, retries[0].message.id)
    view = await desk.look(at=NOW + MINUTE)
    assert view.due == retries[1:]
    assert view.probe == retries[1]
    assert set(dict(view.broken)) == set(ids(retries[:1]))
    await desk.save(disabled())


async def test_a_broken_message_does_not_stop_the_probes(desk: Desk) -> None:
    waiting = await desk.accept_waiting(number=2)
    await desk.save(disabled())
    desk.spoil_message(waiting[0].message.id)
    assert waiting[1] in [await desk.next_probe() for _ in range(2)]


async def test_a_broken_active_message_does_not_stop_a_start(desk: Desk) -> None:
    accepted = [await desk.accept() for _ in range(3)]
    desk.spoil_message(accepted[1].message.id)
    await desk.restart()
    view = await desk.look()
    assert ids(view.fresh) == ids([accepted[0], accepted[2]])
    assert [id for id, _ in view.broken] == ids(accepted[1:2])


async def test_a_broken_lane_starts_anew(desk: Desk) -> None:
    waiting = await desk.accept_waiting()
    await desk.save(disabled())
    desk.spoil_lane(HOST)
    view = await desk.look()
    assert (view.record, view.fresh) == (None, waiting)
    assert HOST in view.broken[0][1]
    assert await desk.ledger.circuit(HOST) is None
    await desk.accept()
    await desk.save(lane())
    view = await desk.look()
    assert view.record is not None
    assert (view.record.circuit.state, view.broken) == (CircuitState.ENABLED, [])
    assert await desk.wakes_at(NOW)


async def test_a_broken_lane_does_not_hide_the_others(desk: Desk) -> None:
    await desk.save(disabled("a"), disabled("b"), disabled("c"))
    desk.spoil_lane("b")
    for state in (None, CircuitState.DISABLED):
        page, _ = await desk.ledger.circuits(state, None, 10)
        assert [view.record.key for view in page] == ["a", "c"]


async def test_a_broken_lane_with_nothing_waiting_can_be_forgotten(desk: Desk) -> None:
    await desk.save(lane())
    desk.spoil_lane(HOST)
    assert await desk.ledger.perform(Forget(HOST)) is True


async def test_a_broken_message_has_no_story_and_hides_no_other(desk: Desk) -> None:
    entries = [await desk.accept() for _ in range(3)]
    desk.spoil_message(entries[1].message.id)
    with raises(CorruptRecord):
        await desk.ledger.message_view(entries[1].message.id)
    page, _ = await desk.ledger.message_views(None, None, None, 10)
    assert [view.message.id for view in page] == ids([entries[0], entries[2]])


async def test_a_broken_dead_letter_stays_and_the_rest_is_replayed(desk: Desk) -> None:
    entries = [await desk.accept() for _ in range(3)]
    for entry in entries:
        await desk.add_dead(entry)
    desk.spoil_message(entries[0].message.id)
    assert (await desk.ledger.perform(ReplayDead(DeadFilter(HOST), NOW, 10))).count == 2
    assert ids((await desk.look()).fresh) == ids(entries[1:])
    assert (await desk.ledger.statistics()).dead == 1


async def test_a_broken_dead_letter_is_purged_with_all_that_is_left_of_it(desk: Desk) -> None:
    entry = await desk.accept(body=bytes(10_000), key=idempotency("a"))
    await desk.add_dead(entry)
    desk.spoil_message(entry.message.id)
    assert await desk.ledger.perform(Purge(0, EVER, 0, 10)) == 1
    assert desk.undelivered() == []
    desk.check()


async def test_a_broken_message_expires_like_any_other(desk: Desk) -> None:
    waiting = await desk.accept_waiting(number=2)
    await desk.save(frozen())
    desk.spoil_message(waiting[0].message.id)
    assert await desk.ledger.perform(Expire(HOST, EVER, NOW, 10)) == ids(waiting)


async def test_a_broken_attempt_does_not_stop_the_next(desk: Desk) -> None:
    entry = await desk.accept()
    for attempts in range(3):
        await desk.fail(tried(entry, attempts), None)
    desk.spoil_attempt(entry.message.id, 2)
    await desk.fail(tried(entry, 3), retry_at(1, NOW))
    assert ids((await desk.look()).due) == ids([entry])
