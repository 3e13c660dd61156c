"""Messages that have arrived and are not in their lanes' queues yet.

A notification names the messages themselves, so that the owner reads just those, in the order of their commits. If one
gets lost, the next beat compares all that has arrived in the owner's shards with what it has in memory.
"""

from base64 import b64decode, b64encode
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.core.errors import CorruptRecord
from holdfast.core.message import Entry, MessageId
from holdfast.core.ownership import shard_of
from holdfast.store import records
from holdfast.store.port import Operation
from holdfast.store.postgres import lane_rows, rows
from holdfast.store.postgres.client import Client
from holdfast.store.postgres.ownership_tables import CHANNEL
from holdfast.store.postgres.rows import ACTIVE, RETRY, WAITING, Terms
from holdfast.store.postgres.statements import Statement
from holdfast.store.postgres.transactions import Connection, Cursor
from holdfast.store.validation import check_message

ID = 16
ARRIVED = "arrived "
"""The first word of a notification that names messages."""
NAMED_AT_ONCE = 300
"""Messages in one notification, which has at most 8,000 bytes; each takes 21 or 22."""
SHELVED_AT_ONCE = 1_000
CLOCKS_DIFFER = 5_000
"""Milliseconds. A message that is older by more was moved from another store or replayed, and keeps its age."""

NOTIFY = "convert_to(pg_notify(channel, payload)::text, 'UTF8')"
"""Notifies, and is an empty value, as bytes."""
# Sends notifications by themselves. Each is a commit that wakes every session that listens.
SEND = Statement(f"""SELECT {NOTIFY} FROM unnest(%(channels)s::text[], %(payloads)s::text[])
    AS v(channel, payload)""")
_ARRIVED = Statement(f"""SELECT id, {rows.PLACE}, record, body FROM messages
    WHERE id = ANY(%(ids)s::bytea[]) AND standing = {ACTIVE}
    UNION ALL SELECT NULL, 0, 0, 0, 0, 0, false, string_agg(id, '' ORDER BY arrival), NULL FROM messages
    WHERE standing = {ACTIVE} AND shard = ANY(
        ARRAY(SELECT shard FROM messages WHERE id = ANY(%(ids)s::bytea[])) || %(shards)s::smallint[])""")
"""Messages by primary key. The last row has the ids of all messages that have arrived in their shards and in `shards`,
in one value, by the index on (shard, arrival): these may be many more.
"""
# By the same index.
_FOUND = f"""SELECT id FROM messages WHERE shard = ANY(%s::smallint[]) AND standing = {ACTIVE}
    ORDER BY shard, arrival LIMIT %s"""
_SHELVE = f"""UPDATE messages m SET standing = CASE WHEN due > 0 THEN {RETRY} ELSE {WAITING} END{{also}}
    WHERE {{chosen}} AND standing = {ACTIVE} RETURNING m.id, m.lane, m.due, m.born, m.arrival, (
        SELECT int8send(q.arrival) || int8send(q.born) || q.id FROM messages q
        WHERE q.lane = m.lane AND q.standing = {WAITING} ORDER BY q.born DESC, q.id DESC LIMIT 1), m.record"""
"""Moves arrived messages to their queues. Each row has the last message of the queue before, by the queue's index."""
_SHELVE_THESE = _SHELVE.format(
    also=", born = coalesce(v.born, m.born) FROM unnest(%s::bytea[], %s::bigint[]) AS v(id, born)",
    chosen="m.id = v.id",
)
_SHELVE_SOME = _SHELVE.format(
    also="",
    chosen=f"""id = ANY(ARRAY(SELECT id FROM messages WHERE shard = ANY(%s::smallint[]) AND standing = {ACTIVE}
        ORDER BY shard, arrival LIMIT %s))""",
)
_SET_BORN = """UPDATE messages m SET born = v.born FROM unnest(%s::bytea[], %s::bigint[]) AS v(id, born)
    WHERE m.id = v.id"""


class Arrived(NamedTuple):
    """Messages for their owner, and those whose records can't be read, with the fault."""

    entries: list[Entry]
    broken: list[tuple[MessageId, str]]


@dataclass(slots=True)
class ShelveArrived(Operation):
    """Messages that have arrived in shards and are in no memory go to their queues. `shards` are given with their
    epochs. Result: how many messages. There may be more if that is `SHELVED_AT_ONCE`.
    """

    shards: Mapping[int, int]


