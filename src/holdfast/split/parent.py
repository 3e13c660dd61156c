"""The ingest process as the gateway sees it: started, told of settings, answered, asked for its counts, and ended.

It replaces an IngestListener. It is started by exec, never by fork alone, because the store is open here. The two
processes live and die together: if the ingest process ends unasked, `lost` is set and the gateway ends too; if this
process ends, the other one sees the end of the channel.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import trio

from holdfast.clock import BootClock
from holdfast.config import Address, Config
from holdfast.core.counters import Counters
from holdfast.core.errors import ReloadUnfinished
from holdfast.process.log import event
from holdfast.split.channel import Channel
from holdfast.split.frames import (
    MALFORMED,
    Beginning,
    Frame,
    Kind,
    Settings,
    decode_accept,
    decode_counts,
    encode_answer,
)
from holdfast.store.embedded.ledger import Ledger

LAST_WORDS = 2.0
"""Seconds that the ingest process has to end by itself once its channel is closed."""
COUNTING = 1.0
"""Seconds that its counts are waited for: after that the last known ones are shown."""
TAKING_OVER = 3.0
"""Seconds that a reload waits for it."""
NOT_FOR_INGEST = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
"""What a terminal or a supervisor sends to all processes of the gateway at once: this one decides what follows."""

_logger = logging.getLogger("holdfast")


class IngestProcess:
    """The same interface as IngestListener. `own` are the gateway's listeners, `listening` is the one for ingest.

    `connections` is as of the last `count`.
    """

    def __init__(
        self,
        config: Config,
        token: bytes | None,
        ledger: Ledger,
        clock: BootClock,
        own: frozenset[tuple[str, int]],
        counters: Counters,
        listening: Address,
    ) -> None:
        self._settings = Settings(config, token)
        self._ledger = ledger
        self._clock = clock
        self._own = own
        self._counters = counters
        self._listening = listening
        self._channel: Channel | None = None
        self._untaken: deque[trio.Event] = deque()
        self._uncounted: deque[trio.Event] = deque()
        self._is_stopping = False
        self.connections = 0
        self.lost = trio.Event()

    async def serve(
        self,
        listeners: Sequence[trio.SocketListener],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Runs until the process has ended, after `stop` or unasked. Closes the listeners, which are the other's."""
        here, there = socket.socketpair()
        try:
            environment = _without_secrets(os.environ, self._settings.config)
            process = start_ingest([there, *(listener.socket for listener in listeners)], environment)
        except OSError as error:
            here.close()
            self._lose(f"it could not be started: {error}")
            task_status.started()
            return
        finally:
            there.close()
            for listener in listeners:
                listener.socket.close()
        channel = self._channel = Channel(here, Kind.ANSWERS)
        frames: list[Frame] = []
        nonsense: Exception | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(channel.send)
                nursery.start_soon(self._tell_failure, channel)
                try:
                    if frames := await self._begin(channel):
                        task_status.started()
                        await self._listen(channel, frames)
                except MALFORMED as error:
                    nonsense = error
                nursery.cancel_scope.cancel()
        finally:
            self._hang_up(channel)
            status = await _end(process)
        if nonsense is not None:
            # Without its text, which may quote what was said.
            self._lose(f"it said what is no frame ({type(nonsense).__name__})")
        elif not self._is_stopping:
            self._lose(f"killed by signal {-status}" if status < 0 else f"exit status {status}")
        if not frames:
            task_status.started()

    def stop(self) -> None:
        """Requests under way are still answered."""
        self._is_stopping = True
        if self._channel is not None:
            self._channel.post(Kind.STOP)

    async def configure(self, config: Config, token: bytes | None) -> None:
        """Returns when the ingest process has taken it over. Raises ReloadUnfinished if that takes too long: the
        settings stay in the channel, and the process goes on with the old ones until it reads them.
        """
        self._settings = Settings(config, token)
        if self._channel is not None:
            self._channel.post(Kind.SETTINGS, self._settings)
            with trio.move_on_after(TAKING_OVER) as patience:
                await _reply(self._untaken)
            if patience.cancelled_caught:
                raise ReloadUnfinished(f"the ingest process has not taken it over in {TAKING_OVER:.0f} s")

    async def count(self) -> None:
        """Bring the counters up to date with what the ingest process counts."""
        if self._channel is not None:
            self._channel.post(Kind.COUNT)
            with trio.move_on_after(COUNTING):
                await _reply(self._uncounted)

    # -- the channel -------------------------------------------------------------------------------------------------

    async def _begin(self, channel: Channel) -> list[Frame]:
        """The first frames: the process serves. None if it ended before it did."""
        beginning = Beginning(self._settings, self._listening, self._own, self._clock.booted_at, self._ledger.last_id)
        channel.post(Kind.BEGIN, beginning)
        self._untaken.append(trio.Event())
        return await channel.receive()

    async def _listen(self, channel: Channel, frames: list[Frame]) -> None:
        """Until the process has closed its end."""
        while frames:
            for kind, content in frames:
                if kind is Kind.ACCEPTS:
                    self._submit(channel, content)
                elif kind is Kind.COUNTS:
                    self.connections = decode_counts(content, self._counters)
                    self._uncounted.popleft().set()
                elif kind is Kind.TAKEN:
                    self._untaken.popleft().set()
                else:
                    raise ValueError(f"{kind.name} is not for ingest to say")
            frames = await channel.receive()

    def _submit(self, channel: Channel, messages: list[list[Any]]) -> None:
        """The ledger tells what became of them in the order of submission, a group at a time. Ids that were minted here
        grow; one that is handed over has its own.
        """

        def answer(result: object) -> None:
            channel.add(encode_answer(result))

        for fields in messages:
            accept = decode_accept(fields)
            accept.done = answer
            self._ledger.submit(accept)
            if accept.place is None:
                self._ledger.last_id = accept.message.id

    async def _tell_failure(self, channel: Channel) -> None:
        await self._ledger.broken.wait()
        channel.post(Kind.FAILED, str(self._ledger.failed))

    def _hang_up(self, channel: Channel) -> None:
        channel.close()
        self._channel = None
        for waiting in (*self._untaken, *self._uncounted):
            waiting.set()

    def _lose(self, detail: str) -> None:
        event(_logger, logging.CRITICAL, "ingest_process_died", detail=detail)
        self.lost.set()


