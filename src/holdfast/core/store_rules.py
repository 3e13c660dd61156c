"""The rules that every store follows: which messages it has room for, and what it keeps of their attempts.

A store takes messages up to the watermark, and of each host up to its share. Of a message's failed attempts it keeps
the first and the last fifteen; probes and replays can make hundreds. It keeps the receiver's answer of the first and
the last two. Attempt numbers run on, so a gap shows where attempts were dropped. So the record of a message is bounded,
and room for it can be reserved when the message is accepted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.circuit import CircuitRules
from holdfast.core.errors import StoreFull
from holdfast.core.message import ANSWER_KEPT, Attempt, Message
from holdfast.core.schedule import RetryRules

WATERMARK = 0.9
"""The part of `store.max_size` that new messages may fill. Deliveries need the rest to free room."""
MESSAGE_COST = 4_096
"""Bytes that each message counts for in its host's share, on top of its body."""
LAST_KEPT = 15
"""Attempts that are kept besides the first one. Without probes and replays the default schedule makes twelve in all."""
LAST_ANSWERS_KEPT = 2
DETAIL_KEPT = 144
ADDRESS_KEPT = 56
"""Bytes of UTF-8. The log has the whole text of an error."""


@dataclass(frozen=True, slots=True)
class StoreRules:
    """The numbers that a store's tables depend on. `idempotency` is in milliseconds; `run` is when the store was
    opened.
    """

    circuit: CircuitRules
    retry: RetryRules
    idempotency: int
    host_share: float
    per_host: int
    run: int


def cost_of(message: Message) -> int:
    return MESSAGE_COST + len(message.body)


def refusal(message: Message, *, is_full: bool, held: int, share: float) -> StoreFull | None:
    """Why a new message is refused, if it is. `held` are the bytes that its host holds, `share` its limit."""
    if is_full:
        return StoreFull("the store is full; deliveries go on and make room")
    if held + cost_of(message) > share:
        text = f"waiting and dead messages of {message.host} hold their whole share of the store"
        return StoreFull(text, host=message.host)
    return None


def truncated_attempt(attempt: Attempt) -> Attempt:
    """An attempt with each field cut to the size that is kept."""
    return attempt._replace(
        address=_head(attempt.address, ADDRESS_KEPT),
        detail=_head(attempt.detail, DETAIL_KEPT),
        answer=None if attempt.answer is None else attempt.answer[:ANSWER_KEPT],
    )


def first_kept(latest: int) -> int:
    """The first attempt, besides number 1, that is kept when `latest` is the last one."""
    return latest - LAST_KEPT + 1


def first_answer_kept(latest: int) -> int:
    """The first attempt, besides number 1, whose answer is kept."""
    return latest - LAST_ANSWERS_KEPT + 1


def is_kept(number: int, latest: int) -> bool:
    return number == 1 or number >= first_kept(latest)


def keeps_answer(number: int, latest: int) -> bool:
    return number == 1 or number >= first_answer_kept(latest)


def kept_attempts(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The attempts to keep of an imported message: from an export, or from a store of an older version."""
    latest = max((attempt.number for attempt in attempts), default=0)
    kept = [truncated_attempt(attempt) for attempt in attempts if is_kept(attempt.number, latest)]
    return [each if keeps_answer(each.number, latest) else each._replace(answer=None) for each in kept]


def _head(text: str | None, limit: int) -> str | None:
    """The beginning of a text, cut between characters."""
    if text is None or 4 * len(text) <= limit:
        return text
    return text.encode(errors="replace")[:limit].decode(errors="ignore")