def notifications(ids: Sequence[MessageId], shards: Sequence[int], terms: Terms) -> tuple[list[str], list[str]]:
    """Channels and payloads that name new messages to the other replicas that own their shards."""
    by_owner: dict[int, list[MessageId]] = {}
    for id, shard in zip(ids, shards, strict=True):
        owner = terms.owners.get(shard)
        if owner is not None and owner != terms.number:
            by_owner.setdefault(owner, []).append(id)
    channels, payloads = [], []
    for owner, named in by_owner.items():
        for start in range(0, len(named), NAMED_AT_ONCE):
            channels.append(CHANNEL.format(owner))
            payloads.append(ARRIVED + b64encode(b"".join(named[start : start + NAMED_AT_ONCE])).decode())
    return channels, payloads


def notify(connection: Connection, ids: Sequence[MessageId], shards: Sequence[int], terms: Terms) -> None:
    """Notifies the owners at the commit."""
    channels, payloads = notifications(ids, shards, terms)
    if channels:
        connection.execute(SEND.text, {"channels": channels, "payloads": payloads})


def named(payload: str) -> list[MessageId]:
    """The messages that a notification names; none if it is of another kind."""
    try:
        ids = b64decode(payload.removeprefix(ARRIVED)) if payload.startswith(ARRIVED) else b""
    except ValueError:
        return []
    return parted(ids)


def parted(ids: bytes | None) -> list[MessageId]:
    """Splits ids that are in one value."""
    return [ids[start : start + ID] for start in range(0, len(ids) - ID + 1, ID)] if ids else []


async def read(
    client: Client,
    ids: Sequence[MessageId],
    own: Mapping[MessageId, Entry],
    known: Container[MessageId],
    *,
    within: float,
) -> Arrived:
    """Reads messages that have arrived, in the order of their commits. It adds all that arrived in their shards and is
    not known, so that nothing overtakes a message whose notification got lost. `own` are messages that this replica
    accepted itself. They are not read, and take their turn among the others.
    """
    shards = list({shard_of(entry.message.host) for entry in own.values()})
    *named, there = await client.execute(_ARRIVED, {"ids": ids, "shards": shards}, within=within)
    order = [id for id in parted(there[-2]) if id not in known]
    found = {row[0]: row for row in named}
    unheard = [id for id in order if id not in found and id not in own]
    if unheard:
        rest = await client.execute(_ARRIVED, {"ids": unheard, "shards": []}, within=within)
        found |= {row[0]: row for row in rest}
    arrived = Arrived([], [])
    for id in order:
        if id in own:
            arrived.entries.append(own[id])
        elif id in found:
            _decode(found[id], arrived)
    return arrived


def _decode(row: Sequence[Any], arrived: Arrived) -> None:
    id, *place, record, body = row
    try:
        message, size = rows.message(id, record, body)
        check_message(message, size)
        arrived.entries.append(Entry(message, rows.place(*place)))
    except CorruptRecord as error:
        arrived.broken.append((id, str(error)))


def unknown(connection: Connection, shards: Iterable[int], known: Container[MessageId], limit: int) -> list[MessageId]:
    """Messages that have arrived in some shards and are not known. `limit` bounds how many are looked at."""
    found = connection.execute(_FOUND, (list(shards), limit)).fetchall()
    connection.commit()
    return [id for (id,) in found if id not in known]


def ask_shelved(connection: Connection, ids: Sequence[MessageId], younger: Mapping[MessageId, int]) -> Cursor:
    """Moves messages that have arrived to their queues. The cursor is for `keep_order`."""
    return connection.execute(_SHELVE_THESE, (ids, [younger.get(id) for id in ids]))


def shelve(connection: Connection, operation: ShelveArrived, terms: Terms) -> int:
    """Carries out ShelveArrived."""
    shelved = connection.execute(_SHELVE_SOME, (list(operation.shards), SHELVED_AT_ONCE)).fetchall()
    keep_order(connection, shelved)
    touched: dict[str, str] = {}
    for id, lane, *_, record in shelved:
        message = records.message_or_none(id, record)
        # An unreadable record is reported when its lane is read.
        touched[lane] = message.host if message is not None else touched.get(lane, lane)
    lane_rows.review(connection, touched, terms)
    return len(shelved)


def keep_order(connection: Connection, shelved: Iterable[tuple[Any, ...]]) -> None:
    """Makes each message younger than the one accepted before it: queues go by age, and replicas' clocks differ."""
    last: dict[str, bytes] = {}
    younger: dict[MessageId, int] = {}
    for id, lane, due, born, arrival, tail, _ in sorted(shelved, key=lambda row: int(row[4])):
        if due:
            continue
        before = last.get(lane, b"")
        if tail is not None and int.from_bytes(tail[:8], "big") < arrival:
            before = max(before, tail[8:])
        ahead = int.from_bytes(before[:8], "big")
        if born.to_bytes(8, "big") + id < before and ahead - born < CLOCKS_DIFFER:
            born = younger[id] = ahead + 1
        last[lane] = born.to_bytes(8, "big") + id
    if younger:
        connection.execute(_SET_BORN, (list(younger), list(younger.values())))