async def _reply(waiting: deque[trio.Event]) -> None:
    """Replies come in the order of the questions."""
    replied = trio.Event()
    waiting.append(replied)
    await replied.wait()


def start_ingest(
    sockets: Sequence[socket.socket | trio.socket.SocketType], environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    numbers = [sock.fileno() for sock in sockets]
    # Not from the folder that it is started in: what lies there is nobody's code.
    command = [sys.executable, "-P", "-m", "holdfast.split.child", *map(str, numbers)]
    # The new process inherits what is blocked: so no signal can meet it before it has begun.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NOT_FOR_INGEST)
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=numbers, env=environment
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _without_secrets(environ: Mapping[str, str], config: Config) -> dict[str, str]:
    """Without what signs, which ingest does not do, and what the config, which it is told, was made from."""
    signing = {route.sign.secret_env for route in config.routes.values() if route.sign is not None}
    return {name: value for name, value in environ.items() if name not in signing and not name.startswith("HOLDFAST_")}


async def _end(process: "subprocess.Popen[bytes]") -> int:
    """Wait for its end, insist if it does not come; the exit status, or minus the signal."""
    descriptor = os.pidfd_open(process.pid)
    with trio.CancelScope(shield=True):
        with trio.move_on_after(LAST_WORDS) as patience:
            await trio.lowlevel.wait_readable(descriptor)
    os.close(descriptor)
    if patience.cancelled_caught:
        process.kill()
    return process.wait()
