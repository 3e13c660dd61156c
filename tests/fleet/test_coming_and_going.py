"""Replicas that come and go under load, as in a roll-out: each webhook is sent once, and limits hold for them all."""

from collections import Counter
from pathlib import Path

import trio

from fleet.hosts import Host
from fleet.replicas import Fleet, Replica, fleet_of, met
from fleet.senders import Senders
from fleet.witness import Witness

PER_HOST = 8
CLIENTS = 16
WITHOUT_END = 1_000_000
PAUSE = 0.05
BACKLOG = 60
"""Webhooks that wait for the slow host: more than are ever in memory."""


class Hosts:
    """One that is fine, and one that takes its time and always has a backlog."""

    def __init__(self, witness: Witness) -> None:
        self.fine = Host("fine", witness, lambda request: (200, 0.0))
        self.slow = Host("slow", witness, lambda request: (200, 0.05))
        self._posted = 0

    def pick(self, number: int) -> Host:
        if self._posted - self.slow.answered >= BACKLOG:
            return self.fine
        self._posted += 1
        return self.slow


async def test_a_roll_out_under_load_sends_everything_once(tmp_path: Path, database: str) -> None:
    witness = Witness()
    hosts = Hosts(witness)
    slow = hosts.slow
    with fleet_of(tmp_path, database, witness, delivery__per_host=PER_HOST) as fleet:
        async with trio.open_nursery() as nursery:
            await nursery.start(hosts.fine.serve)
            await nursery.start(slow.serve)
            await fleet.start(1, seats=2)
            senders = Senders(witness, lambda: fleet.present, hosts.pick, WITHOUT_END, pause=PAUSE)
            nursery.start_soon(senders.run, CLIENTS)
            await met(lambda: slow.most == PER_HOST)
            await sends(await fleet.take(1), witness)
            for seat in (0, 1):
                await goes(fleet, seat)
                await sends(await fleet.take(seat), witness)
            senders.is_over = True
            await met(lambda: not witness.missing())
            for seat in (0, 1):
                await goes(fleet, seat)
            nursery.cancel_scope.cancel()
        assert fleet.database.stored() == {}
    times = Counter(request.id for request in witness.requests)
    assert {id: number for id, number in times.items() if number > 1} == {}
    assert set(times) >= witness.ids()
    assert slow.most == PER_HOST


async def sends(replica: Replica, witness: Witness) -> None:
    """Until a replica has its part."""
    await met(lambda: any(request.life == replica.life.number for request in reversed(witness.requests)))


async def goes(fleet: Fleet, seat: int) -> None:
    """It ends by SIGTERM, and whatever it had claimed is anybody's when it is gone."""
    replica = fleet.seats[seat]
    assert replica is not None
    (number,) = fleet.database.numbers(replica.pid)
    assert await fleet.terminate(seat) == 0
    assert fleet.database.numbers(replica.pid) == []
    assert fleet.database.ask("SELECT id FROM messages WHERE owner = %s", number) == []
