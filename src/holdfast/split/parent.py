"""The ingest process as the gateway sees it: started, configured, answered, and ended.

It replaces an IngestListener. It is started by exec, never by fork alone, because the store is open here. The two
processes end together: if the ingest process ends by itself, `lost` is set and the gateway ends too. If this process
ends, the other one sees the end of the channel.
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
from holdfast.split.channel import (
    MALFORMED,
    Channel,
    Frame,
    IngestStart,
    Kind,
    Settings,
    decode_accept,
    decode_counts,
    encode_result,
)
from holdfast.store.embedded.ledger import Ledger

EXIT_SECONDS = 2.0
"""Time for the ingest process to end once its channel is closed. After that it is killed."""
COUNT_SECONDS = 1.0
"""Time to wait for its counts. After that the last known ones are used."""
RELOAD_SECONDS = 3.0
"""Time that a reload waits for it."""
BLOCKED_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
"""A terminal or a supervisor sends these to all processes of the gateway. Only this process acts on them."""

_logger = logging.getLogger("holdfast")


class IngestProcess:
    """Has the interface of an IngestListener.

    `own` are holdfast's own listeners, `listening` is the one for ingest. `connections` is as of the last `count`.
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
        self._unapplied: deque[trio.Event] = deque()
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
        """Runs until the process has ended, after `stop` or by itself. Closes the listeners, which it inherits."""
        try:
            process, here = self._launch(listeners)
        except OSError as error:
            self._lose(f"it could not be started: {error}")
            task_status.started()
            return
        channel = self._channel = Channel(here, Kind.RESULTS)
        frames: list[Frame] = []
        malformed: Exception | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(channel.send)
                nursery.start_soon(self._report_failure, channel)
                try:
                    if frames := await self._start(channel):
                        task_status.started()
                        await self._receive(channel, frames)
                except MALFORMED as error:
                    malformed = error
                nursery.cancel_scope.cancel()
        finally:
            self._close_channel(channel)
            status = await _end(process)
        if malformed is not None:
            # Without its text, which may quote the frame.
            self._lose(f"it sent a malformed frame ({type(malformed).__name__})")
        elif not self._is_stopping:
            self._lose(f"killed by signal {-status}" if status < 0 else f"exit status {status}")
        if not frames:
            task_status.started()

    def _launch(self, listeners: Sequence[trio.SocketListener]) -> tuple["subprocess.Popen[bytes]", socket.socket]:
        """Start the process. Returns it with this end of the channel."""
        here, there = socket.socketpair()
        try:
            environment = _child_environment(os.environ, self._settings.config)
            return start_ingest([there, *(listener.socket for listener in listeners)], environment), here
        except OSError:
            here.close()
            raise
        finally:
            there.close()
            for listener in listeners:
                listener.socket.close()

    def stop(self) -> None:
        """Open requests are still answered."""
        self._is_stopping = True
        if self._channel is not None:
            self._channel.post(Kind.STOP)

    async def configure(self, config: Config, token: bytes | None) -> None:
        """Returns when the settings are in effect in the ingest process.

        Raises ReloadUnfinished if that takes too long. The process then uses the old settings until it reads the new.
        """
        self._settings = Settings(config, token)
        if self._channel is not None:
            self._channel.post(Kind.SETTINGS, self._settings)
            with trio.move_on_after(RELOAD_SECONDS) as patience:
                await _reply(self._unapplied)
            if patience.cancelled_caught:
                raise ReloadUnfinished(f"the ingest process has not applied it within {RELOAD_SECONDS:.0f} s")

    async def count(self) -> None:
        """Updates the counters from the ingest process."""
        if self._channel is not None:
            self._channel.post(Kind.COUNT)
            with trio.move_on_after(COUNT_SECONDS):
                await _reply(self._uncounted)

    # -- the channel -------------------------------------------------------------------------------------------------

    async def _start(self, channel: Channel) -> list[Frame]:
        """Returns the first frames once the process serves, or none if it ended before."""
        start = IngestStart(self._settings, self._listening, self._own, self._clock.booted_at, self._ledger.last_id)
        channel.post(Kind.START, start)
        self._unapplied.append(trio.Event())
        return await channel.receive()

    async def _receive(self, channel: Channel, frames: list[Frame]) -> None:
        """Handles frames until the process has closed its end."""
        while frames:
            for kind, content in frames:
                if kind is Kind.ACCEPTS:
                    self._submit(channel, content)
                elif kind is Kind.COUNTS:
                    self.connections = decode_counts(content, self._counters)
                    self._uncounted.popleft().set()
                elif kind is Kind.APPLIED:
                    self._unapplied.popleft().set()
                else:
                    raise ValueError(f"{kind.name} is not a frame of the ingest process")
            frames = await channel.receive()

    def _submit(self, channel: Channel, messages: list[list[Any]]) -> None:
        """The ledger calls back in the order of submission. Minted ids grow; a message of a handoff keeps its own."""

        def answer(result: object) -> None:
            channel.add(encode_result(result))

        for fields in messages:
            accept = decode_accept(fields)
            accept.done = answer
            self._ledger.submit(accept)
            if accept.place is None:
                self._ledger.last_id = accept.message.id

    async def _report_failure(self, channel: Channel) -> None:
        await self._ledger.broken.wait()
        channel.post(Kind.FAILED, str(self._ledger.failed))

    def _close_channel(self, channel: Channel) -> None:
        channel.close()
        self._channel = None
        for waiting in (*self._unapplied, *self._uncounted):
            waiting.set()

    def _lose(self, detail: str) -> None:
        event(_logger, logging.CRITICAL, "ingest_process_died", detail=detail)
        self.lost.set()


async def _reply(waiting: deque[trio.Event]) -> None:
    """Replies come in the order of the requests."""
    replied = trio.Event()
    waiting.append(replied)
    await replied.wait()


def start_ingest(
    sockets: Sequence[socket.socket | trio.socket.SocketType], environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    numbers = [sock.fileno() for sock in sockets]
    # -P: never import from the working directory.
    command = [sys.executable, "-P", "-m", "holdfast.split.child", *map(str, numbers)]
    # The new process inherits the blocked signals, so none can reach it before it is set up.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=numbers, env=environment
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _child_environment(environ: Mapping[str, str], config: Config) -> dict[str, str]:
    """Leaves out signing secrets, which ingest does not need, and config variables, as it gets the config itself."""
    signing = {route.sign.secret_env for route in config.routes.values() if route.sign is not None}
    return {name: value for name, value in environ.items() if name not in signing and not name.startswith("HOLDFAST_")}


async def _end(process: "subprocess.Popen[bytes]") -> int:
    """Waits for the end of the process, or kills it. Returns the exit status, or minus the signal."""
    descriptor = os.pidfd_open(process.pid)
    with trio.CancelScope(shield=True):
        with trio.move_on_after(EXIT_SECONDS) as patience:
            await trio.lowlevel.wait_readable(descriptor)
    os.close(descriptor)
    if patience.cancelled_caught:
        process.kill()
    return process.wait()
