"""New messages: one group, one transaction, a handful of round trips however many there are.

A message that this replica takes at once, while nothing unclaimed waits before it in its lane, is inserted as its own;
any other one waits for whoever claims it first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.circuit import Circuit
from holdfast.core.errors import StoreFull
from holdfast.core.message import Message, MessageId, Place, Standing
from holdfast.store.port import Accept, Accepted, Conflict, Duplicate, IdempotencyKey
from holdfast.store.postgres import counting, rows, waking
from holdfast.store.postgres.connection import Connection, beginning, commit_along
from holdfast.store.postgres.rows import NUMBERS, RETRY, WAITING
from holdfast.store.postgres.terms import Terms
from holdfast.store.room import WATERMARK
from holdfast.store.shares import MESSAGE_COST

Uses = dict[bytes, tuple[MessageId, bytes]]
"""What each key's digest was used for: the message, and its body's digest."""

Wanted = dict[bytes, tuple[MessageId, bytes, int]]
"""What keys are to be used for, and when they were."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message with what was encoded for it on the loop; `offered`: this replica would take it at once."""

    operation: Accept
    record: bytes
    body: bytes | None
    offered: bool

    @property
    def message(self) -> Message:
        return self.operation.message


@dataclass(slots=True)
class Room:
    """What the store held when it was last measured, and what was accepted here since."""

    used: int = 0
    is_measured: bool = False

    def measure(self, used: int) -> None:
        self.used, self.is_measured = used, True

    def is_close(self, coming: int, terms: Terms) -> bool:
        """Whether the sums are worth asking for: while the whole store holds less, no host can be over its share."""
        most = 0.8 * terms.max_size * min(WATERMARK, terms.rules.host_share)
        return not self.is_measured or self.used + coming > most


def accept(connection: Connection, arrivals: Sequence[Arrival], room: Room, lanes: set[str], terms: Terms) -> list[Any]:
    """Results as the port has them. `lanes` are known to have their rows; those that get them are added."""
    look = Look(connection, arrivals, room, terms)
    results: list[Any] = [look.judge(arrival) for arrival in arrivals]
    chosen = [index for index, result in enumerate(results) if result is None]
    taken = take_keys(connection, _wanted([arrivals[index].operation for index in chosen], terms), terms)
    for index, arrival in enumerate(arrivals):
        key = arrival.operation.key
        if key is None or key.digest not in taken or isinstance(results[index], StoreFull):
            continue
        # Also one that is a duplicate of another in this group: that may have come second itself.
        if taken[key.digest][0] != arrival.message.id:
            results[index] = _answer(taken[key.digest], key)
    stored = [index for index in chosen if results[index] is None]
    seats = [seat_of(arrivals[index], look.queues) for index in stored]
    insert(connection, [arrivals[index] for index in stored], seats, [None] * len(stored), lanes, terms)
    for index, seat in zip(stored, seats, strict=True):
        results[index] = Accepted(active=seat.standing is Standing.ACTIVE)
    connection.commit()
    room.used += look.added
    lanes.update(arrivals[index].message.lane for index in stored)
    return results


