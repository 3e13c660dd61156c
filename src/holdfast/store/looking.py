"""How far one look over stored messages goes, whatever store they are in.

Whoever asks is told where to go on. A filter that matches little ends its step early, instead of taking long or holding
up the writer.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from holdfast.store.port import BATCH_BYTES

LOOKED_AT = 2_000
"""Candidates that one step looks at."""

Found = TypeVar("Found")


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
