"""The lanes and hosts in memory.

A lane is read from the store when one of its messages may start. A live lane has messages in memory or attempts in
flight. A lane with neither is cold: it is kept for a while, because a healthy host's next message comes soon, and its
counters are saved when it leaves. So a host that waits costs no memory, however long its queue.
"""

from collections import OrderedDict
from collections.abc import Mapping

from holdfast.core.budget import DELIVERING_BYTES, Budget, weight_of
from holdfast.core.circuit import Circuit
from holdfast.core.lane import Host, Lane
from holdfast.core.message import Message
from holdfast.store.port import LaneRecord, SaveLane, Store

COLD_LANES = 4_096
HOSTS_REMEMBERED = 16_384
"""Hosts that left memory and whose `answers` is remembered."""


class LaneCache:
    """Finds lanes by key. `rate` is the limit of requests a second for every host, `rates` for single hosts; 0 is no
    limit.
    """

    def __init__(self, store: Store, run: int, per_host: int, rate: float, rates: Mapping[str, float]) -> None:
        self._store = store
        self._per_host = per_host
        self.run = run
        """When this process began to deliver; if replicas share the store, when the fleet did."""
        self._rate = rate
        self._rates = rates
        self._hosts: dict[str, Host] = {}
        self._answers: OrderedDict[str, bool] = OrderedDict()
        self._cold: OrderedDict[str, Lane] = OrderedDict()
        self.live: dict[str, Lane] = {}
        self.memory = Budget(DELIVERING_BYTES)

    def configure(self, per_host: int, rate: float, rates: Mapping[str, float]) -> None:
        self._per_host, self._rate, self._rates = per_host, rate, rates
        for host in self._hosts.values():
            host.configure(per_host, self._interval(host.name))

    def _interval(self, host: str) -> float:
        """Milliseconds between two requests to a host. The lower rate counts."""
        rates = [rate for rate in (self._rate, self._rates.get(host, 0)) if rate]
        return 1000 / min(rates) if rates else 0.0

    def has_room(self, lane: Lane) -> bool:
        """Whether more messages of this lane may be in memory."""
        return self.memory.admits(lane.host.host_class, idle=not lane.known)

    def charge(self, lane: Lane, message: Message) -> None:
        """Count a message of this lane that is in memory."""
        if message.id not in lane.known:
            cost = lane.known[message.id] = lane.host.host_class, weight_of(message)
            self.memory.take(*cost)

    def release(self, lane: Lane, message: Message) -> None:
        cost = lane.known.pop(message.id, None)
        if cost is not None:
            self.memory.give_back(*cost)

    def find(self, key: str) -> Lane | None:
        return self.live.get(key) or self._cold.get(key)

    def make_live(self, key: str, host: str | None) -> Lane:
        """Returns the lane of this key and makes it live. A lane that was not in memory is not hydrated yet."""
        lane = self.live.get(key)
        if lane is None:
            lane = self._cold.pop(key, None) or Lane(key, self._host(host or key))
            self.live[key] = lane
        return lane

    def hydrate(self, lane: Lane, record: LaneRecord | None, now: int) -> None:
        """Give a lane its stored record. A host whose record is from another run begins in slow start.

        So does a host with several circuits: one may be new to this run and another old.
        """
        lane.hydrated = True
        lane.stored = record is not None
        if record is None:
            lane.circuit = Circuit.new(now)
        else:
            self._take_over(lane, record)
        host = lane.host
        if not host.known:
            host.known = True
            is_new = (record is None or record.run == self.run) and lane.key == host.name
            limit = self._per_host if record is None else min(record.limit, self._per_host)
            host.limit = limit if is_new else 1

    def _take_over(self, lane: Lane, record: LaneRecord) -> None:
        if record.host != lane.host.name:
            self._move(lane, record.host)
        lane.circuit = record.circuit
        host = lane.host
        host.hold_until = max(host.hold_until, record.hold_until)
        if host.answers is None:
            host.answers = record.answers

    def make_cold(self, lane: Lane) -> None:
        """Make a lane cold that has nothing left in memory. If there are too many, the oldest is saved and leaves."""
        if self.live.pop(lane.key, None) is None:
            return
        lane.host.reads.discard(lane)
        if not lane.hydrated:
            self._drop(lane)
            return
        self._cold[lane.key] = lane
        if len(self._cold) > COLD_LANES:
            _, oldest = self._cold.popitem(last=False)
            self._save(oldest)
            self._drop(oldest)

    def forget(self, key: str) -> None:
        """A lane's record was removed. A lane that is live again stays, and its next outcome writes it."""
        lane = self._cold.pop(key, None)
        if lane is not None:
            self._drop(lane)

    def all_lanes(self) -> list[Lane]:
        return [*self.live.values(), *self._cold.values()]

    def save_and_drop(self, lane: Lane) -> None:
        """Save and drop a lane that goes to another replica. Nothing of it is left in memory."""
        self._save(lane)
        self.drop(lane)

    def drop(self, lane: Lane) -> None:
        """Drop a lane without saving it: another replica may have changed it."""
        self.live.pop(lane.key, None)
        self._cold.pop(lane.key, None)
        self._drop(lane)

    def clear(self) -> None:
        """Drop everything without saving it: other replicas deliver now."""
        self.live.clear()
        self._cold.clear()
        self._hosts.clear()

    def close(self) -> None:
        """At shutdown, save all counters that are not on disk."""
        for lane in self.all_lanes():
            self._save(lane)

    def _save(self, lane: Lane) -> None:
        if lane.hydrated and lane.dirty:
            lane.dirty = False
            self._store.submit(SaveLane(lane))

    def _host(self, name: str) -> Host:
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = Host(name, self._per_host, self._per_host, self._interval(name))
            host.answers = self._answers.get(name)
        host.lanes += 1
        return host

    def _move(self, lane: Lane, host: str) -> None:
        self._drop(lane)
        lane.host = self._host(host)

    def _drop(self, lane: Lane) -> None:
        lane.host.lanes -= 1
        if not lane.host.lanes and not lane.host.in_flight and self._hosts.get(lane.host.name) is lane.host:
            del self._hosts[lane.host.name]
            self._remember_answers(lane.host)

    def _remember_answers(self, host: Host) -> None:
        """A host's share of the budgets depends on whether it answers, also when it comes back to memory."""
        if host.answers is None:
            return
        self._answers[host.name] = host.answers
        self._answers.move_to_end(host.name)
        if len(self._answers) > HOSTS_REMEMBERED:
            self._answers.popitem(last=False)
