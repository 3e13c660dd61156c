"""Conversions between core's messages and places and the tables' columns, and the terms of a transaction."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.circuit import CircuitState
from holdfast.core.errors import CorruptRecord
from holdfast.core.message import Attempt, DeadReason, Message, MessageId, Place, Standing
from holdfast.core.ownership import shard_of
from holdfast.core.store_rules import StoreRules
from holdfast.store import records

ACTIVE, WAITING, RETRY, DEAD = range(4)
STANDINGS = (Standing.ACTIVE, Standing.WAITING, Standing.RETRY, Standing.DEAD)
NUMBERS = {standing: number for number, standing in enumerate(STANDINGS)}
STATES = tuple(CircuitState)
STATE_NUMBERS = {state: number for number, state in enumerate(STATES)}
REASONS = tuple(DeadReason)

PLACE = "standing, born, due, retry, attempts, held"
"""The columns of a place, in the order that `place` takes them."""


def reason_number(reason: DeadReason | None) -> int | None:
    return None if reason is None else REASONS.index(reason)


def reason_of(number: int | None) -> DeadReason:
    if number is None or not 0 <= number < len(REASONS):
        raise CorruptRecord("it is dead, and nothing tells why")
    return REASONS[number]


def place(standing: int, born: int, due: int, retry: int, attempts: int, held: bool) -> Place:
    return Place(STANDINGS[standing], born, due, retry, attempts, held)


def encode(message: Message) -> tuple[bytes, bytes | None]:
    """The record, and the body if that has a column of its own."""
    record, pieces = records.encode_message(message)
    return record, message.body if pieces else None


def message(id: MessageId, record: bytes, body: bytes | None) -> tuple[Message, int]:
    """A message and its body's size. A body with a column of its own is missing unless it is given."""
    decoded, size, apart = records.decode_message(id, record)
    if apart and body is not None:
        if len(body) != size:
            raise CorruptRecord(f"message {id.hex()}: {len(body)} of {size} bytes of its body are there")
        decoded = decoded._replace(body=body)
    return decoded, size


def attempt(number: int, record: bytes, answer: bytes | None) -> Attempt:
    return records.decode_attempt(number, record)._replace(answer=answer)


def counted_as(standing: int, due: int) -> int:
    """The standing that a message is counted under. An arrived one with a due time goes to the retries."""
    return (RETRY if due else WAITING) if standing == ACTIVE else standing


def one(row: Any) -> Any:
    """The only value of a row that is always there."""
    assert row is not None
    return row[0]


def columns(tuples: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Rows as one list for each column: the arguments of an `unnest`."""
    return [list(column) for column in zip(*tuples, strict=True)]


@dataclass(frozen=True, slots=True)
class Terms:
    """The config's rules, who makes a transaction, and when.

    `number` is this replica's; `writer` is the key of the counters that this connection writes. `owners` are the
    shards' owners as last read, to be notified of new messages; empty if the engine can't notify. `owned` are this
    replica's shards.
    """

    rules: StoreRules
    number: int
    writer: int
    now: int
    max_size: int
    owners: Mapping[int, int] = field(default_factory=dict)
    owned: Set[int] = frozenset()

    def owns(self, host: str) -> bool:
        return shard_of(host) in self.owned
