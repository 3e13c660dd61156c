"""In a replica that only takes webhooks, what stands in the place of delivery: others deliver.

What comes in is counted. What operators ask for is done to the store, where whoever delivers finds it.
"""

from collections.abc import Container, Mapping

import trio

from holdfast.clock import Clock
from holdfast.config import Config
from holdfast.core.circuit import Change, CircuitState
from holdfast.core.lane import Lane
from holdfast.core.message import Message, MessageId
from holdfast.core.tally import Tally
from holdfast.delivery.service import RouteKeys
from holdfast.delivery.settling import Telling
from holdfast.news import News
from holdfast.store.port import SharedStore, Switch, Verb, Verdict


class Elsewhere:
    """In the place of a dispatcher: nothing is under way here, and no lane is in memory."""

    attempts_in_flight = 0
    is_quiet = True

    def __init__(self, store: SharedStore, clock: Clock, telling: Telling) -> None:
        self._store = store
        self._clock = clock
        self._telling = telling
        self.in_flight: frozenset[MessageId] = frozenset()
        store.on_accepted = self._accepted

    def _accepted(self, message: Message, active: bool) -> None:
        self._telling.tell_accepted(message, self._clock.now())

    def step_back(self, steps_back: bool) -> None:
        """Others send in any case."""

    async def wait_quiet(self) -> None:
        await trio.lowlevel.checkpoint()

    def lane_of(self, key: str) -> Lane | None:
        return None

    def active_in(self, lane: Lane) -> int:
        return 0

    def is_queued(self, id: MessageId, key: str) -> bool:
        return False

    async def unfreeze(self, key: str, host: str) -> Change | None:
        return (await self._switch(key, host, Verb.UNFREEZE)).change

    async def freeze(self, key: str, host: str) -> Change | None:
        return (await self._switch(key, host, Verb.FREEZE)).change

    async def probe(self, key: str, host: str) -> bool:
        record = (await self._switch(key, host, Verb.PROBE)).record
        return record is not None and record.circuit.state is CircuitState.DISABLED

    async def _switch(self, key: str, host: str, verb: Verb) -> Verdict:
        verdict: Verdict = await self._store.perform(Switch(key, host, verb, self._clock.now()))
        if verdict.change is not None and verdict.record is not None:
            self._telling.tell_change(verdict.record, verdict.change)
        return verdict

    def slow_start(self, key: str, host: str) -> None:
        """The store has reset the limit together with the replay."""

    def revive(self, key: str, host: str | None = None) -> None:
        """The store tells those who have it in memory."""

    def withdraw(self, ids: Container[MessageId], lanes: Mapping[str, str]) -> None:
        """Nothing of it is in memory."""


class NoDelivery:
    """In the place of a Delivery."""

    def __init__(self, store: SharedStore, clock: Clock, tally: Tally, news: News) -> None:
        self.dispatcher = Elsewhere(store, clock, Telling(tally, news))

    def configure(self, config: Config, keys: RouteKeys) -> None:
        """None of it is used here."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
