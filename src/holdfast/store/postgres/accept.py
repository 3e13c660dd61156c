"""New messages: one group, one transaction. One statement if none has an idempotency key and there is room for all.

A replica that accepts a message only inserts it, as one that has arrived. The owner of its shard decides its further
place. It gets a notification, or the message itself if it is this replica. So accepting writes no row that delivery
writes, and needs no fence.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from holdfast.core.errors import StoreFull, StoreUnreachable
from holdfast.core.message import Entry, Message, MessageId, Place, Standing, next_id
from holdfast.core.ownership import shard_of
from holdfast.core.store_rules import cost_of
from holdfast.store.batching import group_size
from holdfast.store.port import Accept, Accepted, Commit, DoneOrFailed, Operation
from holdfast.store.postgres import arrivals, rows, shares
from holdfast.store.postgres.admission import Admission, NewMessage, answer, place_of, take_keys, uses_by
from holdfast.store.postgres.arrival_feed import ArrivalFeed, Hints
from holdfast.store.postgres.arrivals import NOTIFY, notifications, parted
from holdfast.store.postgres.client import Client
from holdfast.store.postgres.membership import Member
from holdfast.store.postgres.outcomes import insert_attempts
from holdfast.store.postgres.rows import ACTIVE, NUMBERS, Terms
from holdfast.store.postgres.shards import OwnedShards
from holdfast.store.postgres.state import WORKED_WITHIN, Room, StoreState
from holdfast.store.postgres.statements import Statement
from holdfast.store.postgres.transactions import Connection, Cursor, commit_along
from holdfast.store.postgres.write_queue import WriteQueue

ANSWER_WITHIN = 5.0
"""Seconds after which a client that sent a webhook gets an error, if the database does not answer."""

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
"""Inserts messages and adds to the counters. The first row has the ids of messages that had arrived before in own
shards, in one value, by the index on (shard, arrival). An empty row follows for each notification.
"""


class Acceptor:
    """Accepts new messages in groups. Those of this replica's hosts go to delivery, others to their owners."""

    def __init__(
        self,
        client: Client,
        notifier: Client,
        state: StoreState,
        member: Member,
        shards: OwnedShards,
        feed: ArrivalFeed,
        random_bits: Callable[[int], int],
    ) -> None:
        self._client = client
        self._notifier = notifier
        self._state = state
        self._member = member
        self._shards = shards
        self._feed = feed
        self._random_bits = random_bits
        self._last_id = bytes(16)
        self._arrived_before: list[MessageId] = []
        self._holds_hints = False
        self.hints = Hints(self._notify, lambda: member.delivering)
        self.queue = WriteQueue(self._write, group_size, self._report)

    def mint(self, now: int) -> MessageId:
        self._last_id = next_id(self._last_id, now, self._random_bits(80))
        return self._last_id

    async def _write(self, operations: Sequence[Operation]) -> list[Any]:
        messages = [
            NewMessage(operation, *rows.encode(operation.message))
            for operation in operations
            if isinstance(operation, Accept)
        ]
        terms = self._member.terms(0)
        self._holds_hints = bool(terms.owners) and not self.hints.go_along()
        if self._holds_hints:
            terms = replace(terms, owners={})
        try:
            with self._feed.known.noting_left() as left:
                results, arrived = await accept(self._client, messages, self._state.room, terms, within=ANSWER_WITHIN)
                self._arrived_before = [id for id in arrived if id not in left]
        except StoreUnreachable as error:
            self._state.disconnected(error)
            raise
        return results

    def _report(self, operations: Sequence[Operation], results: Sequence[Any]) -> None:
        in_order, known = self._feed.is_up_to_date(self._arrived_before), self._feed.known
        self._arrived_before = []
        accepted: list[Message] = []
        arrived: list[Entry] = []
        for operation, result in zip(operations, results, strict=True):
            if type(result) is Accepted and isinstance(operation, Accept):
                entry = self._own_entry(operation, in_order)
                if entry is not None and entry.message.id not in known:
                    known.add(entry.message, entry.place.born)
                    arrived.append(entry)
                accepted.append(operation.message)
            elif isinstance(result, StoreUnreachable) and not isinstance(operation.done, DoneOrFailed):
                continue
            if operation.done is not None:
                operation.done(result)
        commit = Commit(len(operations), self.queue.last, accepted, arrived, is_scarce=self._state.full)
        self._state.listener.committed(commit)

    def _own_entry(self, operation: Accept, in_order: bool) -> Entry | None:
        """An accepted message for this replica's delivery. None: its owner was notified, or it waits for its turn."""
        message = operation.message
        if not self._shards.owns(message.host) or self._shards.is_leaving(message.host):
            if self._holds_hints:
                self.hints.hold(message)
            return None
        if not in_order:
            self._feed.hold_back(Entry(message, place_of(operation)))
            return None
        if operation.place is not None:
            return Entry(message, operation.place._replace(standing=Standing.ACTIVE))
        return Entry(message, Place(Standing.ACTIVE, message.born, message.born if message.is_delayed else 0))

    async def _notify(self, ids: Sequence[MessageId], shards: Sequence[int]) -> None:
        channels, payloads = notifications(ids, shards, self._member.terms(0))
        if channels:
            with suppress(StoreUnreachable):  # The owners' next beats find them.
                values = {"channels": channels, "payloads": payloads}
                await self._notifier.execute(arrivals.SEND, values, within=WORKED_WITHIN)


