"""How much room a store has: for everyone up to the watermark, and for each host up to its share."""

from holdfast.core.errors import StoreFull
from holdfast.core.message import Message

WATERMARK = 0.9
"""The part of `store.max_size` from which no new message is taken: deliveries need room to make room."""
MESSAGE_COST = 4_096
"""What each message counts for against its host's share, on top of its body."""


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
