"""How much room there is: for everyone (the watermark), and for each host (its share).

A host's share is counted, never scanned for: each operation says what it adds or takes, and the sums become true only
when the group is on disk.
"""

from collections.abc import Callable

from holdfast.core.errors import StoreFull
from holdfast.core.message import Message
from holdfast.store.port import SCARCE
from holdfast.store.records import lane_key
from holdfast.store.tables import Room, Table, Transaction

MESSAGE_COST = 4_096
"""What each message counts for against its host's share, on top of its body."""
SHARE_DRIFT = 1 << 20
"""A host's share is written when it moved this far, not with every message:

that cost 450 KiB a message over 100,000 hosts.
"""
WATERMARK = 0.9


class RoomKeeper:
    """Used by the writer's thread alone; `full` and `scarce` may be read from anywhere."""

    def __init__(self, host_share: float, measure: Callable[[], Room]) -> None:
        self.host_share = host_share
        self._measure = measure
        self._held: dict[str, int] = {}
        self._stored: dict[str, int] = {}
        self._deltas: dict[str, int] = {}
        self._storing: dict[str, int] = {}
        self._limit = self._left = self._since_measured = 0
        self.full = self.scarce = False

    def begin(self, size: int) -> None:
        """A group with this many new bytes begins. Measuring asks every table, so it is not done for each group."""
        self._deltas = {}
        self._storing = {}
        self._since_measured += 4 * size
        if self.full or not self._limit or self._since_measured > self._left // 8:
            room = self._measure()
            self._limit = room.limit
            self._left = max(0, int(room.limit * WATERMARK) - room.used)
            self._since_measured = 0
            self.full = self._left == 0
            self.scarce = room.used > room.limit * SCARCE

    def refusal(self, transaction: Transaction, message: Message) -> StoreFull | None:
        if self.full:
            return StoreFull("the store is full; deliveries go on and make room")
        held = self._share(transaction, message.host) + self._deltas.get(message.host, 0)
        if held + MESSAGE_COST + len(message.body) > self._limit * self.host_share:
            text = f"waiting and dead messages of {message.host} hold their whole share of the store"
            return StoreFull(text, host=message.host)
        return None

    def hold(self, transaction: Transaction, host: str, body_size: int) -> None:
        self._move(transaction, host, MESSAGE_COST + body_size)

    def release(self, transaction: Transaction, host: str, body_size: int) -> None:
        self._move(transaction, host, -(MESSAGE_COST + body_size))

    def finish(self, transaction: Transaction) -> None:
        """Before the commit: write the shares that moved far."""
        for host, delta in self._deltas.items():
            held = max(0, self._held[host] + delta)
            if abs(held - self._stored[host]) >= SHARE_DRIFT:
                transaction.put(Table.SHARES, lane_key(host), held.to_bytes(8, "big"))
                self._storing[host] = held

    def committed(self) -> None:
        for host, delta in self._deltas.items():
            self._held[host] = max(0, self._held[host] + delta)
        self._stored.update(self._storing)

    def flush(self, transaction: Transaction) -> None:
        """At shutdown: write every share as it is."""
        for host, held in self._held.items():
            if held != self._stored[host]:
                transaction.put(Table.SHARES, lane_key(host), held.to_bytes(8, "big"))

    def _share(self, transaction: Transaction, host: str) -> int:
        held = self._held.get(host)
        if held is None:
            value = transaction.get(Table.SHARES, lane_key(host))
            held = int.from_bytes(value, "big") if value else 0
            self._held[host] = self._stored[host] = held
        return held

    def _move(self, transaction: Transaction, host: str, delta: int) -> None:
        self._share(transaction, host)
        self._deltas[host] = self._deltas.get(host, 0) + delta
