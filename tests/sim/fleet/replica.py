"""One process of a fleet, put together as `app` does it, with everything around it that a world can do to it."""

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from answers import GivenAnswer
from holdfast.core.fleet import LEASE
from holdfast.core.tally import Tally
from holdfast.delivery.service import Delivery, circuit_rules, retry_rules
from holdfast.http.transport import Origin
from holdfast.ingest import Ingest
from holdfast.lifecycle import Lifecycle
from holdfast.news import News
from holdfast.operate.actions import Actions
from holdfast.operate.control import ControlSocket
from holdfast.operate.insight import Insight
from holdfast.store.port import Operation
from holdfast.store.postgres.channel import Channel
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.work import StoreRules
from sim.fleet.lines import FleetLine, Group, Plight
from sim.on_postgres import replace_lines
from sim.world import Request, raw_id

if TYPE_CHECKING:
    from sim.fleet.world import FleetWorld

LONG_AGO = -(1 << 62)


class Replica:
    """`well_since` is when it was last neither stopped nor out of reach of the database, `heard_at` when the last beat
    began that it heard the end of.
    """

    def __init__(self, world: "FleetWorld", name: str) -> None:
        self.world, self.name = world, name
        self.plight = Plight()
        self.heard_at = LONG_AGO
        self.well_since = world.clock.now()
        self.over = trio.Event()
        self._ends = trio.Event()
        self._compose(world, Random(world.random.random()))

    def _compose(self, world: "FleetWorld", chance: Random) -> None:
        config, clock, witness = world.config, world.clock, world.witness
        run = clock.now()
        self.news, tally = News(clock), Tally()
        self.store = PostgresStore(
            world.url, _store_rules(world, run), clock, chance.getrandbits, max_size=world.max_size, threaded=False
        )
        replace_lines(self.store, lambda url, name: self._line(url, name, chance))
        self._watch(self.store._accepting, self.store._accepts)
        self._watch(self.store._writing, self.store._writes)
        self._listen()
        terms = (config, self.store, self, clock, lambda: 0.5, run, self.news, tally)
        self.delivery = Delivery(*terms, shared=True)
        self.dispatcher = self.delivery.dispatcher
        self.roster = self.delivery._roster
        on_lost = self.store.on_lost

        def lost() -> None:
            witness.taken_for_dead(self)
            on_lost()

        self.store.on_lost = lost
        lifecycle = Lifecycle(self.store, tally, run)
        insight = Insight(
            *(self.store, self.dispatcher, lifecycle, clock, self.news), circuit_rules(config), retry_rules(config)
        )
        actions = Actions(insight, self.dispatcher, self.store, clock, tally, self.news)
        self.control = ControlSocket(insight, actions, self.dispatcher, lifecycle, self.store, self.news, self._reload)
        self.ingest = Ingest(config, self.store, clock, lambda *_: None, lambda _: None, listening=config.listen.ingest)

    def _line(self, url: str, name: str, chance: Random) -> FleetLine:
        world = self.world
        line = FleetLine(url, name, self.plight, chance, world.locks, stepped=world.stepped)
        line.on_commit = world.witness.commits
        line.on_done = lambda group, results: world.witness.done(self, group, results)
        line.on_given_up = world.nursery.start_soon
        return line

    def _watch(self, channel: Channel, line: Any) -> None:
        """Let a line know what its transactions are for."""
        write = channel._write

        async def watched(operations: Sequence[Operation]) -> list[Any]:
            line.group = Group(operations)
            return await write(operations)

        channel._write = watched

    def _listen(self) -> None:
        beat = self.store._beat

        async def watched() -> None:
            began = self.world.clock.now()
            await beat()
            self.heard_at = began
            if not self.is_well:
                self.well_since = self.world.clock.now()
                self.is_well = not self.is_disturbed

        self.is_well = True
        self.store._beat = watched  # type: ignore[method-assign]
        may_begin = self.store.may_begin
        self.store.may_begin = lambda now: self.plight.moves.is_set() and may_begin(now)  # type: ignore[method-assign]

    async def _reload(self) -> dict[str, list[str]]:
        return {}

    # -- its life ------------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        try:
            async with trio.open_nursery() as self._process:
                await self._process.start(self.store.run)
                self._process.start_soon(self._notice_failure)
                async with trio.open_nursery() as nursery:
                    await nursery.start(self.delivery.run)
                    await self._ends.wait()
                    nursery.cancel_scope.cancel()
                self._process.cancel_scope.cancel()
        finally:
            self.over.set()

    async def _notice_failure(self) -> None:
        await self.store.broken.wait()
        self.world.witness.check(False, f"{self.name} gave up: {self.store.failed}")
        self._process.cancel_scope.cancel()

    def shut_down(self) -> None:
        self._ends.set()

    def kill(self) -> None:
        """From here on nothing of it reaches the database, a receiver or an app."""
        self.plight.killed = True
        self.disturb()
        self._process.cancel_scope.cancel()
        self.plight.go_on()

    def stop(self) -> None:
        self.plight.stop()
        self.disturb()

    def go_on(self) -> None:
        self.plight.go_on()

    def cut_off(self) -> None:
        self.plight.cut_off = True
        self.disturb()

    def mend(self) -> None:
        self.plight.cut_off = self.plight.loses_next = False

    def disturb(self) -> None:
        self.is_well = False
        self.world.witness.disturbed(self)

    @property
    def is_disturbed(self) -> bool:
        return self.plight.unreachable or self.plight.loses_next or not self.plight.moves.is_set() or self.store.away

    @property
    def serves(self) -> bool:
        return not self.plight.killed and self.plight.moves.is_set() and not self._ends.is_set()

    def was_well(self, seconds: float = LEASE / 1000) -> bool:
        """Whether nothing befell it lately."""
        return self.is_well and self.world.clock.now() - self.well_since > seconds * 1000

    # -- the receivers -------------------------------------------------------------------------------------------------

    async def exchange(self, origin: Origin, head: bytes, body: bytes, deadline: float) -> GivenAnswer:
        stood_still = not self.plight.moves.is_set()
        await self._moving()
        host = f"{origin.host}:{origin.port}"
        id = head.partition(b"webhook-id: ")[2][:36].decode()
        asked = self.world.witness.begins(self, self.dispatcher.in_flight[raw_id(id)], stood_still=stood_still)
        request = Request(self.world.now, host, id, 1, head.split()[1].decode())
        try:
            asked.end = await self.world.answer(request, deadline)
            return asked.end
        except Exception as error:
            asked.end = error
            raise
        finally:
            asked.ended = self.world.clock.now()
            with trio.CancelScope(shield=not self.plight.killed):
                await self._moving()

    async def _moving(self) -> None:
        """A process that stands still neither sends nor hears anything; one that is gone never does again."""
        await self.plight.moves.wait()
        if self.plight.killed:
            await trio.sleep_forever()


def _store_rules(world: "FleetWorld", run: int) -> StoreRules:
    config = world.config
    return StoreRules(
        circuit_rules(config),
        retry_rules(config),
        config.ingest.idempotency,
        config.store.host_share,
        config.delivery.per_host,
        run,
    )
