"""Random fleets: receivers and operators act at random, replicas join, leave and are cut off."""

from collections import Counter
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import pytest
import trio

from holdfast.core.errors import Fenced, StoreUnreachable
from holdfast.core.message import MessageState
from tests.fleet.virtual_replicas import LEASE, Fleet, Replica, fleet
from tests.sim.world import Request, hang, slow
from tests.support.database_link import DatabaseLink
from tests.support.repetitions import amount

HOSTS = ("a.test:80", "b.test:80", "urls.test:80")
LANES: dict[str, dict[str, Any]] = {
    "a.test:80": {"host": "a.test:80"},
    "b.test:80": {"host": "b.test:80"},
    "http://urls.test:80/1": {"host": "urls.test:80", "path": "/1", "by_url": True},
    "http://urls.test:80/2": {"host": "urls.test:80", "path": "/2", "by_url": True},
}
"""What messages are accepted with, by the circuit that they belong to."""
CONFIG: dict[str, dict[str, Any]] = {
    "delivery": {"per_host": 3, "timeout": "2s"},
    "retry": {"base": "500ms"},
    "circuit": {"min_attempts": 0, "disable_after": 5, "probe_every": "5s"},
}
ANSWERS = (200, 500, slow(0.2), slow(1), slow(1, 503), hang)


class World:
    """A fleet with what its seed does to it."""

    def __init__(self, it: Fleet, seed: int) -> None:
        self.it = it
        self.random = Random(seed)
        self.ids: list[str] = []
        it.scripts.update(dict.fromkeys(HOSTS, self._answer))

    def _answer(self, request: Request) -> Any:
        answer = self.random.choice(ANSWERS) if self.random.random() < 0.5 else 200
        return answer(request) if callable(answer) else answer

    async def go_on(self, replicas: list[Replica], seconds: float) -> None:
        ends = replicas[0].now + seconds
        while replicas[0].now < ends:
            replica, (key, terms) = self.random.choice(replicas), self.random.choice(tuple(LANES.items()))
            if self.random.random() < 0.7:
                self.ids += await replica.accept_many(self.random.randrange(1, 10), **terms)
            else:
                await self._act(replicas, self.random.choice(("freeze", "unfreeze", "probe")), key, terms["host"])
            await trio.sleep(self.random.uniform(0, 1))

    async def _act(self, replicas: list[Replica], act: str, key: str, host: str) -> None:
        """An operator's word to the owner of a host. While it changes there is none, or it is refused."""
        for owner in self.it.owners(host):
            if not any(owner is replica for replica in replicas):
                continue
            with suppress(Fenced, StoreUnreachable):
                await getattr(owner.delivery.control, act)(key, host)

    async def finish(self, replicas: list[Replica]) -> None:
        """Everything heals, and everything is delivered."""
        self.it.scripts.update(dict.fromkeys(HOSTS, 200))
        for key, terms in LANES.items():
            await self.it.until(partial(self.it.owners, terms["host"]))
            await self._act(replicas, "unfreeze", key, terms["host"])
        [replica, *_] = replicas
        with trio.fail_after(300):
            while (await replica.ledger.statistics()).waiting:
                await trio.sleep(5)
        assert Counter([await replica.state(id) for id in self.ids]) == {MessageState.DELIVERED: len(self.ids)}

    @property
    def acknowledged(self) -> Counter[str]:
        return sum((replica.acknowledged for replica in self.it.replicas), Counter())


@pytest.mark.parametrize("seed", range(amount(1, 3)))
async def test_with_steady_replicas_each_message_is_delivered_once_within_limits(
    seed: int, database: str, autojump_clock: object
) -> None:
    it = fleet(database, **CONFIG)
    world = World(it, seed)
    async with it.running(3) as replicas:
        await world.go_on(replicas, 20)
        await world.finish(replicas)
        assert [replica.held for replica in replicas] == [0, 0, 0]
    assert world.acknowledged == Counter(world.ids)
    assert max(it.most_open(host) for host in HOSTS) <= 3
    assert sum(it.of("fenced")) == 0


@pytest.mark.parametrize("seed", range(amount(1, 3)))
async def test_all_is_delivered_while_replicas_join_leave_and_are_cut_off(
    seed: int, database: str, link: DatabaseLink, autojump_clock: object
) -> None:
    it = fleet(database, **CONFIG)
    world = World(it, seed)
    async with it.running(1) as [there], it.replica(link) as shaky:
        await world.go_on([there, shaky], 6)
        async with it.replica() as guest:
            await world.go_on([there, shaky, guest], 6)
            link.cut()
            await world.go_on([there, guest], world.random.uniform(1, 2 * LEASE))
            link.restore()
            await world.go_on([there, guest], 3)
        await world.go_on([there, shaky], 3)
        link.loses_answer_to = b".test"
        await world.go_on([there], 3)
        await world.finish([there, shaky])
        await trio.sleep(5)
        assert (there.held, shaky.held) == (0, 0)
    twice = world.acknowledged - Counter(world.ids)
    assert set(world.acknowledged) == set(world.ids)
    assert twice.total() <= sum(it.of("fenced"))
