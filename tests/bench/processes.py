"""CPU and memory of processes, as the kernel counts them, and ending the ones that were started here."""

import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

TICK = 1 / os.sysconf("SC_CLK_TCK")
PATIENCE = 30.0
GONE = (FileNotFoundError, ProcessLookupError)
"""A process that just ended; what it used is its parent's then."""
ROOT = Path(__file__).parents[2]


class Memory(NamedTuple):
    """In bytes: `anon` is the processes' own, `file` are pages of files that the kernel can take back."""

    anon: int
    file: int

    @property
    def resident(self) -> int:
        return self.anon + self.file


def tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(*GONE):
            for child in listing.read_text().split():
                found += tree(int(child))
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time of the processes so far, of threads and of children that ended included."""
    ticks = 0
    for pid in pids:
        with suppress(*GONE):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks * TICK


def memory(pids: Sequence[int]) -> Memory:
    anon = file = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "RssAnon":
                anon += int(value.split()[0]) << 10
            elif name in ("RssFile", "RssShmem"):
                file += int(value.split()[0]) << 10
    return Memory(anon, file)


def many_files() -> None:
    """Let this process and its children open as many files as they may: a connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def python(module: str, *arguments: str, **more: Any) -> "subprocess.Popen[str]":
    """A module of the benchmarks as a process of its own."""
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, **more)


def end(process: "subprocess.Popen[str]") -> None:
    """Ask it to go, insist if it does not; pipes are closed."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(PATIENCE)
    if process.stdout is not None:
        process.stdout.close()
