"""How many operations make one group.

A group is as large as what came while the last one was on its way to the disk, within bounds. The loop stands still
while a group is put, so it gets larger only where an fsync takes long. Where little room is left it gets smaller: the
pages that a group copies have to fit too.
"""

from collections.abc import Sequence

from holdfast.store.port import Accept, Deliver, Fail, Operation

GROUP_LIMIT = 512
LARGEST_GROUP = 4_096
"""Operations in one group: as many by default, and at most after a slow fsync."""
LARGEST_GROUP_LANES = 1_024
"""Lanes in a group above GROUP_LIMIT. Each can copy a dozen pages, which stay in memory until the commit."""
GROUP_BYTES = 4 << 20
"""Bodies in one group: the loop stands still while they are put, 2 ms a megabyte."""
PUTS_TO_SYNC = 4
"""Putting a group takes at most this part of the time that the last fsync took, or GROUP_LIMIT operations."""


class Pace:
    """The limit for the next group, by what became of the last ones."""

    def __init__(self) -> None:
        self._by_time = GROUP_LIMIT
        self._by_room = LARGEST_GROUP

    @property
    def limit(self) -> int:
        return min(self._by_time, self._by_room)

    def took(self, operations: int, puts: float, sync: float) -> None:
        """So many seconds passed until the puts were done, and from there to the end of the commit."""
        affordable = int(operations * sync / (PUTS_TO_SYNC * puts)) if puts else 0
        self._by_time = min(max(affordable, GROUP_LIMIT), LARGEST_GROUP)

    def fitted(self) -> None:
        self._by_room = min(self._by_room + self._by_room // 8 + 1, LARGEST_GROUP)

    def did_not_fit(self, operations: int) -> None:
        self._by_room = max(1, operations // 2)


def group_size(operations: Sequence[Operation], limit: int = GROUP_LIMIT) -> int:
    """How many of the operations make the next group."""
    held = 0
    lanes: set[str] = set()
    for count, operation in enumerate(operations[:limit]):
        if isinstance(operation, Accept):
            held += len(operation.message.body)
            if held > GROUP_BYTES and count:
                return count
        if limit > GROUP_LIMIT:
            lanes.add(_lane_of(operation))
            if len(lanes) > LARGEST_GROUP_LANES and count >= GROUP_LIMIT:
                return count
    return limit


def _lane_of(operation: Operation) -> str:
    if isinstance(operation, (Deliver, Fail)):
        return operation.entry.message.lane
    return operation.message.lane if isinstance(operation, Accept) else ""
