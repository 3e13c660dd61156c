"""What a service manager hears: systemd's notify protocol, one datagram a message, and its watchdog.

Nothing is sent where NOTIFY_SOCKET is not set, and nothing wakes up where WATCHDOG_USEC is not. A message that can't be
sent is lost with a line in the log: a manager that does not listen is no reason to stop.
"""

import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import trio

from holdfast.process.log import event

PATIENCE = 1.0
"""Seconds that a manager with much to read is waited for. All stands still meanwhile, so it is for changes of state
alone: a start that systemd did not hear of fails, a ping that it missed is followed by the next.
"""
LAST_WORDS = 10.0
"""Seconds that a stop may take beyond its drain: the last answers, the last group, the report."""

_logger = logging.getLogger("holdfast")


class Notifier:
    """Where to send is asked of the environment once, at start."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._watchdog = _watchdog(environ) if self._address else None
        self._is_ready = False

    def ready(self, status: str) -> None:
        self._is_ready = True
        self._send("READY=1", f"STATUS={status}")

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Around a reload, whatever becomes of it: the gateway runs on with one config or the other. Not before the
        first READY=1, which this would anticipate, nor when it is stopping.
        """
        if not self._is_ready:
            yield
            return
        self._send("RELOADING=1")
        try:
            yield
        finally:
            if self._is_ready:
                self._send("READY=1")

    def stopping(self, drain: float) -> None:
        """`drain` is the longest that the drain may take, in seconds: whatever time the unit gives, it is enough."""
        self._is_ready = False
        longest = int((drain + LAST_WORDS) * 1_000_000)
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={longest}", f"STATUS=draining, at most {drain:g} s")

    async def keep_watch(self, trouble: Callable[[], str | None]) -> None:
        """Tell the watchdog twice in its time that the loop turns, and that there is no trouble with the store."""
        if self._watchdog is None:
            return
        while True:
            if trouble() is None:
                self._send("WATCHDOG=1", patience=0)
            await trio.sleep(self._watchdog / 2)

    def _send(self, *lines: str, patience: float = PATIENCE) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(patience)
            try:
                sock.sendto("\n".join(lines).encode(), self._address)
            except OSError as error:
                event(_logger, logging.WARNING, "notify_failed", message=lines[0], detail=str(error))


def _address(name: str) -> str:
    """A path, or after an @ a name in the abstract namespace; "" for anything else, vsock among it."""
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else ""


def _watchdog(environ: Mapping[str, str]) -> float | None:
    """Seconds, if it waits for this process."""
    microseconds = environ.get("WATCHDOG_USEC", "")
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()) or not microseconds.isdecimal():
        return None
    return int(microseconds) / 1_000_000 or None
