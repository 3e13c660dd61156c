"""What the owner of shards does with whole ones: take in what has arrived there, and give one to another replica."""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.store import records
from holdfast.store.port import Operation
from holdfast.store.postgres import arrivals, lanes
from holdfast.store.postgres.connection import Connection
from holdfast.store.postgres.ownership import CHANNEL, MEMBER, MOVED
from holdfast.store.postgres.terms import Terms


@dataclass(slots=True)
class TakeIn(Operation):
    """What has arrived in shards, and is in nobody's memory, goes to the queues. Result: how many; more may be there if
    that is `arrivals.SHELVED_AT_ONCE`.
    """

    shards: Mapping[int, int]


@dataclass(slots=True)
class Release(Operation):
    """Shards go to other members, each to nobody if that one is gone by now."""

    shards: Mapping[int, int]
    to: Mapping[int, int]


def take_in(connection: Connection, operation: TakeIn, terms: Terms) -> int:
    found = arrivals.shelve(connection, operation.shards)
    touched: dict[str, str] = {}
    for id, lane, record in found:
        message = records.message_or_none(id, record)
        # Of one that can't be read whoever reads the lane tells.
        touched[lane] = message.host if message is not None else touched.get(lane, lane)
    lanes.review(connection, touched, terms)
    return len(found)


def release(connection: Connection, operation: Release, terms: Terms) -> None:
    connection.execute(
        f"""UPDATE shards s SET epoch = epoch + 1, owner = ({MEMBER.format("v.number")})
        FROM unnest(%s::smallint[], %s::bigint[]) AS v(shard, number) WHERE s.shard = v.shard""",
        (list(operation.to), list(operation.to.values())),
    )
    channels = [CHANNEL.format(number) for number in set(operation.to.values())]
    connection.execute("SELECT pg_notify(c, %s) FROM unnest(%s::text[]) AS v(c)", (MOVED, channels))
