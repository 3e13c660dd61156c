"""systemd's notify protocol, one datagram per message, and its watchdog.

Without NOTIFY_SOCKET nothing is sent; without WATCHDOG_USEC nothing wakes up. A message that can't be sent is logged
and lost: a manager that does not listen is no reason to stop.
"""

import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import trio

from holdfast.process.log import event

PATIENCE = 1.0
"""Seconds to wait for a busy manager. The loop is blocked meanwhile, so only state changes wait: systemd fails a start
that it did not hear of, but a lost ping is followed by the next.
"""
LAST_WORDS = 10.0
"""Seconds that a stop may take after its drain: last answers, last group, exit report."""

_logger = logging.getLogger("holdfast")


class Notifier:
    """Reads the environment once, at start."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._watchdog = _watchdog(environ) if self._address else None
        self._is_ready = False

    def ready(self, status: str) -> None:
        self._is_ready = True
        self._send("READY=1", f"STATUS={status}")

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Wraps a reload, whether it succeeds or not. Does nothing before the first READY=1 and while stopping."""
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
        """`drain` is the longest drain in seconds. The unit's own stop timeout is extended to it."""
        self._is_ready = False
        longest = int((drain + LAST_WORDS) * 1_000_000)
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={longest}", f"STATUS=draining, at most {drain:g} s")

    async def keep_watch(self, trouble: Callable[[], str | None]) -> None:
        """Ping the watchdog twice per interval while the loop runs and the store has no trouble."""
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
    """A path, or "@name" in the abstract namespace. Returns "" for anything else, such as vsock."""
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else ""


def _watchdog(environ: Mapping[str, str]) -> float | None:
    """The interval in seconds, if systemd watches this process."""
    microseconds = environ.get("WATCHDOG_USEC", "")
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()) or not microseconds.isdecimal():
        return None
    return int(microseconds) / 1_000_000 or None
