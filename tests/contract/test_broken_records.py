"""A record that can't be read is set aside and reported, and the rest goes on."""

from pytest import mark, raises

from contract.builders import EVER, HOST, MINUTE, NOW, Desk, disabled, dump, idempotency, ids, lane, retry_at
from contract.conftest import embedded
from holdfast.core.circuit import CircuitState
from holdfast.core.errors import CorruptRecord
from holdfast.core.message import Entry
from holdfast.store.port import DeadFilter, Expire, Forget, Purge, ReplayDead
from holdfast.store.tables import Table

pytestmark = embedded("a server keeps the forms of its tables, and has checksums of its own")

GARBAGE = [b"", b"\xc1", b"\x93\x01\x02", b"\x05", b"\x92\x02\x00", b"garbage" * 10]


def spoil(desk: Desk, table: Table, key: bytes, value: bytes = b"\xc1garbage") -> None:
    with (writing := desk.engine.write()) as transaction:
        transaction.put(table, key, value)
        writing.commit()


def spoil_message(desk: Desk, entry: Entry, value: bytes = b"\xc1garbage") -> None:
    spoil(desk, Table.MESSAGES, entry.message.id, value)


@mark.parametrize("garbage", GARBAGE)
async def test_a_broken_message_is_reported_and_the_rest_is_served(desk: Desk, garbage: bytes) -> None:
    waiting = await desk.accept_waiting(number=3)
    spoil_message(desk, waiting[1], garbage)
    view = await desk.look()
    assert view.fresh == [waiting[0], waiting[2]]
    assert [id for id, _ in view.broken] == ids([waiting[1]])
    assert waiting[1].message.id.hex() in view.broken[0][1]


async def test_a_broken_retry_is_reported_and_the_rest_is_served(desk: Desk) -> None:
    retries = [await desk.retrying(NOW + MINUTE) for _ in range(3)]
    spoil_message(desk, retries[0])
    view = await desk.look(at=NOW + MINUTE)
    assert view.due == retries[1:]
    assert [id for id, _ in view.broken] == ids(retries[:1])


async def test_a_body_with_a_piece_missing_is_reported(desk: Desk) -> None:
    waiting = await desk.accept_waiting(number=2, body=bytes(10_000))
    with (writing := desk.engine.write()) as transaction:
        transaction.delete(Table.BODIES, waiting[0].message.id + b"\0\1")
        writing.commit()
    view = await desk.look()
    assert view.fresh == waiting[1:]
    assert [id for id, _ in view.broken] == ids(waiting[:1])


async def test_a_broken_place_is_reported_and_the_rest_is_served(desk: Desk) -> None:
    retries = [await desk.retrying(NOW + MINUTE) for _ in range(2)]
    await desk.save(disabled())
    spoil(desk, Table.PLACES, retries[0].message.id)
    view = await desk.look(at=NOW + MINUTE)
    assert view.due == retries[1:]
    assert view.probe == retries[1]
    assert set(dict(view.broken)) == set(ids(retries[:1]))
    await desk.save(disabled())


async def test_a_broken_message_does_not_stop_the_probes(desk: Desk) -> None:
    waiting = await desk.accept_waiting(number=2)
    await desk.save(disabled())
    spoil_message(desk, waiting[0])
    assert (await desk.look()).probe == waiting[1]


async def test_a_broken_active_message_does_not_stop_a_start(desk: Desk) -> None:
    accepted = [await desk.accept() for _ in range(3)]
    spoil_message(desk, accepted[1])
    await desk.restart()
    view = await desk.look()
    assert ids(view.fresh) == ids([accepted[0], accepted[2]])
    assert [id for id, _ in view.broken] == ids(accepted[1:2])


async def test_a_broken_lane_starts_anew(desk: Desk) -> None:
    waiting = await desk.accept_waiting()
    await desk.save(disabled())
    spoil(desk, Table.LANES, HOST.encode())
    view = await desk.look()
    assert (view.record, view.fresh) == (None, waiting)
    assert HOST in view.broken[0][1]
    assert await desk.ledger.circuit(HOST) is None
    await desk.accept()
    await desk.save(lane())
    view = await desk.look()
    assert view.record is not None
    assert (view.record.circuit.state, view.broken) == (CircuitState.ENABLED, [])
    assert await desk.first_wake() == NOW


async def test_a_broken_lane_does_not_hide_the_others(desk: Desk) -> None:
    await desk.save(disabled("a"), disabled("b"), disabled("c"))
    spoil(desk, Table.LANES, b"b")
    for state in (None, CircuitState.DISABLED):
        page, _ = await desk.ledger.circuits(state, None, 10)
        assert [view.record.key for view in page] == ["a", "c"]


async def test_a_broken_lane_with_nothing_waiting_can_be_forgotten(desk: Desk) -> None:
    await desk.save(lane())
    spoil(desk, Table.LANES, HOST.encode())
    assert await desk.ledger.perform(Forget(HOST)) is True


async def test_a_broken_message_has_no_story_and_hides_no_other(desk: Desk) -> None:
    entries = [await desk.accept() for _ in range(3)]
    spoil_message(desk, entries[1])
    with raises(CorruptRecord):
        await desk.ledger.story(entries[1].message.id)
    page, _ = await desk.ledger.stories(None, None, None, 10)
    assert [story.message.id for story in page] == ids([entries[0], entries[2]])


async def test_a_broken_dead_letter_stays_and_the_rest_is_replayed(desk: Desk) -> None:
    entries = [await desk.accept() for _ in range(3)]
    for entry in entries:
        await desk.bury(entry)
    spoil_message(desk, entries[0])
    assert (await desk.ledger.perform(ReplayDead(DeadFilter(HOST), NOW, 10))).count == 2
    assert ids((await desk.look()).fresh) == ids(entries[1:])
    assert (await desk.ledger.statistics()).dead == 1


async def test_a_broken_dead_letter_is_purged_with_all_that_is_left_of_it(desk: Desk) -> None:
    entry = await desk.accept(body=bytes(10_000), key=idempotency("a"))
    await desk.bury(entry)
    spoil_message(desk, entry)
    assert await desk.ledger.perform(Purge(0, EVER, 0, 10)) == 1
    tables = dump(desk.engine)
    assert all(tables[table] == [] for table in (Table.MESSAGES, Table.BODIES, Table.DEAD, Table.ATTEMPTS))


async def test_a_broken_message_expires_like_any_other(desk: Desk) -> None:
    waiting = await desk.accept_waiting(number=2)
    spoil_message(desk, waiting[0])
    assert await desk.ledger.perform(Expire(HOST, EVER, NOW, 10)) == ids(waiting)


async def test_a_broken_attempt_does_not_stop_the_next(desk: Desk) -> None:
    entry = await desk.accept()
    for number in range(1, 4):
        await desk.fail(entry, None, number=number)
    spoil(desk, Table.ATTEMPTS, entry.message.id + b"\0\2")
    await desk.fail(entry, retry_at(1, NOW), number=4)
    assert ids((await desk.look()).due) == ids([entry])
