"""One group under way: its transaction, the lanes that it touched, and how messages move between indexes.

Each method keeps all indexes of one message in step. tables.py shows the indexes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.errors import CorruptRecord
from holdfast.core.message import DeadReason, Message, MessageId, Place, Standing
from holdfast.core.store_rules import StoreRules
from holdfast.store import records
from holdfast.store.embedded import idempotency_keys
from holdfast.store.embedded.shares import RoomKeeper
from holdfast.store.embedded.tables import Table, Transaction, first_value, prefixed
from holdfast.store.port import LaneRecord, Operation
from holdfast.store.records import lane_key, numbered, stamp


@dataclass(slots=True)
class Group:
    """Operations to be committed together, with what was encoded for them on the loop. `claim` is the room that the new
    messages may take, see room.py.
    """

    operations: Sequence[Operation]
    prepared: list[Any]
    lanes: dict[str, bytes]
    claim: int
    now: int
    last_id: MessageId


@dataclass(slots=True)
class GroupWork:
    transaction: Transaction
    group: Group
    rules: StoreRules
    room: RoomKeeper
    touched: set[str] = field(default_factory=set)
    finished: list[MessageId] = field(default_factory=list)
    _epochs: list[idempotency_keys.Epoch] | None = None
    _queues: dict[str, bool] = field(default_factory=dict)
    _lanes: set[str] = field(default_factory=set)

    @property
    def epochs(self) -> list[idempotency_keys.Epoch]:
        """Read once for a group, and again after keys were purged."""
        if self._epochs is None:
            self._epochs = idempotency_keys.epochs(self.transaction)
        return self._epochs

    def purge_keys(self, before: int, limit: int) -> int:
        self._epochs = None
        return idempotency_keys.purge(self.transaction, before, limit)

    def ensure_lane(self, lane: str, host: str) -> None:
        """Make sure that a message's lane has a record: a lane without one is never woken."""
        if self.is_known(lane):
            return
        self._lanes.add(lane)
        key = lane_key(lane)
        if self.transaction.get(Table.LANES, key) is None:
            record = LaneRecord.new(lane, host, self.rules, self.group.now)
            self.transaction.put(Table.LANES, key, records.encode_lane(record))
            self.touched.add(lane)

    def is_known(self, lane: str) -> bool:
        """Whether this group has made sure of a lane's record, or writes it at its end."""
        return lane in self._lanes or lane in self.group.lanes

    def has_queue(self, lane: str, key: bytes) -> bool:
        """Whether messages wait in a lane; read once for a lane and group."""
        known = self._queues.get(lane)
        if known is None:
            known = self._queues[lane] = first_value(self.transaction, Table.WAITING, key) is not None
        return known

    def enqueue(self, id: MessageId, lane: str, place: Place) -> None:
        """Add a message to its lane's queue. Without attempts it needs no row in PLACES."""
        self.transaction.add(Table.WAITING, lane_key(lane), stamp(place.born, id))
        if place.attempts:
            self.set_place(id, place)
        self._queues[lane] = True
        self.touched.add(lane)

    def set_retry(self, id: MessageId, lane: str, place: Place) -> None:
        """Add a message to those due later: by due time, by age, and its place."""
        key = lane_key(lane)
        self.transaction.add(Table.RETRY, key, stamp(place.due, id))
        self.transaction.add(Table.AGING, key, stamp(place.born, id))
        self.set_place(id, place)
        self.touched.add(lane)

    def place_of(self, id: MessageId, otherwise: Place) -> Place:
        value = self.transaction.get(Table.PLACES, id)
        try:
            return otherwise if value is None else records.decode_place(value)
        except CorruptRecord:
            return otherwise

    def set_place(self, id: MessageId, place: Place) -> None:
        self.transaction.put(Table.PLACES, id, records.encode_place(place))

    def leave(self, id: MessageId, lane: str, place: Place) -> bool:
        """Take a message out of its index. Returns False if it is not there any more."""
        if place.standing is Standing.ACTIVE:
            return self.transaction.delete(Table.ACTIVE, id)
        self.touched.add(lane)
        key = lane_key(lane)
        if place.standing is Standing.WAITING:
            return self.transaction.remove(Table.WAITING, key, stamp(place.born, id))
        if not self.transaction.remove(Table.RETRY, key, stamp(place.due, id)):
            return False
        self.transaction.remove(Table.AGING, key, stamp(place.born, id))
        return True

    def is_in_index(self, id: MessageId, lane: str, place: Place) -> bool:
        """Whether a message is still in the index that an entry was read from."""
        if place.standing is Standing.ACTIVE:
            return self.transaction.get(Table.ACTIVE, id) is not None
        waits = place.standing is Standing.WAITING
        table, value = (Table.WAITING, stamp(place.born, id)) if waits else (Table.RETRY, stamp(place.due, id))
        return next(self.transaction.values(table, lane_key(lane), value), None) == value

    def current_place(self, id: MessageId, lane: str, place: Place) -> Place | None:
        """Returns the place of a message that was read at `place`: the same, or where an operator's retry put it since.
        None if it was dropped, or another outcome came first.
        """
        if self.is_in_index(id, lane, place):
            return place
        now = self.place_of(id, place)
        return now if now.attempts == place.attempts and self.is_in_index(id, lane, now) else None

    def add_dead(self, id: MessageId, lane: str, place: Place, reason: DeadReason) -> None:
        key = lane_key(lane)
        letter = stamp(place.due, id)
        self.transaction.put(Table.DEAD, letter, records.encode_dead(key, reason))
        self.transaction.add(Table.DEAD_LANE, key, letter)
        self.set_place(id, place)

    def remove_dead(self, letter: bytes, lane: str) -> None:
        """Take a message out of the dead letters."""
        self.transaction.remove(Table.DEAD_LANE, lane_key(lane), letter)
        self.transaction.delete(Table.DEAD, letter)

    def erase_all(self, id: MessageId) -> None:
        """Remove a message that is in no index any more, with its place and attempts."""
        self.transaction.delete(Table.PLACES, id)
        self.erase_numbered(Table.ATTEMPTS, id)
        found = self.message_of(id)
        if found is None:
            self.erase_record(id)
        else:
            self.erase(*found)

    def message_of(self, id: MessageId) -> tuple[Message, int] | None:
        """Returns a message without its body, and the body's size; None if it is not there or can't be read."""
        value = self.transaction.get(Table.MESSAGES, id)
        try:
            return None if value is None else records.decode_message(id, value)[:2]
        except CorruptRecord:
            return None

    def erase(self, message: Message, size: int) -> None:
        """Remove the record and the body, and release the host's share."""
        self.erase_record(message.id, size)
        self.room.release(message.host, size)

    def erase_record(self, id: MessageId, size: int = 1) -> None:
        self.transaction.delete(Table.MESSAGES, id)
        if size and self.transaction.delete(Table.BODIES, numbered(id, 0)):
            self.erase_numbered(Table.BODIES, id)

    def erase_numbered(self, table: Table, id: MessageId) -> None:
        for key in [key for key, _ in prefixed(self.transaction, table, id)]:
            self.transaction.delete(table, key)