class Look:
    """What the tables tell of a group before anything is written."""

    def __init__(self, connection: Connection, arrivals: Sequence[Arrival], room: Room, terms: Terms) -> None:
        self._terms = terms
        self._uses: Uses = {}
        self._held: dict[str, int] = {}
        self._room = room
        self.added = 0
        keys = [arrival.operation.key for arrival in arrivals if arrival.operation.key is not None]
        moved = [arrival.message.id for arrival in arrivals if arrival.operation.place is not None]
        offered = sorted({arrival.message.lane for arrival in arrivals if arrival.offered})
        self._is_close = room.is_close(sum(_cost(arrival.message) for arrival in arrivals), terms)
        with beginning(connection):
            queues = connection.execute(_QUEUES, (offered,)) if offered else None
            uses = connection.execute(USES, ([key.digest for key in keys],)) if keys else None
            here = connection.execute(HERE, (moved, moved)) if moved else None
        self.queues = {row[0] for row in queues.fetchall()} if queues else set()
        self._used = {row[0]: row[1:] for row in uses.fetchall()} if uses else {}
        self._here = {row[0] for row in here.fetchall()} if here else set()
        if self._is_close:
            hosts = {arrival.message.host for arrival in arrivals}
            self._held = counting.held(connection, hosts)
            room.measure(counting.total(connection).bytes)

    def judge(self, arrival: Arrival) -> Any:
        """What keeps a message from being stored: an earlier use of its key, or want of room."""
        operation, message = arrival.operation, arrival.message
        key = operation.key
        if key is not None:
            earlier = self._earlier(operation, key)
            if earlier is not None:
                return _answer(earlier, key)
            if message.id in self._here:
                return Duplicate(message.id)
        refusal = self._refusal(message)
        if refusal is not None:
            return refusal
        if key is not None:
            self._uses[key.digest] = message.id, key.body
        cost = _cost(message)
        self.added += cost
        self._held[message.host] = self._held.get(message.host, 0) + cost
        return None

    def _earlier(self, operation: Accept, key: IdempotencyKey) -> tuple[MessageId, bytes] | None:
        if key.digest in self._uses:
            return self._uses[key.digest]
        id, body, used = self._used.get(key.digest, (b"", b"", 0))
        return (id, body) if used > used_at(operation, self._terms) - self._terms.rules.idempotency else None

    def _refusal(self, message: Message) -> StoreFull | None:
        if not self._is_close:
            return None
        terms = self._terms
        if self._room.used + self.added > WATERMARK * terms.max_size:
            return StoreFull("the store is full; deliveries go on and make room")
        held = self._held.get(message.host, 0)
        if held + _cost(message) > terms.max_size * terms.rules.host_share:
            text = f"waiting and dead messages of {message.host} hold their whole share of the store"
            return StoreFull(text, host=message.host)
        return None


def _cost(message: Message) -> int:
    return MESSAGE_COST + len(message.body)


def used_at(operation: Accept, terms: Terms) -> int:
    """A message that is handed over may have been accepted days ago; its key is used now."""
    return operation.message.accepted_at if operation.place is None else terms.now


def _answer(use: tuple[MessageId, bytes], key: IdempotencyKey) -> Duplicate | Conflict:
    return Duplicate(use[0]) if use[1] == key.body else Conflict()


def _wanted(operations: Sequence[Accept], terms: Terms) -> Wanted:
    return {
        operation.key.digest: (operation.message.id, operation.key.body, used_at(operation, terms))
        for operation in operations
        if operation.key is not None
    }


def take_keys(connection: Connection, wanted: Wanted, terms: Terms) -> Uses:
    """Remember the keys of messages that are to be stored. Another replica may be faster with one: whoever comes second
    waits for the first one's commit, and gets its answer. Returns who has each.
    """
    if not wanted:
        return {}
    digests = sorted(wanted)
    uses = [wanted[digest] for digest in digests]
    found = connection.execute(
        """INSERT INTO keys AS k (digest, id, body, used)
        SELECT * FROM unnest(%s::bytea[], %s::bytea[], %s::bytea[], %s::bigint[])
        ON CONFLICT (digest) DO UPDATE SET id = excluded.id, body = excluded.body, used = excluded.used
        WHERE k.used <= excluded.used - %s::bigint RETURNING digest, id, body""",
        (
            digests,
            [id for id, _, _ in uses],
            [body for _, body, _ in uses],
            [used for _, _, used in uses],
            terms.rules.idempotency,
        ),
    ).fetchall()
    if len(found) < len(digests):
        found = [row[:3] for row in connection.execute(USES, (digests,)).fetchall()]
    return {digest: (id, body) for digest, id, body in found}


def seat_of(arrival: Arrival, queues: set[str]) -> Place:
    """Where a new message stands."""
    message, place = arrival.message, arrival.operation.place
    if place is not None and place.standing not in (Standing.ACTIVE, Standing.WAITING):
        return place
    if place is None and message.born > message.accepted_at:
        return Place(Standing.RETRY, message.born, message.born, held=True)
    if place is None and arrival.offered and message.lane not in queues:
        return Place(Standing.ACTIVE, message.born)
    queues.add(message.lane)
    return Place(Standing.WAITING, message.born) if place is None else place._replace(standing=Standing.WAITING)


