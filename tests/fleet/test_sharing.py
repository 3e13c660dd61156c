"""What a host may be sent at once holds for the fleet, also while replicas come and go."""

from pathlib import Path

import trio

from fleet.hosts import Host
from fleet.replicas import fleet_of, met
from fleet.senders import Senders
from fleet.witness import Witness

PER_HOST = 8
WITHOUT_END = 1_000_000
CLIENTS = 16
PAUSE = 0.08
"""Seconds: a little more than the host takes."""
ANSWERS_AFTER = 0.05


async def test_replicas_that_come_wait_for_their_part_of_a_limit(tmp_path: Path, database: str) -> None:
    witness = Witness()
    host = Host("slow", witness, lambda request: (200, ANSWERS_AFTER))
    with fleet_of(tmp_path, database, witness, delivery__per_host=PER_HOST) as fleet:
        async with trio.open_nursery() as nursery:
            await nursery.start(host.serve)
            await fleet.start(1, seats=4)
            senders = Senders(witness, lambda: fleet.present[:1], lambda number: host, WITHOUT_END, pause=PAUSE)
            nursery.start_soon(senders.run, CLIENTS)
            await met(lambda: host.most == PER_HOST)
            for seat in (1, 2, 3):
                replica = await fleet.take(seat)
                await met(lambda life=replica.life.number: any(seen.life == life for seen in witness.requests))
            await fleet.kill(1)
            await fleet.terminate(2)
            senders.is_over = True
            await met(lambda: not witness.missing())
            nursery.cancel_scope.cancel()
    print("MOST", host.most, len(witness.requests))
    witness.repeats()
    assert host.most == PER_HOST
