"""How much room there is: for everyone (the watermark), and for each host (its share).

At the watermark counts what is used and what is set aside for outcomes. Each operation says what it adds to a host's
share or takes from it; shares.py keeps the sums.
"""

from collections.abc import Callable, Mapping

from holdfast.core.errors import StoreFull
from holdfast.core.message import Message
from holdfast.core.store_rules import MESSAGE_COST, WATERMARK, refusal
from holdfast.store.embedded.shares import Shares
from holdfast.store.embedded.tables import Room, Table, Transaction
from holdfast.store.port import SCARCE

COPIED = 4
"""Pages are copied before they are free again: what new bytes take of the file for a while, times their number."""


def claim_of(messages: int, size: int) -> int:
    """What so many new messages of this size together may take, with what is set aside for them."""
    return COPIED * size + messages * (OUTCOME_ROOM + LANE_ROOM)


class RoomKeeper:
    """Used by the writer's thread alone; `full` and `scarce` may be read from anywhere."""

    def __init__(self, host_share: float, measure: Callable[[], Room]) -> None:
        self.host_share = host_share
        self._measure = measure
        self._shares = Shares()
        self._limit = self._left = self._left_in_group = self._since_measured = 0
        self.full = self.scarce = False

    def begin(self, claim: int) -> None:
        """A group begins that may take this much. Measuring asks every table, so it is not done for each group."""
        self._shares.begin()
        self._since_measured += claim
        if self.full or not self._limit or self._since_measured > self._left // 8:
            room = self._measure()
            self._limit = room.limit
            self._left = max(0, int(room.limit * WATERMARK) - room.needed)
            # What this group adds is not there yet.
            self._since_measured = claim
            self.full = self._left == 0
            self.scarce = room.needed > room.limit * SCARCE
        self._left_in_group = self._left

    def refusal(self, transaction: Transaction, message: Message) -> StoreFull | None:
        is_full, held = self.full or self._left_in_group <= 0, self._shares.held(transaction, message.host)
        return refusal(message, is_full=is_full, held=held, share=self._limit * self.host_share)

    def hold(self, host: str, body_size: int) -> None:
        self._shares.move(host, MESSAGE_COST + body_size)
        self._left_in_group -= body_size + OUTCOME_ROOM + LANE_ROOM

    def release(self, host: str, body_size: int) -> None:
        self._shares.move(host, -(MESSAGE_COST + body_size))

    def finish(self, transaction: Transaction) -> None:
        """Before the commit."""
        self._shares.finish(transaction)

    def committed(self) -> None:
        self._shares.committed()


OUTCOME_ROOM = 10 << 10
"""Bytes for the attempts, the place and the index entries of one message. Measured: 8.8 to 9.2 KiB."""
LANE_ROOM = 3_584
"""Bytes by which a lane's record and moments grow while it fails. Measured: 1.4 KiB, 3.3 with the longest names."""

OUTCOME_TABLES = frozenset(
    {
        *(Table.ACTIVE, Table.WAITING, Table.RETRY, Table.AGING),
        *(Table.PLACES, Table.ATTEMPTS, Table.DEAD, Table.DEAD_LANE),
    }
)


def reserved(entries: Mapping[Table, int], outcome_bytes: int) -> int:
    """What is set aside, besides what is used, by how many rows there are and what the outcome tables take already.

    Attempts of delivered messages are among these. They leave early when room gets scarce, so they are as good as free.
    """
    undelivered = entries[Table.MESSAGES]
    lanes = min(entries[Table.LANES], undelivered)
    return max(0, undelivered * OUTCOME_ROOM - outcome_bytes) + lanes * LANE_ROOM
