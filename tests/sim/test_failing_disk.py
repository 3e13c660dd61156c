"""A disk that fails while nothing waits for it ends the process, and nothing else does."""

import trio

from holdfast.core.circuit import CircuitState
from holdfast.core.errors import CommitFailed
from holdfast.core.message import MessageState
from tests.sim.world import HOST, HOUR, MINUTE, id_text, settle, world


async def test_a_disk_failure_at_shutdown_ends_the_process(autojump_clock: object) -> None:
    it = world()
    it.compose()
    async with trio.open_nursery() as nursery:
        await nursery.start(it.ledger.run)
        nursery.cancel_scope.cancel()
        it.ledger.submit(it.accepting())
        it.engine.fail_next.append(CommitFailed("no disk"))
    assert it.ledger.broken.is_set()


async def test_a_disk_failure_during_the_sweep_ends_the_process(autojump_clock: object) -> None:
    it = world(retention={"delivered": "1h"})
    async with it.gateway():
        await it.accept()
        await it.sleep_to(30 * MINUTE)
        it.engine.fail_next.append(CommitFailed("no disk"))
        await it.sleep_to(2 * HOUR)
    assert it.ledger.failed is not None


async def test_a_disk_failure_when_messages_expire_ends_the_process(autojump_clock: object) -> None:
    it = world(retry={"expire_after": "1h"})
    async with it.gateway():
        await it.delivery.control.freeze(HOST, HOST)
        id = await it.accept()
        await it.sleep_to(30 * MINUTE)
        it.engine.fail_next.append(CommitFailed("no disk"))
        await it.sleep_to(2 * HOUR)
    assert it.ledger.failed is not None
    async with it.gateway():
        assert await it.circuit_state() is CircuitState.FROZEN
        assert await it.state(id) is MessageState.HELD


async def test_messages_committed_after_delivery_has_ended_wait_for_the_next_start(autojump_clock: object) -> None:
    it = world()
    async with it.gateway():
        await it.accept()
        await settle()
        late = it.accepting()
        it.ledger.submit(late)
    assert len(it.requests) == 1
    async with it.gateway():
        await settle()
        assert await it.state(id_text(late.message.id)) is MessageState.DELIVERED
