"""The end of a drain: what still waits goes to another holdfast over HTTP.

Nothing is delivered any more when this begins. The messages of a page go several at a time on kept connections. An
acknowledgement is a 2xx answer that names the message's own id. After any other answer, or none, the message stays.

If the other side refuses a message, the message stays and the next one is tried. While the other side is unreachable or
overloaded the same message is tried again until the deadline: the other side may just be starting.
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
from holdfast.http.exceptions import ExchangeError
from holdfast.http.transport import Answer
from holdfast.store.port import Shelve, Store
from holdfast.store.transfer import transfer

PAGE = 128
AT_ONCE = 16
PAUSE = 0.5
"""Seconds between two tries of one message while the other side is unreachable."""
ANSWER_WITHIN = 10.0
_OVERLOADED = (429, 503)


@dataclass(slots=True)
class HandoffReport:
    """How many messages the other side has, by host, and why it has not the others that it was offered."""

    by_host: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        return self.by_host.total()


class OutgoingHandoff:
    """The sink of a transfer to another holdfast. `deadline` is on trio's clock.

    An operator wrote the address `to`, so it is reached like a route's own host. `token` authorizes the requests.
    """

    def __init__(self, carrier: Carrier, to: Address, token: bytes, deadline: float) -> None:
        self._carrier = carrier
        self._origin = Origin("http", to.host, to.port, ROUTE_ZONE)
        self._head = f"host: {to}\r\nholdfast-token: ".encode() + token + b"\r\n"
        self._deadline = deadline
        self.report = HandoffReport()

    async def run(self, store: Store) -> None:
        """Offer every waiting message until the deadline."""
        # After this, all operations submitted so far are on disk, such as those of interrupted attempts.
        await store.perform(Shelve([]))
        await transfer(store.waiting, store.perform, self, PAGE)

    @property
    def is_over(self) -> bool:
        return trio.current_time() >= self._deadline

    async def give(self, page: list[Entry]) -> list[Entry]:
        given: list[Entry] = []
        entries = iter(page)
        async with trio.open_nursery() as nursery:
            for _ in range(min(AT_ONCE, len(page))):
                nursery.start_soon(self._offer, entries, given)
        return given

    def forgotten(self, given: list[Entry]) -> None:
        self.report.by_host.update(masked_lane(entry.message.lane) for entry in given)

    async def _offer(self, entries: Iterator[Entry], given: list[Entry]) -> None:
        for entry in entries:
            if self.is_over:
                return
            refusal = await self._send(entry)
            if refusal is None:
                given.append(entry)
            else:
                self.report.left[refusal] += 1

    async def _send(self, entry: Entry) -> str | None:
        """Returns why the other side has not taken the message; None if it has."""
        deadline = self._deadline
        head, body = self._request(entry), entry.message.body
        refusal: str | None = None
        while True:
            now = trio.current_time()
            try:
                answer = await self._carrier.exchange(self._origin, head, body, min(deadline, now + ANSWER_WITHIN))
            except (ExchangeError, EgressDenied, NameNotResolved) as error:
                # If the last try only ran out of time, the reason of the one before says more.
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
    """Returns why an answer is no acknowledgement; None if it is one."""
    if answer.status // 100 != 2:
        return f"it answered {answer.status}{_slug(answer.body)}"
    acknowledged = dict(answer.headers).get(b"holdfast-message-id")
    if acknowledged != id_text(entry.message.id).encode():
        return f"it answered {answer.status} without the message's id: it is no holdfast, or one of another version"
    return None


def _slug(body: bytes) -> str:
    """The type of a problem document. The rest of it may quote secrets."""
    try:
        return ", " + str(json.loads(body)["type"]).rpartition(":")[2][:40]
    except (ValueError, TypeError, LookupError, RecursionError):
        return ""
