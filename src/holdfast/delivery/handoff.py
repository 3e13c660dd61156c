"""The end of a drain: what still waits is handed to another holdfast, and forgotten here once that one has it on disk.

Nothing is delivered any more when this begins. Messages go in pages, several at a time on kept connections, and those
of a page that were acknowledged are forgotten in one operation. An acknowledgement is a 2xx that names the message's
own id: whatever else answers there, the message stays. So it does when the answer is lost; given a second time, the
other side knows it by its id.

What the other side refuses is left here and the next one is tried. While it can't be reached or is overloaded the same
one is tried again, until the time is over: it may just be starting.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import trio

from holdfast.config import Address
from holdfast.core.errors import EgressDenied, NameNotResolved
from holdfast.core.handoff_header import write_handoff
from holdfast.core.message import Entry, id_text, masked_lane
from holdfast.delivery.courier import Carrier
from holdfast.delivery.egress import ROUTE_ZONE
from holdfast.http.dial import Origin
from holdfast.http.errors import ExchangeError
from holdfast.http.transport import Answer
from holdfast.store.port import HandOver, Shelve, Store

PAGE = 128
AT_ONCE = 16
PAUSE = 0.5
"""Seconds between two tries of one message while the other side can't be reached."""
ANSWER_WITHIN = 10.0
_OVERLOADED = (429, 503)


@dataclass(slots=True)
class HandedOver:
    """How many messages the other side has, by host, and what was said of those that it was offered and has not."""

    by_host: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        return self.by_host.total()


class HandingOver:
    """`to` was written by the operator, so it is reached as a route's own host is. `token` is shown there."""

    def __init__(self, store: Store, carrier: Carrier, to: Address, token: bytes) -> None:
        self._store = store
        self._carrier = carrier
        self._origin = Origin("http", to.host, to.port, ROUTE_ZONE)
        self._head = f"host: {to}\r\nholdfast-token: ".encode() + token + b"\r\n"
        self.done = HandedOver()

    async def run(self, deadline: float) -> None:
        """Offer everything that waits, until the deadline on trio's clock."""
        # What was submitted until now, such as attempts that were cut off, is on disk after this.
        await self._store.perform(Shelve([]))
        after: bytes | None = None
        while trio.current_time() < deadline:
            page, after = await self._store.waiting(after, PAGE)
            taken = await self._offer(page, deadline)
            if taken:
                await self._store.perform(HandOver(taken))
                self.done.by_host.update(masked_lane(entry.message.lane) for entry in taken)
            if after is None:
                return

    async def _offer(self, page: list[Entry], deadline: float) -> list[Entry]:
        taken: list[Entry] = []
        entries = iter(page)
        async with trio.open_nursery() as nursery:
            for _ in range(min(AT_ONCE, len(page))):
                nursery.start_soon(self._offer_each, entries, taken, deadline)
        return taken

    async def _offer_each(self, entries: Iterator[Entry], taken: list[Entry], deadline: float) -> None:
        for entry in entries:
            if trio.current_time() >= deadline:
                return
            refusal = await self._give(entry, deadline)
            if refusal is None:
                taken.append(entry)
            else:
                self.done.left[refusal] += 1

    async def _give(self, entry: Entry, deadline: float) -> str | None:
        """Hand over one message; returns why not if it stays here."""
        head, body = self._request(entry), entry.message.body
        refusal: str | None = None
        while True:
            now = trio.current_time()
            try:
                answer = await self._carrier.exchange(self._origin, head, body, min(deadline, now + ANSWER_WITHIN))
            except (ExchangeError, EgressDenied, NameNotResolved) as error:
                # A last try that only ran out of time says less than the one before it.
                if refusal is None or trio.current_time() < deadline:
                    refusal = str(error)
            else:
                refusal = _refusal(answer, entry)
                if answer.status not in _OVERLOADED:
                    return refusal
            if trio.current_time() + PAUSE >= deadline:
                return refusal
            await trio.sleep(PAUSE)

    def _request(self, entry: Entry) -> bytes:
        message = entry.message
        parts = [
            f"{message.method} / HTTP/1.1\r\n".encode(),
            self._head,
            f"holdfast-target: {message.target}\r\n".encode("latin-1"),
            f"holdfast-handoff: {write_handoff(entry)}\r\n".encode(),
            *(b"%b: %b\r\n" % header for header in message.headers),
            b"content-length: %d\r\n\r\n" % len(message.body),
        ]
        return b"".join(parts)


def _refusal(answer: Answer, entry: Entry) -> str | None:
    """Why this answer is no acknowledgement; None if it is one."""
    if answer.status // 100 != 2:
        return f"it answered {answer.status}{_slug(answer.body)}"
    acknowledged = dict(answer.headers).get(b"holdfast-message-id")
    if acknowledged != id_text(entry.message.id).encode():
        return f"it answered {answer.status} without the message's id: it is no holdfast, or one of another version"
    return None


def _slug(body: bytes) -> str:
    """What a problem document names the problem: the rest of it may quote what is secret."""
    try:
        return ", " + str(json.loads(body)["type"]).rpartition(":")[2][:40]
    except (ValueError, TypeError, LookupError, RecursionError):
        return ""
