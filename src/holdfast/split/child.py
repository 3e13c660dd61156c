"""The ingest process: `python -m holdfast.split.child CHANNEL LISTENER...`, the numbers of inherited sockets.

Only the gateway's process starts it, with signals blocked, and controls it over the channel. If the channel ends, the
gateway's process is gone. Open requests then get 503, and this process ends too.
"""

import socket
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import trio

from holdfast.clock import FollowingClock
from holdfast.core.counters import Counters
from holdfast.core.errors import CommitFailed
from holdfast.core.message import MessageId, next_id
from holdfast.delivery.egress import Guard
from holdfast.process.listeners import LAST_ANSWERS, IngestListener
from holdfast.process.log import setup
from holdfast.process.random_bits import RandomBits
from holdfast.split.channel import (
    Channel,
    Frame,
    IngestStart,
    Kind,
    Settings,
    decode_result,
    encode_accept,
    encode_counts,
    unpickle,
)
from holdfast.store.port import Accept, Done

MAX_MESSAGES_SENT = 512
"""Messages sent and without a result: at least as many as the store commits in one group."""
MAX_BYTES_SENT = 8 << 20
"""Bytes of their bodies: two groups of the store. A single message may always be sent, whatever its size."""


def main() -> None:
    channel, *listening = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    trio.run(run, channel, [trio.SocketListener(trio.socket.from_stdlib_socket(sock)) for sock in listening])


async def run(sock: socket.socket, listeners: list[trio.SocketListener]) -> None:
    channel = Channel(sock, Kind.ACCEPTS)
    frames = await channel.receive()
    if not frames:
        return
    (_, start), *more = frames
    ingest = IngestSide(channel, unpickle(start))
    async with trio.open_nursery() as channel_tasks:
        channel_tasks.start_soon(channel.send)
        async with trio.open_nursery() as serving:
            await serving.start(ingest.listener.serve, listeners)
            channel.post(Kind.APPLIED)
            channel_tasks.start_soon(ingest.receive, more, serving.cancel_scope)
        channel_tasks.cancel_scope.cancel()


class IngestSide:
    def __init__(self, channel: Channel, start: IngestStart) -> None:
        settings = start.settings
        setup(settings.config.log.format, settings.config.log.level)
        self._channel = channel
        self._is_stopping = False
        self._counters = Counters()
        self._store = RemoteStore(channel, start.last_id, RandomBits())
        self._guard = Guard(settings.config.egress)
        self._guard.own.update(start.own)
        clock = FollowingClock(start.booted_at)
        self.listener = IngestListener(*settings, self._store, clock, self._guard, self._counters, start.listening)

    async def receive(self, frames: list[Frame], serving: trio.CancelScope) -> None:
        """Handles frames of the gateway's process until it is gone."""
        while True:
            for kind, content in frames:
                await self._handle(kind, content)
            frames = await self._channel.receive()
            if not frames:
                break
        self._store.fail("the gateway's process ended")
        # After a STOP the gateway's process has waited for the last responses itself.
        serving.deadline = trio.current_time() + (0 if self._is_stopping else LAST_ANSWERS)
        self._stop()

    async def _handle(self, kind: Kind, content: object) -> None:
        match kind, content:
            case Kind.RESULTS, list():
                self._store.resolve(content)
            case Kind.COUNT, _:
                self._channel.post(Kind.COUNTS, encode_counts(self._counters, self.listener.connections))
            case Kind.SETTINGS, bytes():
                await self._configure(unpickle(content))
                self._channel.post(Kind.APPLIED)
            case Kind.FAILED, str():
                self._store.fail(content)
            case Kind.STOP, _:
                self._stop()

    def _stop(self) -> None:
        self._is_stopping = True
        self.listener.stop()

    async def _configure(self, settings: Settings) -> None:
        setup(settings.config.log.format, settings.config.log.level)
        self._guard.configure(settings.config.egress)
        await self.listener.configure(*settings)


class RemoteStore:
    """Sends new messages to the gateway's process and waits for the results.

    Only this process mints ids, in the order of sending, so messages reach the store in the order of their ids. Results
    come in the same order and need no ids. The number of messages sent is limited. Further ones are held here, each
    with its connection, until results come.
    """

    def __init__(self, channel: Channel, last_id: MessageId, random_bits: Callable[[int], int]) -> None:
        self._channel = channel
        self._last_id = last_id
        self._random_bits = random_bits
        self._held: deque[Accept] = deque()
        self._unresolved: deque[Done] = deque()
        """Callbacks of all messages without a result: first those sent, then those held."""
        self._sizes: deque[int] = deque()
        """Sizes of the bodies sent."""
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
        self._unresolved.append(operation.done)
        self._held.append(operation)
        self._send_held()

    def resolve(self, results: list[Any]) -> None:
        for result in results:
            self._bytes -= self._sizes.popleft()
            self._unresolved.popleft()(decode_result(result))
        self._send_held()

    def fail(self, detail: str) -> None:
        """No more results will come: messages without one, and new messages, may or may not be stored."""
        self._failed = CommitFailed(detail)
        self._held.clear()
        while self._unresolved:
            self._unresolved.popleft()(self._failed)

    def _send_held(self) -> None:
        sizes = self._sizes
        while self._held and (not sizes or (len(sizes) < MAX_MESSAGES_SENT and self._bytes < MAX_BYTES_SENT)):
            accept = self._held.popleft()
            size = len(accept.message.body)
            sizes.append(size)
            self._bytes += size
            self._channel.add(encode_accept(accept))


if __name__ == "__main__":
    main()
