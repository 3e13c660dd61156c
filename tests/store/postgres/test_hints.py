"""How often the owners of others' hosts are notified."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio

from holdfast.core.message import Message, MessageId
from holdfast.store.postgres.arrivals import HELD_AT_MOST, HELD_FOR_EACH, Hints
from tests.contract.builders import HOST, NOW

A_BIT = 0.001
MESSAGES = [
    Message(bytes(15) + bytes([number]), HOST, HOST, "https", HOST, b"/hook", "POST", (), b"{}", NOW, NOW)
    for number in range(3)
]


class Desk:
    """What was sent, and when."""

    def __init__(self, replicas: int) -> None:
        self.sent: list[tuple[float, list[MessageId]]] = []
        self.began = trio.current_time()
        self.hints = Hints(self._send, lambda: replicas)

    async def _send(self, ids: Sequence[MessageId], shards: Sequence[int]) -> None:
        assert len(ids) == len(shards)
        self.sent.append((round(trio.current_time() - self.began, 3), list(ids)))


@asynccontextmanager
async def desk_of(replicas: int) -> AsyncIterator[Desk]:
    desk = Desk(replicas)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.hints.run)
        yield desk
        nursery.cancel_scope.cancel()


async def test_with_one_replica_that_delivers_each_commit_notifies(autojump_clock: object) -> None:
    async with desk_of(1) as desk:
        assert [desk.hints.go_along() for _ in range(3)] == [True] * 3
    assert not desk.sent


@pytest.mark.parametrize(("replicas", "pause"), [(2, HELD_FOR_EACH), (4, 3 * HELD_FOR_EACH), (100, HELD_AT_MOST)])
async def test_what_follows_a_notification_is_held_and_shares_the_next(
    replicas: int, pause: float, autojump_clock: object
) -> None:
    async with desk_of(replicas) as desk:
        assert desk.hints.go_along()
        for message in MESSAGES[:2]:
            assert not desk.hints.go_along()
            desk.hints.hold(message)
        await trio.sleep(pause + A_BIT)
        assert not desk.hints.go_along(), "one has just gone"
        desk.hints.hold(MESSAGES[2])
        await trio.sleep(pause)
        first, second = [message.id for message in MESSAGES[:2]], [MESSAGES[2].id]
        assert desk.sent == [(round(pause, 3), first), (round(2 * pause, 3), second)]
        await trio.sleep(pause)
        assert desk.hints.go_along(), "after a pause nothing is held"
