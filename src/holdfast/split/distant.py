"""The store as the ingest process sees it: new messages travel to the gateway's process and wait for its word.

This process alone mints ids, in the order in which messages travel: so they reach the store in the order of their ids.
Answers come in the same order, and need no names. Only so many messages are under way at once; the others are held
here, each by a connection of its own, and travel as answers come.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.core.errors import CommitFailed
from holdfast.core.message import MessageId, next_id
from holdfast.split.channel import Channel
from holdfast.split.frames import decode_answer, encode_accept
from holdfast.store.port import Accept, Done

MOST_UNANSWERED = 512
"""Messages under way at once: no fewer than one group of the store takes."""
MOST_BYTES = 8 << 20
"""Bodies under way at once: two groups of the store. One message may always travel, however large."""


class DistantStore:
    def __init__(self, channel: Channel, last_id: MessageId, random_bits: Callable[[int], int]) -> None:
        self._channel = channel
        self._last_id = last_id
        self._random_bits = random_bits
        self._held: deque[Accept] = deque()
        self._waiting: deque[Done] = deque()
        """Of all messages without an answer; those under way come first."""
        self._sizes: deque[int] = deque()
        """Of the bodies under way."""
        self._bytes = 0
        self._failed: CommitFailed | None = None

    def mint(self, now: int) -> MessageId:
        self._last_id = next_id(self._last_id, now, self._random_bits(80))
        return self._last_id

    def submit(self, operation: Accept) -> None:
        assert operation.done is not None
        if self._failed is not None:
            operation.done(self._failed)
            return
        self._waiting.append(operation.done)
        self._held.append(operation)
        self._let_go()

    def answered(self, answers: list[Any]) -> None:
        for told in answers:
            self._bytes -= self._sizes.popleft()
            self._waiting.popleft()(decode_answer(told))
        self._let_go()

    def fail(self, detail: str) -> None:
        """Nobody will answer any more: what waits, and what comes from now on, may or may not be stored."""
        self._failed = CommitFailed(detail)
        self._held.clear()
        while self._waiting:
            self._waiting.popleft()(self._failed)

    def _let_go(self) -> None:
        sizes = self._sizes
        while self._held and (not sizes or (len(sizes) < MOST_UNANSWERED and self._bytes < MOST_BYTES)):
            accept = self._held.popleft()
            size = len(accept.message.body)
            sizes.append(size)
            self._bytes += size
            self._channel.add(encode_accept(accept))
