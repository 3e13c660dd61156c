"""Which messages of a group are stored: those with no earlier use of their idempotency key, as far as there is room."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.errors import StoreFull
from holdfast.core.message import Attempt, Message, MessageId, Place, Standing
from holdfast.core.schedule import first_place
from holdfast.core.store_rules import WATERMARK, cost_of, refusal
from holdfast.store.port import Accept, Conflict, Duplicate, IdempotencyKey
from holdfast.store.postgres import rows, shares
from holdfast.store.postgres.rows import Terms, columns
from holdfast.store.postgres.state import Room
from holdfast.store.postgres.transactions import Connection, beginning
from holdfast.store.transfer import StoredMessage

Use = tuple[MessageId, bytes, int]
"""One use of a key: the message, its body's digest, and when."""
Uses = dict[bytes, Use]
"""By the keys' digests."""

_USES = "SELECT digest, id, body, used FROM keys WHERE digest = ANY(%s::bytea[])"
_STORED = """SELECT id FROM messages WHERE id = ANY(%s::bytea[])
    UNION ALL SELECT id FROM delivered WHERE id = ANY(%s::bytea[])"""
# Adds keys by primary key, and replaces those that have expired. Waits for a transaction that adds the same key.
_PUT_KEYS = """INSERT INTO keys AS k (digest, id, body, used)
    SELECT * FROM unnest(%s::bytea[], %s::bytea[], %s::bytea[], %s::bigint[])
    ON CONFLICT (digest) DO UPDATE SET id = excluded.id, body = excluded.body, used = excluded.used
    WHERE k.used <= excluded.used - %s::bigint RETURNING digest, id, body, used"""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message, encoded on the loop. One from another store may have attempts, and be dead by the `reason` with that
    number.
    """

    operation: Accept
    record: bytes
    body: bytes | None
    reason: int | None = None
    attempts: Sequence[Attempt] = ()

    @property
    def message(self) -> Message:
        return self.operation.message

    @property
    def place(self) -> Place:
        return place_of(self.operation)


def moved_message(stored: StoredMessage, key: IdempotencyKey | None = None) -> NewMessage:
    operation = Accept(stored.message, key, stored.place)
    return NewMessage(operation, *rows.encode(stored.message), rows.reason_number(stored.reason), stored.attempts)


def place_of(operation: Accept) -> Place:
    """The place of a new message. Unless it is dead it has arrived, and its owner moves it to its queue."""
    place = first_place(operation.message, operation.place)
    return place if place.standing is Standing.DEAD else place._replace(standing=Standing.ACTIVE)


class Admission:
    """Judges a group by what the tables hold before anything is written. It begins the transaction."""

    def __init__(self, connection: Connection, arrivals: Sequence[NewMessage], room: Room, terms: Terms) -> None:
        self._terms = terms
        self._uses: Uses = {}
        self._held: dict[str, int] = {}
        self._room = room
        self.added = 0
        keys = [arrival.operation.key for arrival in arrivals if arrival.operation.key is not None]
        moved = [arrival.message.id for arrival in arrivals if arrival.operation.place is not None]
        self._is_close = room.is_close(sum(cost_of(arrival.message) for arrival in arrivals), terms)
        with beginning(connection):
            uses = connection.execute(_USES, ([key.digest for key in keys],)) if keys else None
            stored = connection.execute(_STORED, (moved, moved)) if moved else None
        self._used: Uses = {row[0]: row[1:] for row in uses.fetchall()} if uses else {}
        self._stored = {row[0] for row in stored.fetchall()} if stored else set()
        if self._is_close:
            hosts = {arrival.message.host for arrival in arrivals}
            self._held = shares.held(connection, hosts)
            room.measure(shares.total(connection).bytes)

    def judge(self, arrival: NewMessage) -> Any:
        """Returns why a message is not stored: an earlier use of its key, or no room. None if it is stored."""
        operation, message = arrival.operation, arrival.message
        key = operation.key
        if key is not None:
            earlier = self._earlier_use(operation, key)
            if earlier is not None:
                return answer(earlier, key)
            if message.id in self._stored:
                return Duplicate(message.id)
        refusal = self._refusal(message)
        if refusal is not None:
            return refusal
        if key is not None:
            self._uses[key.digest] = message.id, key.body, used_at(operation, self._terms)
        cost = cost_of(message)
        self.added += cost
        self._held[message.host] = self._held.get(message.host, 0) + cost
        return None

    def _earlier_use(self, operation: Accept, key: IdempotencyKey) -> Use | None:
        if key.digest in self._uses:
            return self._uses[key.digest]
        use = self._used.get(key.digest, (b"", b"", 0))
        return use if use[2] > used_at(operation, self._terms) - self._terms.rules.idempotency else None

    def _refusal(self, message: Message) -> StoreFull | None:
        if not self._is_close:
            return None
        most = self._terms.max_size
        is_full, held = self._room.used + self.added > WATERMARK * most, self._held.get(message.host, 0)
        return refusal(message, is_full=is_full, held=held, share=most * self._terms.rules.host_share)


def used_at(operation: Accept, terms: Terms) -> int:
    """When a key is used: now, for a message that another store accepted, perhaps days ago."""
    return operation.message.accepted_at if operation.place is None else terms.now


def answer(use: Use, key: IdempotencyKey) -> Duplicate | Conflict:
    return Duplicate(use[0]) if use[1] == key.body else Conflict()


def uses_by(operations: Sequence[Accept], terms: Terms) -> Uses:
    return {
        operation.key.digest: (operation.message.id, operation.key.body, used_at(operation, terms))
        for operation in operations
        if operation.key is not None
    }


def take_keys(connection: Connection, wanted: Uses, terms: Terms) -> Uses:
    """Stores the keys of messages that are to be stored. If another replica stores the same key first, this waits for
    its commit. Returns the use that counts for each.
    """
    taken = put_keys(connection, wanted, terms)
    return taken if len(taken) == len(wanted) else uses_of(connection, wanted)


def put_keys(connection: Connection, wanted: Uses, terms: Terms) -> Uses:
    """Adds keys, and replaces those that had expired when they were used again. Returns the ones written."""
    if not wanted:
        return {}
    put = connection.execute(
        _PUT_KEYS, (*columns([(digest, *use) for digest, use in sorted(wanted.items())]), terms.rules.idempotency)
    )
    return {row[0]: row[1:] for row in put.fetchall()}


def uses_of(connection: Connection, digests: Collection[bytes]) -> Uses:
    """The stored uses of keys."""
    found = connection.execute(_USES, (list(digests),)).fetchall() if digests else []
    return {row[0]: row[1:] for row in found}


def stored(connection: Connection, ids: Collection[MessageId]) -> set[MessageId]:
    """The messages that are in the store: waiting, dead or delivered."""
    found = connection.execute(_STORED, (list(ids), list(ids))).fetchall() if ids else []
    return {id for (id,) in found}
