"""The database crashes, fails over or is read-only under load: nothing acknowledged is lost, no client hangs, and
everything resumes by itself.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import trio

from tests.fleet.event_log import Witness
from tests.fleet.receivers import Host
from tests.fleet.replicas import Fleet, Replica, met
from tests.fleet.senders import Senders
from tests.support.harness import PATIENCE, Receiver, running, until
from tests.support.postgres import OwnServer, Standby
from tests.support.repetitions import amount

CRASHES = amount(2, 10)
CLIENTS = 16
PAUSE = 0.05
WITHOUT_END = 1_000_000
SOME = 50
"""Webhooks that are acknowledged between two crashes."""
ANSWERED_WITHIN = 15.0
"""Seconds in which whoever posts is told something, whatever the database does: three times what a replica takes."""


class Load:
    """Two replicas, a host, and clients that never stop."""

    def __init__(self, folder: Path, url: str) -> None:
        self.witness = Witness()
        self._host = Host("fine", self.witness, lambda request: (200, 0.02))
        self.fleet = Fleet(folder, url, self.witness, retry__base="200ms")
        self.senders = Senders(
            self.witness,
            lambda: self.fleet.present,
            lambda number: self._host,
            WITHOUT_END,
            pause=PAUSE,
            patience=ANSWERED_WITHIN,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Checks at the end that all of it is delivered, once."""
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._host.serve)
                await self.fleet.start(2)
                nursery.start_soon(self.senders.run, CLIENTS)
                yield
                await self.some()
                self.senders.is_over = True
                await met(lambda: not self.witness.missing())
                await met(lambda: self.fleet.database.stored() == {})
                for seat in (0, 1):
                    assert await self.fleet.terminate(seat) == 0
                nursery.cancel_scope.cancel()
        finally:
            self.fleet.close()
        self._check()

    async def some(self) -> None:
        await self.senders.reached(self.senders.acknowledged + SOME)

    async def away(self) -> None:
        """Until webhooks are refused, and no replica is ready."""
        refused = self.senders.refused[503]
        await met(lambda: not any(map(is_ready, self.fleet.present)))
        await met(lambda: self.senders.refused[503] > refused)

    async def back(self) -> None:
        await met(lambda: all(map(is_ready, self.fleet.present)))

    def _check(self) -> None:
        assert self.fleet.database.delivered() >= self.witness.ids()
        assert self.senders.refused.keys() == {503}
        assert self.senders.unanswered == 0
        times = Counter(request.id for request in self.witness.requests)
        assert {id: number for id, number in times.items() if number > 1} == {}


def is_ready(replica: Replica) -> bool:
    return replica.gateway.get("/readyz").status_code == 200


async def test_a_database_that_crashes_repeatedly_and_is_read_only_for_a_while(
    tmp_path: Path, own_postgres: OwnServer, measured: Callable[[str], None]
) -> None:
    load = Load(tmp_path, own_postgres.fresh_database())
    async with load.running():
        for _ in range(CRASHES):
            await load.some()
            await trio.to_thread.run_sync(own_postgres.stop, "immediate")
            await load.away()
            await trio.to_thread.run_sync(own_postgres.start)
            await load.back()
        await load.some()
        read_only(own_postgres, "on")
        await load.away()
        read_only(own_postgres, "off")
        await load.back()
    measured(
        f"a database that crashed {CRASHES} times: {len(load.witness.ids())} acknowledged, all delivered, none twice; "
        f"the slowest answer took {load.senders.slowest:.1f} s"
    )


def read_only(server: OwnServer, value: str) -> None:
    server.administer(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
    server.administer("SELECT pg_reload_conf()")


async def test_a_standby_takes_over(tmp_path: Path, own_postgres: OwnServer) -> None:
    url = urlsplit(own_postgres.fresh_database())
    standby = Standby(own_postgres)
    credentials, _, place = url.netloc.rpartition("@")
    both = url._replace(netloc=f"{credentials}@{place},127.0.0.1:{standby.port}").geturl()
    try:
        load = Load(tmp_path, both)
        async with load.running():
            await load.some()
            await trio.to_thread.run_sync(own_postgres.stop, "immediate")
            await load.away()
            await trio.to_thread.run_sync(standby.promote)
            await load.back()
    finally:
        standby.close()


def test_an_attempt_in_flight_is_recorded_when_the_database_is_back(
    tmp_path: Path, own_postgres: OwnServer, receiver: Receiver
) -> None:
    """The receiver answers while it is away."""
    entered, let_go = receiver.hang()
    with running(tmp_path / "store", store__url=own_postgres.fresh_database(), retry__base="200ms") as gateway:
        id = gateway.post(f"{receiver.url}/hook").json()["id"]
        assert entered.wait(PATIENCE)
        own_postgres.stop("immediate")
        until(lambda: gateway.get("/readyz").status_code == 503)
        let_go.set()
        receiver.wait_for_one()
        until(lambda: gateway.get("/status").json()["in_flight"] == 0)
        own_postgres.start()
        until(lambda: gateway.get("/readyz").status_code == 200)
        until(lambda: gateway.message(id).get("state") == "delivered")
        assert gateway.message(id)["attempts"][0]["status"] == 200
        assert gateway.stop() == 0
    assert len(receiver.requests) == 1
