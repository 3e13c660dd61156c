"""How much is kept of one message's failed attempts: enough to explain its life, and bounded whatever happens to it.

The first attempt and the last fifteen are kept; probes and replays can make hundreds. The receiver's answer is kept for
the first attempt and the last two. Numbers run on, so a gap shows where attempts were dropped.

Every store records attempts by these rules. That is why room for them can be set aside when a message is accepted.
"""

from collections.abc import Sequence

from holdfast.core.message import Attempt
from holdfast.core.outcome import ANSWER_KEPT

LAST_KEPT = 15
"""Attempts that are kept besides the first one. Without probes and replays the default schedule makes twelve in all."""
LAST_ANSWERS_KEPT = 2
DETAIL_KEPT = 144
ADDRESS_KEPT = 56
"""Bytes of UTF-8. The log has the whole text of an error."""


def recorded(attempt: Attempt) -> Attempt:
    """An attempt with no field larger than it is kept."""
    return attempt._replace(
        address=_head(attempt.address, ADDRESS_KEPT),
        detail=_head(attempt.detail, DETAIL_KEPT),
        answer=None if attempt.answer is None else attempt.answer[:ANSWER_KEPT],
    )


def first_kept(latest: int) -> int:
    """The first attempt besides number 1 that is still kept once attempt number `latest` is recorded."""
    return latest - LAST_KEPT + 1


def first_answer_kept(latest: int) -> int:
    """The same for the receiver's answers."""
    return latest - LAST_ANSWERS_KEPT + 1


def is_kept(number: int, latest: int) -> bool:
    return number == 1 or number >= first_kept(latest)


def keeps_answer(number: int, latest: int) -> bool:
    return number == 1 or number >= first_answer_kept(latest)


def bounded(attempts: Sequence[Attempt]) -> list[Attempt]:
    """What is kept of attempts that come from elsewhere: an export, or a store of an older version."""
    latest = max((attempt.number for attempt in attempts), default=0)
    kept = [recorded(attempt) for attempt in attempts if is_kept(attempt.number, latest)]
    return [each if keeps_answer(each.number, latest) else each._replace(answer=None) for each in kept]


def _head(text: str | None, limit: int) -> str | None:
    """The first bytes of a text, without half a character at the end."""
    if text is None or 4 * len(text) <= limit:
        return text
    return text.encode(errors="replace")[:limit].decode(errors="ignore")
