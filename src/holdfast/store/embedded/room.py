"""How much room is left: for everyone (the watermark), and for each host (its share).

The watermark counts what is used and what is reserved for outcomes. Each waiting or dead message may still fail, be
probed, die and be replayed. core/store_rules.py bounds what that leaves, so a constant is reserved for it when the
message is accepted. The constants are pages that LMDB really took, measured with attempts as large as they can be, in
random order over thousands of messages and lanes.
"""

from collections.abc import Callable, Mapping

from holdfast.core.errors import StoreFull
from holdfast.core.message import Message
from holdfast.core.store_rules import MESSAGE_COST, WATERMARK, refusal
from holdfast.store.embedded.shares import Shares
from holdfast.store.embedded.tables import Room, Table, Transaction
from holdfast.store.port import SCARCE

COPIED = 4
"""LMDB copies pages before it frees any: new bytes take this many times their number for a while."""
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


def claim_of(messages: int, size: int) -> int:
    """Returns how much room new messages of this total size may take, with what is reserved for them."""
    return COPIED * size + messages * (OUTCOME_ROOM + LANE_ROOM)


def reserved(entries: Mapping[Table, int], outcome_bytes: int) -> int:
    """Returns the bytes reserved in addition to those used. `outcome_bytes` are the bytes of the outcome tables.

    Those include attempts of delivered messages, which are removed early when room gets scarce: they count as free.
    """
    undelivered = entries[Table.MESSAGES]
    lanes = min(entries[Table.LANES], undelivered)
    return max(0, undelivered * OUTCOME_ROOM - outcome_bytes) + lanes * LANE_ROOM


class RoomKeeper:
    """Used by the writer's thread alone; `full` and `scarce` may be read from anywhere."""

    def __init__(self, host_share: float, measure: Callable[[], Room]) -> None:
        self.host_share = host_share
        self._measure = measure
        self._shares = Shares()
        self._limit = self._left = self._left_in_group = self._since_measured = 0
        self.full = self.scarce = False

    def begin(self, claim: int) -> None:
        """Begin a group that may take this much. Measuring asks every table, so it is not done for each group."""
        self._shares.begin()
        self._since_measured += claim
        if self.full or not self._limit or self._since_measured > self._left // 8:
            room = self._measure()
            self._limit = room.limit
            self._left = max(0, int(room.limit * WATERMARK) - room.needed)
            # The measured room lacks what this group adds.
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
        """Called before the commit."""
        self._shares.finish(transaction)

    def committed(self) -> None:
        self._shares.committed()
