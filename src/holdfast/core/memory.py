"""How many bytes of webhooks may be in memory at once, whoever holds them.

The budget has two fixed parts, so that neither side can starve the other: bodies that are being received, and messages
that wait for an attempt or are in flight. Everything else that a gateway holds is small or has a bound of its own.
"""

from holdfast.core.message import Message

BUDGET = 64 << 20
RECEIVING = BUDGET * 3 // 8
"""Bodies that clients are sending."""
DELIVERING = BUDGET - RECEIVING
"""Messages read ahead of their turn, in flight, or with an outcome that is not on disk yet."""

MESSAGE_OVERHEAD = 2048
"""What a message takes besides its bytes: its objects, and those of its lane."""


def weight(message: Message) -> int:
    """What a message counts for while it is in memory."""
    head = sum(len(name) + len(value) for name, value in message.headers)
    return MESSAGE_OVERHEAD + len(message.body) + len(message.path) + head