def insert(
    connection: Connection,
    arrivals: Sequence[Arrival],
    seats: Sequence[Place],
    reasons: Sequence[int | None],
    known: set[str],
    terms: Terms,
) -> None:
    """Put messages where they stand. `reasons` are the numbers of those that dead ones died of."""
    if not arrivals:
        return
    counts = counting.Counts()
    claimable: dict[str, int] = {}
    for arrival, seat in zip(arrivals, seats, strict=True):
        message, standing = arrival.message, NUMBERS[seat.standing]
        counts.add(message.host, message.lane, standing, len(message.body))
        if standing in (WAITING, RETRY):
            moment = terms.now if standing == WAITING else seat.due
            claimable[message.lane] = min(moment, claimable.get(message.lane, moment))
    new = {arrival.message.lane: arrival.message.host for arrival in arrivals if arrival.message.lane not in known}
    with connection.pipeline():
        connection.execute(
            """INSERT INTO messages
            (id, lane, standing, born, due, retry, attempts, held, reason, size, owner, record, body)
            SELECT * FROM unnest(%s::bytea[], %s::text[], %s::smallint[], %s::bigint[], %s::bigint[], %s::smallint[],
                %s::integer[], %s::boolean[], %s::smallint[], %s::integer[], %s::bigint[], %s::bytea[],
                %s::bytea[])""",
            (
                [arrival.message.id for arrival in arrivals],
                [arrival.message.lane for arrival in arrivals],
                [NUMBERS[seat.standing] for seat in seats],
                [seat.born for seat in seats],
                [seat.due for seat in seats],
                [seat.retry for seat in seats],
                [seat.attempts for seat in seats],
                [seat.held for seat in seats],
                list(reasons),
                [len(arrival.message.body) for arrival in arrivals],
                [terms.number if seat.standing is Standing.ACTIVE else None for seat in seats],
                [arrival.record for arrival in arrivals],
                [arrival.body for arrival in arrivals],
            ),
        )
        counts.write(connection, terms.writer)
        if new:
            know_lanes(connection, new, terms)
        if not claimable:
            commit_along(connection)
    waking.lower(connection, claimable, terms, born=all(arrival.operation.place is None for arrival in arrivals))


def know_lanes(connection: Connection, lanes: dict[str, str], terms: Terms) -> None:
    """Lanes that may be new get their rows, with the moment at which they are forgotten if nothing more comes."""
    keys = sorted(lanes)
    hosts = sorted(set(lanes.values()))
    circuit = Circuit(since=terms.now, enabled_at=terms.now)
    connection.execute(
        """INSERT INTO lanes (lane, host, state, spell, changed_at, record)
        SELECT v.lane, v.host, 0, 0, %s::bigint, v.record FROM unnest(%s::text[], %s::text[], %s::bytea[])
            AS v(lane, host, record) ON CONFLICT (lane) DO NOTHING""",
        (
            terms.now,
            keys,
            [lanes[key] for key in keys],
            [rows.encode_circuit(key, lanes[key], circuit) for key in keys],
        ),
    )
    connection.execute(
        """INSERT INTO hosts (host, most, streak, hold_until, run)
        SELECT v, 0, 0, 0, %s::bigint FROM unnest(%s::text[]) AS v ON CONFLICT (host) DO NOTHING""",
        (terms.run, hosts),
    )
    connection.execute(
        """INSERT INTO wakes (lane, at) SELECT v, %s::bigint FROM unnest(%s::text[]) AS v
        ON CONFLICT (lane) DO NOTHING""",
        (terms.now + terms.rules.circuit.forget_after, keys),
    )


# Asked for in the index's order: beside one lane that holds nearly all there is, EXISTS reads the whole table.
_QUEUES = """SELECT v FROM unnest(%s::text[]) AS v WHERE (
    SELECT born FROM messages m WHERE m.lane = v AND m.standing = 1 AND m.owner IS NULL ORDER BY born, id LIMIT 1
    ) IS NOT NULL"""
USES = "SELECT digest, id, body, used FROM keys WHERE digest = ANY(%s::bytea[])"
HERE = """SELECT id FROM messages WHERE id = ANY(%s::bytea[])
    UNION ALL SELECT id FROM delivered WHERE id = ANY(%s::bytea[])"""
