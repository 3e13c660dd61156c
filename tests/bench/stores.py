"""Stores with messages waiting in them, filled offline when first asked for and kept until the end of the run.

`BACKLOG` messages of 1 KiB take about 1.5 GB a million on disk.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import trio

from holdfast.core.circuit import CircuitState
from tests.bench.fill import fill, settings
from tests.bench.sink import loopback

FROZEN = "frozen.example:443"
DISABLED = 10
FOR_DISABLED = 1_000
"""Messages for each of the disabled hosts."""


class Filling(NamedTuple):
    messages: int
    hosts: Sequence[str]
    state: CircuitState


def one_frozen(count: int) -> list[Filling]:
    return [Filling(count, [FROZEN], CircuitState.FROZEN)]


def many_frozen(count: int, hosts: int) -> list[Filling]:
    return [Filling(count, [f"host{number}.example:443" for number in range(hosts)], CircuitState.FROZEN)]


def frozen_and_disabled(count: int) -> list[Filling]:
    disabled = [f"disabled{number}.example:443" for number in range(DISABLED)]
    for_disabled = min(count // 2, FOR_DISABLED * DISABLED)
    return [*one_frozen(count - for_disabled), Filling(for_disabled, disabled, CircuitState.DISABLED)]


def one_enabled(count: int, host: str) -> list[Filling]:
    return [Filling(count, [host], CircuitState.ENABLED)]


def many_enabled(count: int, hosts: int, port: int) -> list[Filling]:
    """Every host is another address of loopback."""
    return [Filling(count, [f"{loopback(number)}:{port}" for number in range(hosts)], CircuitState.ENABLED)]


class Stores:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0

    def new(self, name: str) -> Path:
        """A folder for a store that does not exist yet."""
        self._made += 1
        return self._folder / f"{name}-{self._made}"

    def filled(self, name: str, fillings: Sequence[Filling]) -> Path:
        """A store of that name; the first to ask has it filled."""
        path = self._folder / name
        if not path.exists():
            for filling in fillings:
                told = f"filling: {filling.messages:,} messages, {len(filling.hosts):,} hosts, {filling.state}"
                print(f"  {told}", file=sys.stderr, flush=True)
                trio.run(fill, settings(path), *filling)
        return path

    def drop(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)
