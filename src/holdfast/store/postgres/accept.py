"""New messages: one group, one transaction. One statement if none has an idempotency key and there is room for all.

Whoever accepts a message only inserts it, as one that has arrived. Where it stands from then on is for the owner of its
shard to decide, which is told by a notification, or by hand where it is this replica. So ingest writes no row that
delivery writes, and needs no fence.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.core.errors import StoreFull
from holdfast.core.message import Attempt, Message, MessageId, Place, Standing
from holdfast.core.ownership import shard_of
from holdfast.core.schedule import first_place
from holdfast.core.store_rules import WATERMARK, cost_of, refusal
from holdfast.store.port import Accept, Accepted, Conflict, Duplicate, IdempotencyKey
from holdfast.store.postgres import rows, shares
from holdfast.store.postgres.arrivals import NOTIFY, notifications, parted
from holdfast.store.postgres.client import Client
from holdfast.store.postgres.connection import Connection, Cursor, beginning, commit_along
from holdfast.store.postgres.outcomes import insert_attempts
from holdfast.store.postgres.rows import ACTIVE, NUMBERS, Terms, columns
from holdfast.store.postgres.statements import Statement
from holdfast.store.transfer import StoredMessage

Use = tuple[MessageId, bytes, int]
"""What a key is used for: the message, its body's digest, and when."""
Uses = dict[bytes, Use]
"""By the keys' digests."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message with what was encoded for it on the loop. One from elsewhere may have been tried, and be dead of the
    `reason` with that number.
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


def from_elsewhere(stored: StoredMessage, key: IdempotencyKey | None = None) -> Arrival:
    operation = Accept(stored.message, key, stored.place)
    return Arrival(operation, *rows.encode(stored.message), rows.reason_number(stored.reason), stored.attempts)


def place_of(operation: Accept) -> Place:
    """Where a new message stands. What is not dead has arrived: its owner puts it where it belongs."""
    place = first_place(operation.message, operation.place)
    return place if place.standing is Standing.DEAD else place._replace(standing=Standing.ACTIVE)


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


async def accept(
    client: Client, arrivals: Sequence[Arrival], room: Room, terms: Terms, *, within: float
) -> tuple[list[Any], list[MessageId]]:
    """Results as the port has them; and what had arrived before in those own shards that get something."""
    if not _need_a_look(arrivals, room, terms):
        found = await client.execute(INSERT, _values(arrivals, terms), within=within)
        room.used += sum(cost_of(arrival.message) for arrival in arrivals)
        return [Accepted(active=True)] * len(arrivals), parted(found[0][0])
    return await client.run(partial(_look_and_accept, arrivals=arrivals, room=room, terms=terms), within=within)


def _need_a_look(arrivals: Sequence[Arrival], room: Room, terms: Terms) -> bool:
    """Whether any of them may be refused, or be a duplicate."""
    if any(arrival.operation.key is not None or arrival.operation.place is not None for arrival in arrivals):
        return True
    return room.is_close(sum(cost_of(arrival.message) for arrival in arrivals), terms)


def _look_and_accept(
    connection: Connection, arrivals: Sequence[Arrival], room: Room, terms: Terms
) -> tuple[list[Any], list[MessageId]]:
    look = Look(connection, arrivals, room, terms)
    results: list[Any] = [look.judge(arrival) for arrival in arrivals]
    chosen = [index for index, result in enumerate(results) if result is None]
    taken = take_keys(connection, uses_by([arrivals[index].operation for index in chosen], terms), terms)
    for index, arrival in enumerate(arrivals):
        key = arrival.operation.key
        if key is None or key.digest not in taken or isinstance(results[index], StoreFull):
            continue
        # Also one that is a duplicate of another in this group: that may have come second itself.
        if taken[key.digest][0] != arrival.message.id:
            results[index] = _answer(taken[key.digest], key)
    stored = [index for index in chosen if results[index] is None]
    with connection.pipeline():
        arrived = insert(connection, [arrivals[index] for index in stored], terms)
        commit_along(connection)
    for index in stored:
        results[index] = Accepted(active=True)
    room.used += look.added
    return results, [] if arrived is None else parted(arrived.fetchall()[0][0])


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
        self._is_close = room.is_close(sum(cost_of(arrival.message) for arrival in arrivals), terms)
        with beginning(connection):
            uses = connection.execute(USES, ([key.digest for key in keys],)) if keys else None
            here = connection.execute(HERE, (moved, moved)) if moved else None
        self._used: Uses = {row[0]: row[1:] for row in uses.fetchall()} if uses else {}
        self._here = {row[0] for row in here.fetchall()} if here else set()
        if self._is_close:
            hosts = {arrival.message.host for arrival in arrivals}
            self._held = shares.held(connection, hosts)
            room.measure(shares.total(connection).bytes)

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
            self._uses[key.digest] = message.id, key.body, used_at(operation, self._terms)
        cost = cost_of(message)
        self.added += cost
        self._held[message.host] = self._held.get(message.host, 0) + cost
        return None

    def _earlier(self, operation: Accept, key: IdempotencyKey) -> Use | None:
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
    """A message that is handed over may have been accepted days ago; its key is used now."""
    return operation.message.accepted_at if operation.place is None else terms.now


def _answer(use: Use, key: IdempotencyKey) -> Duplicate | Conflict:
    return Duplicate(use[0]) if use[1] == key.body else Conflict()


def uses_by(operations: Sequence[Accept], terms: Terms) -> Uses:
    return {
        operation.key.digest: (operation.message.id, operation.key.body, used_at(operation, terms))
        for operation in operations
        if operation.key is not None
    }


def take_keys(connection: Connection, wanted: Uses, terms: Terms) -> Uses:
    """Remember the keys of messages that are to be stored. Another replica may be faster with one: whoever comes second
    waits for the first one's commit, and gets its answer. Returns who has each.
    """
    taken = put_keys(connection, wanted, terms)
    return taken if len(taken) == len(wanted) else uses_of(connection, wanted)


def put_keys(connection: Connection, wanted: Uses, terms: Terms) -> Uses:
    """Add keys, and replace those whose time was over when they were used again. Returns which."""
    if not wanted:
        return {}
    put = connection.execute(
        """INSERT INTO keys AS k (digest, id, body, used)
        SELECT * FROM unnest(%s::bytea[], %s::bytea[], %s::bytea[], %s::bigint[])
        ON CONFLICT (digest) DO UPDATE SET id = excluded.id, body = excluded.body, used = excluded.used
        WHERE k.used <= excluded.used - %s::bigint RETURNING digest, id, body, used""",
        (*columns([(digest, *use) for digest, use in sorted(wanted.items())]), terms.rules.idempotency),
    )
    return {row[0]: row[1:] for row in put.fetchall()}


def uses_of(connection: Connection, digests: Collection[bytes]) -> Uses:
    """What keys are used for here."""
    found = connection.execute(USES, (list(digests),)).fetchall() if digests else []
    return {row[0]: row[1:] for row in found}


def here(connection: Connection, ids: Collection[MessageId]) -> set[MessageId]:
    """Those of some messages that are here, waiting, dead or delivered."""
    found = connection.execute(HERE, (list(ids), list(ids))).fetchall() if ids else []
    return {id for (id,) in found}


def insert(connection: Connection, arrivals: Sequence[Arrival], terms: Terms) -> Cursor | None:
    """Insert messages with their attempts, and tell the owners of their shards. Returns the answer of INSERT, which is
    not waited for as a part of a pipeline.
    """
    insert_attempts(connection, [(each.message.id, attempt) for each in arrivals for attempt in each.attempts])
    return connection.execute(INSERT.text, _values(arrivals, terms)) if arrivals else None


def _values(arrivals: Sequence[Arrival], terms: Terms) -> dict[str, Any]:
    counts = shares.Counts()
    places = [arrival.place for arrival in arrivals]
    standings = [NUMBERS[place.standing] for place in places]
    messages = [arrival.message for arrival in arrivals]
    shards = [shard_of(message.host) for message in messages]
    for message, place, standing in zip(messages, places, standings, strict=True):
        counts.add(message.host, message.lane, rows.counted_as(standing, place.due), len(message.body))
    channels, payloads = notifications([message.id for message in messages], shards, terms)
    return {
        "ids": [message.id for message in messages],
        "of_lanes": [message.lane for message in messages],
        "standings": standings,
        "born": [place.born for place in places],
        "due": [place.due for place in places],
        "retries": [place.retry for place in places],
        "attempts": [place.attempts for place in places],
        "held": [place.held for place in places],
        "reasons": [arrival.reason for arrival in arrivals],
        "sizes": [len(message.body) for message in messages],
        "shards": shards,
        "records": [arrival.record for arrival in arrivals],
        "bodies": [arrival.body for arrival in arrivals],
        "own": list(terms.owned & set(shards)),
        "channels": channels,
        "payloads": payloads,
        **counts.values(terms.writer),
    }


INSERT = Statement(f"""WITH inserted AS (
        INSERT INTO messages
        (id, lane, standing, born, due, retry, attempts, held, reason, size, shard, record, body, arrival)
        SELECT *, nextval('arrivals') FROM unnest(%(ids)s::bytea[], %(of_lanes)s::text[], %(standings)s::smallint[],
            %(born)s::bigint[], %(due)s::bigint[], %(retries)s::smallint[], %(attempts)s::integer[],
            %(held)s::boolean[], %(reasons)s::smallint[], %(sizes)s::integer[], %(shards)s::smallint[],
            %(records)s::bytea[], %(bodies)s::bytea[])
    ), counted AS ({shares.ADD})
    SELECT string_agg(id, '') FROM messages WHERE shard = ANY(%(own)s::smallint[]) AND standing = {ACTIVE}
    UNION ALL SELECT {NOTIFY} FROM unnest(%(channels)s::text[], %(payloads)s::text[]) AS v(channel, payload)""")
"""Returns the ids of what had arrived before in own shards, in one value. After it there is an empty one for each
notification.
"""
USES = "SELECT digest, id, body, used FROM keys WHERE digest = ANY(%s::bytea[])"
HERE = """SELECT id FROM messages WHERE id = ANY(%s::bytea[])
    UNION ALL SELECT id FROM delivered WHERE id = ANY(%s::bytea[])"""
