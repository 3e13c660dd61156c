"""Four replicas are killed and stopped under load: nothing is lost, and the fleet's counts are those of one gateway.

`HOLDFAST_WEBHOOKS` sets how many webhooks are acknowledged.
"""

import random
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import trio

from tests.fleet.event_log import Witness
from tests.fleet.receivers import Host
from tests.fleet.replicas import Fleet, Replica, fleet_of, met
from tests.fleet.senders import Senders
from tests.support.repetitions import amount

REPLICAS = 4
WEBHOOKS = amount(2_400, 20_000, "HOLDFAST_WEBHOOKS")
CLIENTS = 96
PER_HOST = 12
PROBE_EVERY = 3.0
RULES = {
    "retry__base": "300ms",
    "circuit__probe_every": f"{PROBE_EVERY:.0f}s",
    "delivery__per_host": PER_HOST,
}
A_KILL_EVERY = amount(800, 2_000)
"""Acknowledged webhooks."""
A_SECOND = 800
"""Webhooks that are posted, at most: so that the load lasts for as long as the disturbances."""
DELIVERED_WITHIN = 60.0
LEEWAY = 0.2
"""Seconds by which the clock of a replica may be ahead of the others'."""


class World:
    """A host that is fine, one that takes its time, one that answers 500."""

    def __init__(self) -> None:
        self.witness = Witness()
        chance = random.Random(8)
        self.fine = Host("fine", self.witness, lambda request: (200, 0.0))
        self.slow = Host("slow", self.witness, lambda request: (200, chance.uniform(0.1, 0.3)))
        self.dead = Host("dead", self.witness, lambda request: (500, 0.0))
        self.hosts = (self.fine, self.slow, self.dead)

    def pick(self, number: int) -> Host:
        """Of twenty webhooks one is for the slow host, and one for the dead one."""
        return {0: self.dead, 1: self.slow}.get(number % 20, self.fine)

    def at_dead(self) -> list[float]:
        """When requests came to the dead host."""
        return [request.at for request in self.witness.requests if request.host == "dead"]


class Disturber:
    """Kills and stops replicas until told otherwise, never the same one at a time."""

    def __init__(self, fleet: Fleet, senders: Senders) -> None:
        self._fleet = fleet
        self._senders = senders
        self._stopped: Replica | None = None

    async def kill(self) -> None:
        """One after another, each time some more was acknowledged; each seat is taken again."""
        turn = 0
        while self._senders.acknowledged + A_KILL_EVERY < self._senders.total:
            await self._senders.reached(self._senders.acknowledged + A_KILL_EVERY)
            turn += 1
            if self._fleet.seats[turn % REPLICAS] is self._stopped:
                turn += 1
            await self._fleet.kill(turn % REPLICAS)
            await self._fleet.take(turn % REPLICAS)

    async def stop(self) -> None:
        turn = 2
        while self._senders.acknowledged < self._senders.total:
            turn += 1
            self._stopped = self._fleet.seats[turn % REPLICAS]
            if self._stopped is not None:
                await self._fleet.stop_past_its_lease(self._stopped)
            self._stopped = None


async def test_replicas_are_killed_and_stopped(tmp_path: Path, database: str, measured: Callable[[str], None]) -> None:
    world = World()
    witness = world.witness
    with fleet_of(tmp_path, database, witness, **RULES) as fleet:
        async with trio.open_nursery() as nursery:
            for host in world.hosts:
                await nursery.start(host.serve)
            await fleet.start(REPLICAS)
            senders = Senders(
                witness, lambda: fleet.present, world.pick, WEBHOOKS, pause=CLIENTS / A_SECOND, patience=1.0
            )
            async with trio.open_nursery() as load:
                load.start_soon(senders.run, CLIENTS)
                await met(lambda: trips(fleet, world.dead))
                disturber = Disturber(fleet, senders)
                load.start_soon(disturber.kill)
                load.start_soon(disturber.stop)
            await all_delivered(fleet, world)
            probes = len(world.at_dead())
            await met(lambda: len(world.at_dead()) > probes)
            circuit = fleet.present[0].gateway.get(f"/circuits/{world.dead.key}").json()
            async with trio.open_nursery() as ends:
                for seat in range(REPLICAS):
                    ends.start_soon(ended_well, fleet, seat)
            nursery.cancel_scope.cancel()
        check_none_is_lost(fleet, world)
        repeats, in_flight = witness.repeats(), witness.in_flight_at_disturbances()
        assert repeats <= in_flight
        probed = check_probes(fleet, world, datetime.fromisoformat(circuit["since"]).timestamp())
        witness.check_one_at_a_time()
        most = max(witness.most_open(host.name) for host in world.hosts)
        assert most <= PER_HOST
    measured(
        f"a fleet of {REPLICAS}, {len(witness.ids())} acknowledged, {witness.kills()} kills, {witness.stops()} stops "
        f"past the lease: none lost, {repeats} deliveries came again of {in_flight} in flight at a kill or stop; "
        f"the dead host was probed {probed} times; at most {most} requests at once at one host"
    )


async def all_delivered(fleet: Fleet, world: World) -> None:
    """All that was acknowledged for hosts that answer, and recorded as such."""
    witness, left = world.witness, "SELECT encode(id, 'hex'), lane, standing, due FROM messages WHERE lane <> %s"
    try:
        await met(lambda: not witness.missing("fine", "slow"), DELIVERED_WITHIN)
        await met(lambda: not fleet.database.ask(left, world.dead.key))
    except AssertionError as error:
        rows = fleet.database.ask(left, world.dead.key)
        raise AssertionError(f"{len(witness.missing('fine', 'slow'))} are missing; of them {rows[:20]}") from error


async def ended_well(fleet: Fleet, seat: int) -> None:
    assert await fleet.terminate(seat) == 0


def trips(fleet: Fleet, host: Host) -> list[dict[str, object]]:
    return [event for event in fleet.events("circuit_changed") if event["host"] == host.key]


def check_none_is_lost(fleet: Fleet, world: World) -> None:
    stored, delivered = fleet.database.stored(), fleet.database.delivered()
    lost = world.witness.ids() - delivered - set(stored)
    assert not lost
    assert delivered >= world.witness.ids("fine", "slow")
    assert set(stored) >= world.witness.ids("dead")


def check_probes(fleet: Fleet, world: World, tripped: float) -> int:
    """The circuit tripped once, and the n-th probe came n intervals after that or later, whoever sent it. What comes
    before the first can come was under way when it tripped. A trip is told before it is stored: one that a kill or a
    stop kept from that is told again by the next owner.
    """
    told = [trip["after"] for trip in trips(fleet, world.dead)]
    assert 1 <= len(told) <= 1 + world.witness.kills() + world.witness.stops()
    assert set(told) == {"disabled"}
    probes = [at - tripped for at in world.at_dead() if at > tripped + PROBE_EVERY - LEEWAY]
    early = [at for number, at in enumerate(probes, 1) if at < number * PROBE_EVERY - LEEWAY]
    assert not early, f"more than one probe an interval: {probes}"
    return len(probes)
