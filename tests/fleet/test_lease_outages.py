"""Short and long outages of the database, and how a replica's lease survives them."""

import pytest
import trio

from holdfast.core.message import MessageState
from tests.fleet.virtual_replicas import BEAT, LEASE, Replica, fleet
from tests.sim.world import HOST
from tests.support.database_link import DatabaseLink

RENEWAL = b"\0\0\0\3run\0\0\0\5clock"
"""What the values of a renewal have in them, and nothing else has."""
GRACE = 20
EXPIRE_AFTER = 40


@pytest.mark.parametrize(("away", "has_grace"), [(LEASE / 3, False), (2 * LEASE, True)])
async def test_only_an_outage_longer_than_a_lease_starts_a_grace_period(
    away: float, has_grace: bool, database: str, link: DatabaseLink, autojump_clock: object
) -> None:
    """And not every connection that breaks."""
    it = fleet(database, circuit={"probe_every": f"{GRACE}s"}, retry={"expire_after": f"{EXPIRE_AFTER}s"})
    async with it.replica(link) as alone:
        await alone.delivery.control.freeze(HOST, HOST)
        id = await alone.accept()
        began = alone.now
        await trio.sleep(EXPIRE_AFTER - away - 2)
        link.cut()
        await trio.sleep(away)
        link.restore()
        await trio.sleep(3)
        back = alone.now
        assert await state_at(alone, id, began + EXPIRE_AFTER + 4) is (
            MessageState.HELD if has_grace else MessageState.DEAD
        )
        assert await state_at(alone, id, back + GRACE + 4) is MessageState.DEAD


async def state_at(replica: Replica, id: str, moment: float) -> MessageState:
    await trio.sleep(max(0, moment - replica.now))
    return await replica.state(id)


async def test_a_replica_recognises_its_own_renewal_whose_answer_was_lost(
    database: str, link: DatabaseLink, autojump_clock: object
) -> None:
    it = fleet(database)
    async with it.replica(link) as alone:
        await trio.sleep(2.5 * BEAT)
        number = alone.member
        link.loses_answer_to = RENEWAL
        await trio.sleep(3 * BEAT)
        assert link.loses_answer_to is None
        assert alone.member == number
