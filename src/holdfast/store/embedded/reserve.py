"""How much room is set aside for what will still be recorded of messages that are not delivered.

Each waiting or dead message may yet fail, be probed, die and be replayed. core/store_rules.py bounds what that leaves,
so the room for it is a constant, and it is set aside when the message is accepted. The constants are pages that LMDB
really took, measured with attempts as large as they can be, made in random order over thousands of messages and lanes.
"""

from collections.abc import Mapping

from holdfast.store.embedded.tables import Table

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
