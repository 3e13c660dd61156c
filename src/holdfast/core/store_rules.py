"""The rules that every store follows: which numbers its tables depend on, and which messages it has room for.

A store takes messages up to the watermark, and of each host up to its share.
"""

from dataclasses import dataclass

from holdfast.core.circuit import CircuitRules
from holdfast.core.errors import StoreFull
from holdfast.core.message import Message
from holdfast.core.schedule import RetryRules

WATERMARK = 0.9
"""The part of `store.max_size` from which no new message is taken: deliveries need room to make room."""
MESSAGE_COST = 4_096
"""What each message counts for against its host's share, on top of its body."""


@dataclass(frozen=True, slots=True)
class StoreRules:
    """The numbers that a store's tables depend on. `idempotency` is in milliseconds; `run` is when the store was
    opened.
    """

    circuit: CircuitRules
    retry: RetryRules
    idempotency: int
    host_share: float
    per_host: int
    run: int


def cost_of(message: Message) -> int:
    return MESSAGE_COST + len(message.body)


def refusal(message: Message, *, is_full: bool, held: int, share: float) -> StoreFull | None:
    """Why a new message is not taken. `held` are the bytes that its host holds, `share` those that it may hold."""
    if is_full:
        return StoreFull("the store is full; deliveries go on and make room")
    if held + cost_of(message) > share:
        text = f"waiting and dead messages of {message.host} hold their whole share of the store"
        return StoreFull(text, host=message.host)
    return None
