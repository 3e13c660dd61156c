"""How far one look over stored messages and lanes goes, whatever store they are in.

Whoever asks is told where to go on. A filter that matches little ends its step early, instead of taking long or holding
up the writer.
"""

from collections.abc import Callable, Container, Iterable
from typing import Any, TypeVar

from holdfast.store.port import BATCH_BYTES, Agenda

LOOKED_AT = 2_000
"""Candidates that one step looks at."""
MOMENTS_A_READ = 4_096
"""Moments that one read of the agenda looks at: no read transaction gets old."""

Found = TypeVar("Found")
Key = TypeVar("Key")


def choose(
    candidates: Iterable[tuple[Any, ...]],
    limit: int,
    read: Callable[..., Found | None],
    *,
    size_of: Callable[[Found], int] = lambda found: 0,
    most_bytes: int = BATCH_BYTES,
) -> tuple[list[Found], Any, Any]:
    """What `read` makes of the candidates, each of which begins with its key; None if it is not meant.

    Also the key of the last one that was looked at and that of the first one that was not, to go on after the one or
    from the other; None at the end. Of what has a size no more is read after `most_bytes`.
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
    """Lanes that need attention by now. `moments` are theirs in order from `since` on, with their hosts' classes;
    `name_of` is asked for the name of one that is meant, None if there is none. All of one moment are looked at.
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
