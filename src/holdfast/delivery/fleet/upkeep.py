"""What happens by time alone, where replicas share a store: the sweep is one replica's, the first of the crew's. Lanes
are any replica's, whoever the agenda names them to.
"""

from contextlib import suppress

from holdfast.clock import sleep_until
from holdfast.core.errors import StoreAway
from holdfast.core.lane import Lane
from holdfast.delivery.agenda import NEVER
from holdfast.delivery.fleet.dispatcher import FleetDispatcher
from holdfast.delivery.upkeep import SWEEP_AT_MOST_EVERY, Upkeep


class FleetUpkeep(Upkeep):
    """After the store was away the grace begins anew: meanwhile nobody could be sent anything."""

    _dispatcher: FleetDispatcher

    def _listen(self) -> None:
        super()._listen()
        self._dispatcher.on_back = self.begin_grace
        self._dispatcher.on_crew = self.call

    async def run(self) -> None:
        """What a store that is away does not do is done when it is back."""
        while True:
            with suppress(StoreAway):
                return await super().run()
            self._to_review = True
            await sleep_until(self._clock, self._clock.now() + SWEEP_AT_MOST_EVERY)

    async def _sweep(self) -> bool:
        return await super()._sweep() if self._dispatcher.is_first else False

    async def _evict_circuits(self, now: int) -> int:
        """They take no part of `store.max_size` here."""
        return 0

    async def _next_sweep(self) -> int:
        return await super()._next_sweep() if self._dispatcher.is_first else NEVER

    def _save(self, lane: Lane) -> None:
        """The store's moment of a lane is always up to date."""
