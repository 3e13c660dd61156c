"""The value of `Holdfast-Handoff`: what one holdfast tells another about a message that it hands over.

    id=msg_...; accepted=MS; born=MS; retry=N; attempts=N [; due=MS [; held]] [; route=NAME [; signed]]

in this order and spelling only. Times are milliseconds since 1970. Without `due` the message waits for its first
attempt; with it, for that moment. Target, method, headers and body are those of the request.
"""

import re
from typing import NamedTuple

from holdfast.core.message import Entry, MessageId, Place, Standing, id_text, parse_id
from holdfast.core.schedule import MOST_RETRIES

MOST_ATTEMPTS = 1 << 30
"""Twice as many fit into the columns of the database."""
SKEW = 24 * 3_600_000
"""Milliseconds that the two clocks may be apart: a message can't be accepted later than that."""
FARTHEST = 100 * 365 * 24 * 3_600_000
"""Milliseconds from now within which a message is born and due. No schedule is that long, and times computed from such
a moment, such as the expiry, are still valid dates.
"""

_MOMENT = r"(0|[1-9][0-9]{0,14})"
_FACTS = re.compile(
    rf"id=(?P<id>msg_[0-9a-f]{{32}}); accepted=(?P<accepted>{_MOMENT}); born=(?P<born>{_MOMENT}); "
    r"retry=(?P<retry>0|[1-9][0-9]?); attempts=(?P<attempts>0|[1-9][0-9]{0,9})"
    rf"(?:; due=(?P<due>{_MOMENT})(?P<held>; held)?)?"
    r"(?:; route=(?P<route>[a-z0-9][a-z0-9_-]*)(?P<signed>; signed)?)?",
    re.ASCII,
)


class HandoffFacts(NamedTuple):
    """A message's identity, age and place at the holdfast that hands it over."""

    id: MessageId
    accepted_at: int
    place: Place
    route: str | None
    signed: bool


def write_handoff(entry: Entry) -> str:
    message, place = entry
    text = (
        f"id={id_text(message.id)}; accepted={message.accepted_at}; born={place.born}; "
        f"retry={place.retry}; attempts={place.attempts}"
    )
    if place.standing is Standing.RETRY:
        text += f"; due={place.due}" + ("; held" if place.held else "")
    if message.route is not None:
        text += f"; route={message.route}" + ("; signed" if message.signed else "")
    return text


def read_handoff(text: str, now: int) -> HandoffFacts:
    """Raises a ValueError whose text reads after the header's name."""
    found = _FACTS.fullmatch(text)
    id = parse_id(found["id"]) if found is not None else None
    if found is None or id is None:
        raise ValueError("is not written as holdfast writes it")
    accepted, born, retry, attempts = (int(found[name]) for name in ("accepted", "born", "retry", "attempts"))
    due = None if found["due"] is None else int(found["due"])
    if max(accepted, int.from_bytes(id[:6], "big")) > now + SKEW:
        raise ValueError("describes a message that was accepted in the future; set the clocks of both machines")
    if born < accepted or max(born, due or 0) > now + FARTHEST:
        raise ValueError("has moments that no message can have")
    if retry > MOST_RETRIES or attempts > MOST_ATTEMPTS or retry > attempts or (retry and due is None):
        raise ValueError("has retries and attempts that no message can have")
    if due is None:
        place = Place(Standing.WAITING, born, attempts=attempts)
    else:
        place = Place(Standing.RETRY, born, due, retry, attempts, found["held"] is not None)
    return HandoffFacts(id, accepted, place, found["route"], found["signed"] is not None)
