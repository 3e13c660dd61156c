"""Messages that leave this store for another: page by page, each arrives once.

A page is on disk at the other side before it is forgotten here. If a process or a connection ends in between, the same
messages are given again, and the other side knows them by their ids.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from holdfast.core.errors import StoreFull
from holdfast.core.message import Attempt, DeadReason, Entry, Message, MessageId, Place
from holdfast.store.port import Duplicate, HandOver, Operation

PAGE = 512


class KeyUse(NamedTuple):
    """The idempotency key that came with a message: the digests of key and body, and when it was used."""

    digest: bytes
    body: bytes
    at: int


class StoredMessage(NamedTuple):
    """A message that is not delivered, with its attempts. `reason` is set for a dead one.

    `key` is None in an export, which lists keys by themselves.
    """

    message: Message
    place: Place
    reason: DeadReason | None
    attempts: list[Attempt]
    key: KeyUse | None = None


Leaving = TypeVar("Leaving", Entry, StoredMessage)
ReadPage = Callable[[MessageId | None, int], Awaitable[tuple[list[Leaving], MessageId | None]]]


class Sink(Protocol[Leaving]):
    """The other side of a transfer."""

    @property
    def is_over(self) -> bool:
        """Whether no further page is to be read."""

    async def give(self, page: list[Leaving]) -> list[Leaving]:
        """Returns the messages that the other side has acknowledged."""

    def forgotten(self, given: list[Leaving]) -> None:
        """These messages have left this store."""


async def transfer(
    read: ReadPage[Leaving], forget: Callable[[Operation], Awaitable[Any]], sink: Sink[Leaving], limit: int
) -> None:
    """Give every message that `read` returns to a sink, `limit` at a time; forget those that were acknowledged."""
    after: MessageId | None = None
    while not sink.is_over:
        page, after = await read(after, limit)
        given = await sink.give(page)
        if given:
            await forget(HandOver([Entry(each.message, each.place) for each in given]))
            sink.forgotten(given)
        if after is None:
            return


# -- to a database ----------------------------------------------------------------------------------------------------

TakeIn = Callable[[Sequence[StoredMessage]], Awaitable[list[Any]]]
"""Stores a page in the database. Each result is that of an Accept."""


class Source(Protocol):
    """The store that messages leave."""

    async def undelivered(
        self, after: MessageId | None, limit: int
    ) -> tuple[list[StoredMessage], MessageId | None]: ...

    async def perform(self, operation: Operation) -> Any: ...


@dataclass(slots=True)
class Transferred:
    """How many messages left, and how many of them were dead, were there already, or have a key that another message
    used there. `left` says why messages of a host stay; `full`: there is no room for any host.
    """

    count: int = 0
    dead: int = 0
    known: int = 0
    duplicates: int = 0
    left: dict[str, str] = field(default_factory=dict)
    full: bool = False


async def transfer_to_database(
    source: Source,
    take_in: TakeIn,
    moved: Transferred,
    on_page: Callable[[list[StoredMessage]], None] = lambda page: None,
) -> None:
    """Once through the whole store, in the order of acceptance; counts in `moved`.

    `on_page` gets the messages that have just arrived, before they are forgotten here. If there is no room for a
    message, it stays, and so do all later ones of its host. Raises StoreUnreachable and CommitFailed of either store.
    """
    moved.left, moved.full = {}, False
    await transfer(source.undelivered, source.perform, _DatabaseSink(take_in, moved, on_page), PAGE)


class _DatabaseSink:
    def __init__(self, take_in: TakeIn, moved: Transferred, on_page: Callable[[list[StoredMessage]], None]) -> None:
        self._take_in = take_in
        self._moved = moved
        self._on_page = on_page

    @property
    def is_over(self) -> bool:
        return self._moved.full

    async def give(self, page: list[StoredMessage]) -> list[StoredMessage]:
        moved = self._moved
        given: list[StoredMessage] = []
        movable = [each for each in page if each.message.host not in moved.left]
        results = await self._take_in(movable) if movable else []
        for each, result in zip(movable, results, strict=True):
            if isinstance(result, StoreFull):
                moved.left[each.message.host] = str(result)
                moved.full = moved.full or result.host is None
                continue
            given.append(each)
            moved.dead += each.reason is not None
            if isinstance(result, Duplicate):
                moved.known += result.id == each.message.id
                moved.duplicates += result.id != each.message.id
        if given:
            self._on_page(given)
        return given

    def forgotten(self, given: list[StoredMessage]) -> None:
        self._moved.count += len(given)
