"""How large commit groups and pages of reads are, for both engines."""

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, TypeVar

from holdfast.store.port import BATCH_BYTES, Accept, Agenda, Deliver, Fail, Operation

GROUP_LIMIT = 512
"""Operations in one group, unless a slow fsync allows for more."""
LARGEST_GROUP_LANES = 1_024
"""Lanes in a group above GROUP_LIMIT. Each can copy a dozen pages, which stay in memory until the commit."""
GROUP_BYTES = 4 << 20
"""Bodies in one group. The loop stands still while they are put: 2 ms a megabyte."""
LOOKED_AT = 2_000
"""Candidates that one page looks at. A filter that matches few ends its page early instead of taking long."""
MOMENTS_A_READ = 4_096
"""Moments that one read of the agenda looks at, so that no read transaction gets old."""

Found = TypeVar("Found")
Key = TypeVar("Key")


def group_size(operations: Sequence[Operation], limit: int = GROUP_LIMIT) -> int:
    """Returns how many of the operations make the next group."""
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


def choose(
    candidates: Iterable[tuple[Any, ...]],
    limit: int,
    read: Callable[..., Found | None],
    *,
    size_of: Callable[[Found], int] = lambda found: 0,
    most_bytes: int = BATCH_BYTES,
) -> tuple[list[Found], Any, Any]:
    """Returns a page: the results of `read` for the candidates, without those that are None.

    A candidate begins with its key. The page comes with the key of the last candidate that was looked at and the key of
    the first that was not: the next page begins after the one or from the other. Both are None at the end. The page
    ends once its results are larger than `most_bytes`.
    """
    found: list[Found] = []
    size, last = 0, None
    for looked_at, candidate in enumerate(candidates):
        if len(found) >= limit or looked_at >= LOOKED_AT or size > most_bytes:
            return found, last, candidate[0]
        last = candidate[0]
        each = read(*candidate)
        if each is not None:
            found.append(each)
            size += size_of(each)
    return found, None, None


def choose_lanes(
    moments: Iterable[tuple[int, Key, int]],
    now: int,
    limit: int,
    skip: Container[str],
    classes: Container[int],
    since: int,
    name_of: Callable[[Key], str | None],
) -> Agenda:
    """Returns the lanes that need attention by now.

    `moments` are their moments in order from `since` on, with the lane's key and its host's class. `name_of` returns
    the lane's name, or None if there is no such lane. Lanes of one moment are all looked at, however many.
    """
    lanes: list[str] = []
    passed_over = 0
    for looked_at, (moment, key, host_class) in enumerate(moments):
        if moment > now or len(lanes) >= limit or (looked_at >= MOMENTS_A_READ and moment > since):
            return Agenda(lanes, moment, passed_over)
        if host_class not in classes:
            passed_over += 1
        elif (lane := name_of(key)) is not None and lane not in skip:
            lanes.append(lane)
    return Agenda(lanes, None, passed_over)
