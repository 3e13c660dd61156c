"""Runs a command on a pseudo-terminal and keeps its output."""

import os
import pty
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.conftest import EXECUTABLE

PATIENCE = 30.0


class Terminal:
    def __init__(self, ours: int, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self.shown = b""
        self._ours = ours

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def wait_for(self, text: str) -> None:
        while text.encode() not in self.shown:
            assert self._read(), f"{text!r} was never shown, but {self.shown!r}"

    def end(self) -> int:
        """Returns the exit status; `shown` then has the whole output."""
        status = self.process.wait(PATIENCE)
        while select.select([self._ours], [], [], 0)[0] and self._read():
            pass
        return status

    def _read(self) -> bool:
        assert select.select([self._ours], [], [], PATIENCE)[0], f"nothing more came after {self.shown!r}"
        try:
            more = os.read(self._ours, 65_536)
        except OSError:  # Linux, when the other end is closed
            return False
        self.shown += more
        return bool(more)


@contextmanager
def on_terminal(*arguments: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "LINES": "24", "COLUMNS": "100"}
    command = [EXECUTABLE, *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ) as process:
        os.close(theirs)
        try:
            yield Terminal(ours, process)
        finally:
            process.kill()
            process.wait(PATIENCE)
            os.close(ours)
