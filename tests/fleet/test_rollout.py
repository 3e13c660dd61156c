"""Replicas join and leave under load, as in a rollout: each webhook is sent once, in order, and limits hold for the
fleet.
"""

from collections import Counter
from itertools import count
from pathlib import Path

import trio

from tests.fleet.event_log import Witness
from tests.fleet.receivers import Host
from tests.fleet.replicas import Fleet, fleet_of, met
from tests.fleet.senders import Senders

PER_HOST = 4
HOSTS = 6
"""Some move with every replica that comes or goes, whichever these are."""
CLIENTS = 12
WITHOUT_END = 1_000_000
PAUSE = 0.05
BACKLOG = 300
"""Webhooks that wait for the slow hosts: of one host at times more than are ever in memory."""


class Hosts:
    """Several that take their time and always have a backlog, and one more that is fine."""

    def __init__(self, witness: Witness, delay: float) -> None:
        self.slow = [Host(f"slow-{number}", witness, lambda request: (200, delay)) for number in range(HOSTS)]
        self.fine = Host("fine", witness, lambda request: (200, 0.0))
        self.all = [*self.slow, self.fine]
        self._posted = 0

    def pick(self, number: int) -> Host:
        if self._posted - sum(host.answered for host in self.slow) >= BACKLOG:
            return self.fine
        self._posted += 1
        return self.slow[0 if number % 2 else number // 2 % HOSTS]

    @property
    def most(self) -> list[int]:
        return [host.most for host in self.slow]


async def roll_out(fleet: Fleet) -> None:
    """Another replica comes; then each of the two goes, and a new one takes its place."""
    await fleet.take(1)
    await met(fleet.database.is_shared_out)
    for seat in (0, 1):
        await goes(fleet, seat)
        await fleet.take(seat)
        await met(fleet.database.is_shared_out)


async def goes(fleet: Fleet, seat: int) -> None:
    """It ends by SIGTERM, and owns nothing when it is gone."""
    replica = fleet.seats[seat]
    assert replica is not None
    (number,) = fleet.database.numbers(replica.pid)
    assert await fleet.terminate(seat) == 0
    assert fleet.database.numbers(replica.pid) == []
    assert fleet.database.ask("SELECT shard FROM shards WHERE owner = %s", number) == []


async def test_a_roll_out_under_load_sends_everything_once(tmp_path: Path, database: str) -> None:
    witness = Witness()
    hosts = Hosts(witness, 0.05)
    with fleet_of(tmp_path, database, witness, delivery__per_host=PER_HOST) as fleet:
        async with trio.open_nursery() as nursery:
            for host in hosts.all:
                await nursery.start(host.serve)
            await fleet.start(1, seats=2)
            senders = Senders(witness, lambda: fleet.present, hosts.pick, WITHOUT_END, pause=PAUSE)
            nursery.start_soon(senders.run, CLIENTS)
            await met(lambda: PER_HOST in hosts.most)
            await roll_out(fleet)
            senders.is_over = True
            await met(lambda: not witness.missing())
            for seat in (0, 1):
                await goes(fleet, seat)
            nursery.cancel_scope.cancel()
        assert fleet.database.stored() == {}
        assert fleet.events("outcome_fenced") == []
    times = Counter(request.id for request in witness.requests)
    assert {id: number for id, number in times.items() if number > 1} == {}
    assert set(times) >= witness.ids()
    assert max(hosts.most) == PER_HOST


async def test_first_attempts_are_in_the_order_of_acknowledgement_while_replicas_come_go_and_are_killed(
    tmp_path: Path, database: str
) -> None:
    """One client, which posts to all replicas in turn. They send one webhook at a time to each host."""
    witness = Witness()
    hosts = Hosts(witness, 0.01)
    turns = count()
    with fleet_of(tmp_path, database, witness, delivery__per_host=1) as fleet:
        async with trio.open_nursery() as nursery:
            for host in hosts.all:
                await nursery.start(host.serve)
            await fleet.start(1, seats=3)
            senders = Senders(
                witness, lambda: [fleet.present[next(turns) % len(fleet.present)]], hosts.pick, WITHOUT_END, a_talk=1
            )
            nursery.start_soon(senders.run, 1)
            await senders.reached(BACKLOG)
            await roll_out(fleet)
            await fleet.take(2)
            await met(fleet.database.is_shared_out)
            await fleet.kill(0)
            await met(fleet.database.is_shared_out)
            senders.is_over = True
            await met(lambda: not witness.missing())
            nursery.cancel_scope.cancel()
    witness.check_one_at_a_time()
    for host in hosts.all:
        assert witness.most_open(host.name) <= 1
        posted = [each.id for each in witness.acknowledged if each.host == host.name]
        first = dict.fromkeys(request.id for request in witness.requests if request.host == host.name)
        assert [id for id in first if id in set(posted)] == posted
