"""The gateway as one process: put together as `app` does it, with witnesses, and ended in every way that there is.

Everything but sockets, threads and the disk is the real thing: ingest, ledger, delivery, the control socket's handlers.
"""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import trio

from holdfast.config import Config, build
from holdfast.core.errors import CommitFailed
from holdfast.core.message import MessageId
from holdfast.http.dial import Origin
from holdfast.ingest.handler import Ingest
from holdfast.process.reload import merge
from holdfast.store.embedded.ledger import last_time
from holdfast.store.port import LaneChange
from tests.sim.disk import DiskWitness
from tests.sim.faults import FaultyEngine, StepCounter, WatchedLedger
from tests.sim.overdue import overdue
from tests.sim.settings import sections
from tests.sim.witness import InFlight
from tests.sim.world import START, World, raw_id
from tests.support.answers import GivenAnswer
from tests.support.trio_clock import TrioClock


class WatchedWorld(World):
    """A gateway that can be run again and again on one store, with everything it does looked at."""

    ledger_type = WatchedLedger
    engine: FaultyEngine
    ledger: WatchedLedger

    def prepare(self, seed: int, steps: StepCounter) -> None:
        self.random = Random(seed)
        self.small = self.random.random() < 0.85
        self.config = self.fresh_config()
        self.engine = FaultyEngine(self.random.choice((1 << 30, 1 << 30, 1 << 30, 3_000_000, 800_000)))
        self.witness = DiskWitness(self.config, lambda: self.clock.now())
        self.witness.limit = self.engine.room().limit
        jitter = Random(seed)
        self.chance = lambda: self.witness.draw(jitter.random())
        self.disk_delay = self.random.choice((0.0, 0.0, 0.002, 0.5))
        self.wall_offset = 0
        self.steps = steps

    def fresh_config(self) -> Config:
        return build(sections(self.random, small=self.small))

    def compose(self) -> None:
        """As `app` does it, with witnesses."""
        wall = START + round(self.now * 1000) + self.wall_offset
        self.clock = TrioClock(max(wall, last_time(self.engine) + 1))
        super().compose()
        witness, ledger = self.witness, self.ledger
        ledger.latency = self._latency
        ledger.on_submitted, ledger.on_written = witness.submitted, witness.written
        ledger.on_prepared = witness.prepared
        self.engine.on_written = ledger.written
        self.dispatcher.attempts.in_flight = InFlight(witness)
        self._listen_to_operators()
        self.control = self.composed.control_socket(self._reload)
        self.ingest = self._ingest()

    def _ingest(self) -> Ingest:
        return Ingest(
            self.config, self.ledger, self.clock, lambda *_: None, lambda _: None, listening=self.config.listen.ingest
        )

    def _listen_to_operators(self) -> None:
        witness, outcomes = self.witness, self.delivery._outcomes
        log_change, change_lane, forget = outcomes.log_change, self.dispatcher._change_lane, self.dispatcher.forget

        def changed(lane: Any, change: Any) -> None:
            if witness.alive:
                witness.operator_changed(lane, str(change.event))
            log_change(lane, change)

        def lane_changed(change: LaneChange) -> None:
            if witness.alive and change.replayed:
                witness.host(change.host).slow_start()
            change_lane(change)

        def forgotten(key: str) -> None:
            forget(key)
            if witness.alive and self.lanes.find(key) is None:
                witness.forgot(key)

        self.dispatcher.forget = forgotten  # type: ignore[method-assign]
        outcomes.log_change = changed  # type: ignore[method-assign]
        self.dispatcher._change_lane = lane_changed  # type: ignore[method-assign]

    async def _latency(self) -> None:
        """How long the disk takes; an await in any case, as with a thread."""
        if self.disk_delay and self.random.random() < 0.3:
            await trio.sleep(self.random.uniform(0, self.disk_delay))
        else:
            await trio.lowlevel.checkpoint()

    async def run(self, meanwhile: Callable[[], Awaitable[None]], *, clean: bool) -> None:
        """A life of the gateway. It ends by a shutdown, after a drain or not, or by a cut, or when a commit failed."""
        self.engine.powered = True
        self.compose()
        self.witness.run_begins(self.engine)
        self.witness.note(f"start {self.config.retry} {self.config.circuit} {self.config.delivery}")
        async with trio.open_nursery() as self.process:
            self.engine.on_cut = self.steps.strike = self.cut
            await self.process.start(self.ledger.run)
            self.process.start_soon(self._end_when_broken, self.process)
            async with trio.open_nursery() as nursery:
                await nursery.start(self.delivery.run)
                await meanwhile()
                if clean and self.random.random() < 0.5:
                    await self.drain()
                nursery.cancel_scope.cancel()
            if not clean:
                self.cut()
            self.process.cancel_scope.cancel()
        self.steps.countdown = self.engine.countdown = 0
        whole = self.witness.alive and self.ledger.failed is None
        self.witness.note("stopped" if whole else "gone")
        self.witness.run_ended(self.engine, clean=whole)
        self.open.clear()

    def cut(self) -> None:
        """The power goes off: from here on nothing reaches the disk, a receiver or an app."""
        if self.witness.alive:
            self.witness.note("cut")
        self.witness.alive = self.engine.powered = False
        self.ledger.failed = CommitFailed("the power went off")
        self.process.cancel_scope.cancel()

    async def drain(self) -> None:
        with trio.move_on_after(self.config.drain.timeout / 1000) as scope:
            await self.dispatcher.wait_quiet()
        if not scope.cancelled_caught and self.witness.alive:
            self.witness.check(
                not self.witness.in_flight("first", "retry", "probe"), "drained, and something in flight"
            )
            for text in overdue(self.witness, slack=0):
                self.witness.check(False, f"drained, and {text}")

    async def _reload(self) -> dict[str, list[str]]:
        """As `app` does it. Of a limit of 1 nobody can say whether it is the full one or that of a slow start."""
        if self.config.delivery.per_host == 1:
            return {}
        self.config, _ = merge(self.config, self.fresh_config())
        witness = self.witness
        witness.config = self.config
        witness.numbers_changed, witness.changed_at = True, self.clock.now()
        witness.most_retries = max(witness.most_retries, self.config.retry.max_retries)
        for host in witness.hosts.values():
            host.resize(self.config.delivery.per_host)
        self.composed.configure(self.config)
        self.ingest = self._ingest()
        return {}

    async def exchange(self, origin: Origin, head: bytes, body: bytes, deadline: float) -> GivenAnswer:
        """What a receiver is asked. Nothing is, once the power is off."""
        id = head.partition(b"webhook-id: ")[2][:36].decode()
        if not self.witness.alive:
            await trio.sleep_forever()
        self._check_asked(id, origin, deadline)
        end: Any = None
        try:
            end = await super().exchange(origin, head, body, deadline)
            return end
        except Exception as error:
            end = error
            raise
        finally:
            self.witness.ends[id] = end

    def _check_asked(self, id: str, origin: Origin, deadline: float) -> None:
        witness = self.witness
        raw: MessageId = raw_id(id)
        start = self.dispatcher.attempts.in_flight.get(raw)
        witness.check(start is not None, f"{id}: a request without an attempt")
        route = None if start is None else start.entry.message.route
        timeout = (self.config.routes[route].timeout if route else None) or self.config.delivery.timeout
        given = round((deadline - trio.current_time()) * 1000)
        witness.check(given == timeout, f"{id}: {given} ms for an attempt, not {timeout}")
