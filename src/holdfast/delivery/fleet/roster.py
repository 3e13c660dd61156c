"""Lanes and hosts as views of a store that replicas share: what is in memory of a circuit or limit is what the store
last told of it, and is never written.
"""

from collections.abc import Mapping

from holdfast.core.circuit import Circuit
from holdfast.core.fleet import SharedHost, SharedLane, Watch
from holdfast.core.lane import Host, Lane
from holdfast.delivery.roster import Roster
from holdfast.store.port import LaneRecord, Shelve, Store


class FleetRoster(Roster):
    """`watch` knows the replicas among whom it is shared out what a host may be sent."""

    def __init__(self, store: Store, *, per_host: int, run: int, rate: float, rates: Mapping[str, float]) -> None:
        super().__init__(store, per_host=per_host, run=run, rate=rate, rates=rates)
        self.watch = Watch()

    def configure(self, *, per_host: int, rate: float, rates: Mapping[str, float]) -> None:
        self._per_host, self._rate, self._rates = per_host, rate, rates
        self.share_out(self.watch)

    def share_out(self, watch: Watch) -> None:
        self.watch = watch
        for host in self._hosts.values():
            self._share(host)

    def share_of(self, host: str) -> int:
        """This replica's part of what a host that is not in memory may be sent at most."""
        return self.watch.share(self._per_host, host)

    def hydrate(self, lane: Lane, record: LaneRecord | None) -> None:
        """Take over what the store has of a lane; if that is nothing, its circuit begins anew."""
        is_news = not lane.hydrated or record is None or record.circuit.spell != lane.circuit.spell
        lane.hydrated = True
        if record is None:
            lane.circuit = Circuit()
            return
        if record.host != lane.host.name:
            self._move(lane, record.host)
        lane.circuit = record.circuit
        host = _shared(lane.host)
        # A hold that was just asked for may not have been known there yet; only an operator ends one early.
        host.hold_until = record.hold_until if is_news else max(host.hold_until, record.hold_until)
        host.whole = record.limit
        self._share(host)

    def adopt(self, lane: Lane, record: LaneRecord) -> None:
        """Take over what came without a read. With a lower spell it may be old news, or the circuit was forgotten and
        began anew: that only a read can say.
        """
        if lane.hydrated and record.circuit.spell < lane.circuit.spell:
            self.doubt(lane)
        else:
            self.hydrate(lane, record)

    def doubt(self, lane: Lane) -> None:
        """What is known of a lane can't be relied on any more: nothing starts before it was read."""
        lane.hydrated, lane.stale = False, True

    def forget_cold(self) -> None:
        """Of a lane that nothing is sent to here nobody hears how its limit changes, or that its host wants peace. That
        one which lets nothing through is enabled again everyone is told.
        """
        self._drop_cold([lane for lane in self._cold.values() if lane.enabled])

    def forget_views(self) -> None:
        for lane in self.live.values():
            self.doubt(lane)
        self._drop_cold(list(self._cold.values()))

    def _drop_cold(self, lanes: list[Lane]) -> None:
        for lane in lanes:
            del self._cold[lane.key]
            self._drop(lane)

    def close(self) -> None:
        """At shutdown: what was claimed and has not started is for others to send."""
        for lane in self.live.values():
            held = [*lane.fresh, *lane.due, *([lane.probe] if lane.probe else [])]
            if held:
                self._store.submit(Shelve([entry.message for entry in held]))

    def _save(self, lane: Lane) -> None:
        """What was counted is in the store."""

    def _create(self, key: str, host: str) -> Lane:
        return SharedLane(key, self._host(host))

    def _new_host(self, name: str) -> Host:
        host = SharedHost(name, self._per_host, self._per_host, whole=self._per_host)
        self._share(host)
        return host

    def _share(self, host: Host) -> None:
        _shared(host).share(self.watch, self._per_host, self._interval(host.name))


def _shared(host: Host) -> SharedHost:
    assert isinstance(host, SharedHost)
    return host
