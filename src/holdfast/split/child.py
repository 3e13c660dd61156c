"""The ingest process: `python -m holdfast.split.child CHANNEL LISTENER...`, the numbers of inherited sockets.

Started by the gateway's process and by nobody else, with signals blocked: it does what it is told over the channel, and
when the channel ends, the gateway's process is gone; then whoever waits gets 503, and this one ends too.
"""

import socket
import sys

import trio

from holdfast.clock import FollowingClock
from holdfast.core.counters import Counters
from holdfast.delivery.egress import Guard
from holdfast.process.ingest_listener import LAST_ANSWERS, IngestListener
from holdfast.process.log import setup
from holdfast.process.random_bits import RandomBits
from holdfast.split.channel import Channel
from holdfast.split.distant import DistantStore
from holdfast.split.frames import Beginning, Frame, Kind, Settings, encode_counts, unpickled


def main() -> None:
    channel, *listening = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    trio.run(run, channel, [trio.SocketListener(trio.socket.from_stdlib_socket(sock)) for sock in listening])


async def run(sock: socket.socket, listeners: list[trio.SocketListener]) -> None:
    channel = Channel(sock, Kind.ACCEPTS)
    frames = await channel.receive()
    if not frames:
        return
    (_, beginning), *more = frames
    ingest = IngestSide(channel, unpickled(beginning))
    async with trio.open_nursery() as talking:
        talking.start_soon(channel.send)
        async with trio.open_nursery() as serving:
            await serving.start(ingest.intake.serve, listeners)
            channel.post(Kind.TAKEN)
            talking.start_soon(ingest.listen, more, serving.cancel_scope)
        talking.cancel_scope.cancel()


class IngestSide:
    def __init__(self, channel: Channel, beginning: Beginning) -> None:
        settings = beginning.settings
        setup(settings.config.log.format, settings.config.log.level)
        self._channel = channel
        self._is_stopping = False
        self._counters = Counters()
        self._store = DistantStore(channel, beginning.last_id, RandomBits())
        self._guard = Guard(settings.config.egress)
        self._guard.own.update(beginning.own)
        self.intake = IngestListener(
            *settings,
            self._store,
            FollowingClock(beginning.booted_at),
            self._guard,
            self._counters,
            beginning.listening,
        )

    async def listen(self, frames: list[Frame], serving: trio.CancelScope) -> None:
        """Do what the gateway's process says, until it is gone."""
        while True:
            for kind, content in frames:
                await self._hear(kind, content)
            frames = await self._channel.receive()
            if not frames:
                break
        self._store.fail("the gateway's process ended")
        # After a STOP it has waited for the last answers itself.
        serving.deadline = trio.current_time() + (0 if self._is_stopping else LAST_ANSWERS)
        self._stop()

    async def _hear(self, kind: Kind, content: object) -> None:
        match kind, content:
            case Kind.ANSWERS, list():
                self._store.answered(content)
            case Kind.COUNT, _:
                self._channel.post(Kind.COUNTS, encode_counts(self._counters, self.intake.connections))
            case Kind.SETTINGS, bytes():
                await self._configure(unpickled(content))
                self._channel.post(Kind.TAKEN)
            case Kind.FAILED, str():
                self._store.fail(content)
            case Kind.STOP, _:
                self._stop()

    def _stop(self) -> None:
        self._is_stopping = True
        self.intake.stop()

    async def _configure(self, settings: Settings) -> None:
        setup(settings.config.log.format, settings.config.log.level)
        self._guard.configure(settings.config.egress)
        await self.intake.configure(*settings)


if __name__ == "__main__":
    main()