async def accept(
    client: Client, messages: Sequence[NewMessage], room: Room, terms: Terms, *, within: float
) -> tuple[list[Any], list[MessageId]]:
    """Returns the results of the port, and the messages that had arrived before in the same own shards."""
    if not _may_be_refused(messages, room, terms):
        found = await client.execute(INSERT, _values(messages, terms), within=within)
        room.used += sum(cost_of(each.message) for each in messages)
        return [Accepted(active=True)] * len(messages), parted(found[0][0])
    return await client.run(partial(_judge_and_accept, messages=messages, room=room, terms=terms), within=within)


def _may_be_refused(messages: Sequence[NewMessage], room: Room, terms: Terms) -> bool:
    """Whether a message may be refused, or be a duplicate."""
    if any(each.operation.key is not None or each.operation.place is not None for each in messages):
        return True
    return room.is_close(sum(cost_of(each.message) for each in messages), terms)


def _judge_and_accept(
    connection: Connection, messages: Sequence[NewMessage], room: Room, terms: Terms
) -> tuple[list[Any], list[MessageId]]:
    admission = Admission(connection, messages, room, terms)
    results: list[Any] = [admission.judge(each) for each in messages]
    chosen = [index for index, result in enumerate(results) if result is None]
    taken = take_keys(connection, uses_by([messages[index].operation for index in chosen], terms), terms)
    for index, each in enumerate(messages):
        key = each.operation.key
        if key is None or key.digest not in taken or isinstance(results[index], StoreFull):
            continue
        # Also for a duplicate within this group: the first of the two may be a duplicate of another replica's.
        if taken[key.digest][0] != each.message.id:
            results[index] = answer(taken[key.digest], key)
    stored = [index for index in chosen if results[index] is None]
    with connection.pipeline():
        arrived = insert(connection, [messages[index] for index in stored], terms)
        commit_along(connection)
    for index in stored:
        results[index] = Accepted(active=True)
    room.used += admission.added
    return results, [] if arrived is None else parted(arrived.fetchall()[0][0])


def insert(connection: Connection, messages: Sequence[NewMessage], terms: Terms) -> Cursor | None:
    """Inserts messages with their attempts, and notifies the owners of their shards. Returns the cursor of INSERT. In a
    pipeline this does not wait.
    """
    insert_attempts(connection, [(each.message.id, attempt) for each in messages for attempt in each.attempts])
    return connection.execute(INSERT.text, _values(messages, terms)) if messages else None


def _values(group: Sequence[NewMessage], terms: Terms) -> dict[str, Any]:
    counts = shares.Counts()
    places = [each.place for each in group]
    standings = [NUMBERS[place.standing] for place in places]
    messages = [each.message for each in group]
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
        "reasons": [each.reason for each in group],
        "sizes": [len(message.body) for message in messages],
        "shards": shards,
        "records": [each.record for each in group],
        "bodies": [each.body for each in group],
        "own": list(terms.owned & set(shards)),
        "channels": channels,
        "payloads": payloads,
        **counts.values(terms.writer),
    }
