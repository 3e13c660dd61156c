"""Reads of a store that replicas share. They claim what they return: nobody else can send it, so everything is kept or
given back, and nothing that was read is passed over.
"""

from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.core.circuit import CircuitState
from holdfast.core.lane import Lane
from holdfast.core.message import Entry
from holdfast.core.tally import Tally
from holdfast.delivery.lane_reader import LaneReader
from holdfast.delivery.roster import Roster
from holdfast.news import News
from holdfast.store.port import Ask, SharedStore, Store, View


class FleetReader(LaneReader):
    """`give_back` is told of entries that are of no use here."""

    _store: SharedStore

    def __init__(self, store: Store, roster: Roster, clock: Clock, tally: Tally, news: News) -> None:
        super().__init__(store, roster, clock, tally, news)
        self._spells: dict[Lane, int] = {}
        self.give_back: Callable[[Lane, list[Entry]], None] = lambda lane, entries: None

    def _ask(self, lane: Lane) -> Ask:
        """What a lane may claim is known once it was read. Who wants it read again meanwhile marks it as stale."""
        lane.stale = False
        self._spells[lane] = lane.circuit.spell
        ask = super()._ask(lane)
        return ask if lane.hydrated else ask._replace(fresh=0, due=0)

    def _take(self, lane: Lane, view: View) -> None:
        if not lane.hydrated or lane.circuit.spell == self._spells.pop(lane):
            self._roster.hydrate(lane, view.record)
        else:
            lane.stale = True
        self._take_heads(lane, view)
        self._queue(lane, [entry for entry in (*view.fresh, *view.due) if self._is_ours(entry)])
        if view.probe is not None and self._is_ours(view.probe):
            self._take_probe(lane, view.probe)
        elif lane.wants_probe(self._clock.now()):
            lane.probe_from = None  # nothing to probe with until something changes

    def _is_ours(self, entry: Entry) -> bool:
        """What was claimed under another number is free again."""
        return entry.fence == self._store.number

    def _take_probe(self, lane: Lane, probe: Entry) -> None:
        if lane.probe is not None or lane.circuit.state is not CircuitState.DISABLED:
            self.give_back(lane, [probe])
        else:
            lane.probe = probe
            self._roster.hold(lane, probe.message)
