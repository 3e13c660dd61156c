"""The schedule in virtual time, through the whole of delivery and the store."""

import pytest
import trio

from holdfast.core.message import DeadReason, Kind, State
from sim.world import Request, world

SCHEDULE = [0, 84.8, 254.4, 593.6, 1272, 2628.8, 5342.4, 10769.6, 21624, 43332.8, 86750.4, 173585.6]


async def test_always_503_is_tried_on_schedule_and_then_dead(autojump_clock: object) -> None:
    it = world()
    it.scripts["a.test:80"] = 503
    async with it.gateway():
        id = await it.accept()
        await trio.sleep(200_000)
        assert it.times() == SCHEDULE
        story = await it.story(id)
    assert story.state is State.DEAD
    assert story.dead_reason is DeadReason.EXHAUSTED
    assert [attempt.number for attempt in story.attempts] == list(range(1, 13))
    assert [attempt.kind for attempt in story.attempts] == [Kind.FIRST] + [Kind.RETRY] * 11
    assert all(attempt.status == 503 for attempt in story.attempts)


@pytest.mark.parametrize("recovers_at", range(12))
async def test_recovery_delivers_at_that_attempt_and_never_again(autojump_clock: object, recovers_at: int) -> None:
    it = world()
    moment = SCHEDULE[recovers_at]
    it.scripts["a.test:80"] = lambda request: 200 if request.at >= moment else 500
    async with it.gateway():
        id = await it.accept()
        await trio.sleep(400_000)
        assert it.times() == SCHEDULE[: recovers_at + 1]
        story = await it.story(id) if recovers_at > 10 else None
    if story is not None:
        assert story.state is State.DELIVERED
