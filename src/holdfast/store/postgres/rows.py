"""How messages, places and lanes look in the tables, and back."""

from collections.abc import Mapping, Set
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


def number_of(reason: DeadReason | None) -> int | None:
    return None if reason is None else REASONS.index(reason)


def place(standing: int, born: int, due: int, retry: int, attempts: int, held: bool) -> Place:
    return Place(STANDINGS[standing], born, due, retry, attempts, held)


def encode(message: Message) -> tuple[bytes, bytes | None]:
    """The record, and the body where it is kept apart."""
    record, pieces = records.encode_message(message)
    return record, message.body if pieces else None


def message(id: MessageId, record: bytes, body: bytes | None) -> tuple[Message, int]:
    """A message and its body's size; without the body if that is kept apart and not given."""
    decoded, size, apart = records.decode_message(id, record)
    if apart and body is not None:
        if len(body) != size:
            raise CorruptRecord(f"message {id.hex()}: {len(body)} of {size} bytes of its body are there")
        decoded = decoded._replace(body=body)
    return decoded, size


def attempt(number: int, record: bytes, answer: bytes | None) -> Attempt:
    return records.decode_attempt(number, record)._replace(answer=answer)


def counted_as(standing: int, due: int) -> int:
    """What a message counts as: one that has arrived and is due at a time will wait among the retries."""
    return (RETRY if due else WAITING) if standing == ACTIVE else standing


def one(row: Any) -> Any:
    """The only value of a row that is always there."""
    assert row is not None
    return row[0]


@dataclass(frozen=True, slots=True)
class Terms:
    """`number` is this replica's; `writer` names the counters that this connection writes. `owners` are those of the
    shards, as they were last heard of: who is told of new messages. None of them is, where the engine can't notify.
    `owned` are this replica's own shards.
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
