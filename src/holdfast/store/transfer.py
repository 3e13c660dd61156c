"""Messages that leave this machine's store for one that replicas share: each arrives once, in the order of acceptance.

A page is committed there before it is forgotten here. Whatever ends in between, a process or a connection, what was
given and not forgotten is given again, and known there by its id.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from holdfast.core.errors import StoreFull
from holdfast.core.message import Attempt, DeadReason, Entry, Message, MessageId, Place
from holdfast.store.port import Accepted, Duplicate, HandOver, Operation

PAGE = 512


class KeyUse(NamedTuple):
    """The idempotency key that came with a message: what both are known by, and when it was used."""

    digest: bytes
    body: bytes
    at: int


class StoredMessage(NamedTuple):
    """A message that was not delivered, with all that is known of it; `reason` is that of a dead one. Exports tell of
    keys by themselves.
    """

    message: Message
    place: Place
    reason: DeadReason | None
    attempts: list[Attempt]
    key: KeyUse | None = None


class Source(Protocol):
    """The store that is left."""

    async def undelivered(
        self, after: MessageId | None, limit: int
    ) -> tuple[list[StoredMessage], MessageId | None]: ...

    async def perform(self, operation: Operation) -> Any: ...


TakeIn = Callable[[Sequence[StoredMessage]], Awaitable[list[Any]]]
"""What the other store does with a page; each result is what an Accept would have."""


@dataclass(slots=True)
class Transferred:
    """How many have left, and which of them were dead, were there already, or have a key under which another one is
    there. `left` says why others stay, by host; `full`: it goes for all hosts.
    """

    count: int = 0
    dead: int = 0
    known: int = 0
    duplicates: int = 0
    left: dict[str, str] = field(default_factory=dict)
    full: bool = False


class Transfer:
    """`on_page` is told of the messages that have just arrived, before they are forgotten here."""

    def __init__(
        self, source: Source, take_in: TakeIn, on_page: Callable[[list[StoredMessage]], None] = lambda page: None
    ) -> None:
        self._source = source
        self._take_in = take_in
        self._on_page = on_page

    async def run(self, moved: Transferred) -> None:
        """Once through the whole store, page by page; what is done is counted in `moved`.

        Raises StoreUnreachable and CommitFailed of either store. What there is no room for stays, and so does all that
        comes after it for the same host.
        """
        moved.left, moved.full = {}, False
        after: MessageId | None = None
        while not moved.full:
            page, after = await self._source.undelivered(after, PAGE)
            movable = [each for each in page if each.message.host not in moved.left]
            if movable:
                await self._move(movable, moved)
            if after is None:
                return

    async def _move(self, page: list[StoredMessage], moved: Transferred) -> None:
        there: list[StoredMessage] = []
        for each, result in zip(page, await self._take_in(page), strict=True):
            if not isinstance(result, StoreFull):
                there.append(each)
                _count(each, result, moved)
            else:
                moved.left[each.message.host] = str(result)
                moved.full = moved.full or result.host is None
        if not there:
            return
        self._on_page(there)
        await self._source.perform(HandOver([Entry(each.message, each.place) for each in there]))
        moved.count += len(there)


def _count(each: StoredMessage, result: Accepted | Duplicate, moved: Transferred) -> None:
    moved.dead += each.reason is not None
    if isinstance(result, Duplicate):
        moved.known += result.id == each.message.id
        moved.duplicates += result.id != each.message.id
