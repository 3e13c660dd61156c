"""A failed commit leaves no trace, and every task that awaits it gets the error."""

from collections.abc import AsyncIterator

import trio
from pytest import fixture, raises

from holdfast.core.errors import CommitFailed, StoreFull
from holdfast.core.message import MessageState
from holdfast.store.port import Accept, Accepted, Deliver, Duplicate, Fail
from tests.contract.builders import (
    MINUTE,
    NOW,
    RULES,
    Desk,
    attempt,
    dump,
    frozen,
    idempotency,
    ids,
    lane,
    retry_at,
    success,
)
from tests.store.memory import MemoryEngine


@fixture
async def failing(nursery: trio.Nursery) -> AsyncIterator[Desk]:
    """On the engine whose commits can be made to fail."""
    engine = MemoryEngine()
    desk = Desk(nursery, lambda: engine, RULES)
    await desk.open()
    yield desk
    await desk.close()


async def test_outcome_place_and_circuit_fail_together(failing: Desk) -> None:
    entry = await failing.accept()
    before = dump(failing.engine)
    failing.engine.fail_next.append(CommitFailed("no disk"))
    on = frozen()
    on.circuit.consecutive_failures = 7
    with raises(CommitFailed):
        await failing.ledger.perform(Fail(entry, attempt(), retry_at(1, NOW + MINUTE), on))
    assert dump(failing.engine) == before


async def test_a_delivery_that_was_not_committed_leaves_the_queue_as_it_was(failing: Desk) -> None:
    waiting = await failing.accept_waiting(number=3)
    before = dump(failing.engine)
    failing.engine.fail_next.append(CommitFailed("no disk"))
    with raises(CommitFailed):
        await failing.deliver(waiting[1])
    assert dump(failing.engine) == before


async def test_every_task_that_awaits_the_group_or_a_later_one_gets_the_error(
    failing: Desk,
) -> None:
    failing.engine.fail_next.append(CommitFailed("no disk"))
    heard = 0

    async def accept() -> None:
        nonlocal heard
        with raises(CommitFailed):
            await failing.accept()
        heard += 1

    async with trio.open_nursery() as accepting:
        for _ in range(600):
            accepting.start_soon(accept)
    assert heard == 600


async def test_a_failed_commit_is_reported_only_to_those_who_await_it(failing: Desk) -> None:
    entry = await failing.accept()
    told: list[object] = []
    failing.ledger.submit(Deliver(entry, success(), None, done=told.append))
    failing.engine.fail_next.append(CommitFailed("no disk"))
    with raises(CommitFailed):
        await failing.accept()
    assert told == []


async def test_nothing_is_written_after_a_failure(failing: Desk) -> None:
    failing.engine.fail_next.append(CommitFailed("no disk"))
    before = dump(failing.engine)
    for _ in range(2):
        with raises(CommitFailed):
            await failing.accept()
    assert dump(failing.engine) == before
    assert failing.ledger.failed is not None


async def test_a_message_that_was_not_committed_is_not_reported(failing: Desk) -> None:
    failing.engine.fail_next.append(CommitFailed("no disk"))
    with raises(CommitFailed):
        await failing.accept()
    assert failing.recorder.commits == []


async def test_what_was_committed_before_a_failure_is_there_after_it(failing: Desk) -> None:
    entry = await failing.accept()
    failing.engine.fail_next.append(CommitFailed("no disk"))
    with raises(CommitFailed):
        await failing.deliver(entry)
    await failing.restart()
    assert ids((await failing.look()).fresh) == ids([entry])
    await failing.accept()


async def test_a_full_map_keeps_the_outcomes_and_refuses_the_messages(failing: Desk) -> None:
    one, two = [await failing.accept() for _ in range(2)]
    failing.engine.fail_next.append(StoreFull("the map is full"))
    results = await failing.together(
        Accept(failing.message()),
        Deliver(one, success(), None),
        Fail(two, attempt(), retry_at(1, NOW + MINUTE), lane()),
        Accept(failing.message("other:443")),
    )
    assert [type(result) for result in results] == [StoreFull, type(None), type(None), StoreFull]
    assert (await failing.message_view(one)).state is MessageState.DELIVERED
    assert (await failing.message_view(two)).state is MessageState.RETRYING
    assert await failing.ledger.circuit("other:443") is None
    assert await failing.ledger.perform(Accept(failing.message())) == Accepted(active=True)


async def test_on_a_full_map_a_known_key_still_gets_the_first_answer(failing: Desk) -> None:
    entry = await failing.accept(key=idempotency("one"))
    failing.engine.fail_next.append(StoreFull("the map is full"))
    repeated, other = await failing.together(
        Accept(failing.message(), idempotency("one")), Accept(failing.message(), idempotency("two"))
    )
    assert repeated == Duplicate(entry.message.id)
    assert isinstance(other, StoreFull)


async def test_outcomes_that_do_not_fit_go_on_in_smaller_groups(failing: Desk) -> None:
    entries = [await failing.accept() for _ in range(8)]
    before = failing.commits
    failing.engine.fail_next.extend([StoreFull("the map is full")] * 3)
    await failing.together(*(Deliver(entry, success(), None) for entry in entries))
    assert failing.commits - before > 2
    assert [(await failing.message_view(entry)).state for entry in entries] == [MessageState.DELIVERED] * 8


async def test_where_not_even_one_outcome_fits_it_is_kept_and_messages_are_refused(
    failing: Desk, autojump_clock: object
) -> None:
    entry = await failing.accept()
    failing.engine.fail_next.extend([StoreFull("the map is full")] * 100)
    refused: list[object] = []
    failing.ledger.submit(Deliver(entry, success(), None))
    failing.ledger.submit(Accept(failing.message(), done=refused.append))
    await trio.sleep(30)
    assert isinstance(refused[0], StoreFull)
    assert failing.ledger.failed is None
    failing.engine.fail_next.clear()
    await trio.sleep(2)
    assert (await failing.message_view(entry)).state is MessageState.DELIVERED
    assert await failing.ledger.perform(Accept(failing.message())) == Accepted(active=True)


async def test_a_stop_does_not_wait_for_room(failing: Desk, autojump_clock: object) -> None:
    entry = await failing.accept()
    failing.engine.fail_next.extend([StoreFull("the map is full")] * 1_000)
    failing.ledger.submit(Deliver(entry, success(), None))
    await trio.sleep(3)
    await failing.close()
    failing.engine.fail_next.clear()
    await failing.open()
    assert ids((await failing.look()).fresh) == ids([entry])


async def test_a_start_without_room_waits_for_it(failing: Desk, autojump_clock: object) -> None:
    entry = await failing.accept()
    await failing.kill()
    failing.engine.fail_next.extend([StoreFull("the map is full")] * 30)
    await failing.open()
    assert ids((await failing.look()).fresh) == ids([entry])


async def test_a_waiter_that_gave_up_does_not_stop_the_commit(failing: Desk) -> None:
    message = failing.message()
    with trio.CancelScope() as scope:
        scope.cancel()
        await failing.ledger.perform(Accept(message))
    await failing.accept("other:443")
    assert (await failing.message_view(message)).message == message
