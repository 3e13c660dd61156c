"""Reload: which keys a new config may change without a restart, and a watch for changes on disk.

`process.watch_config` polls the files every few seconds: the standard library has no notification. `stat` follows
links, so it sees a Kubernetes ConfigMap, where a link far above the file is swapped. A file that is being written
changes between looks and waits until it rests, because half a config may be valid. Each content is tried once: a bad
config is logged once, however long it stays.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import trio

from holdfast.config import Config, read_regular
from holdfast.config.keys import NEEDS_RESTART


def files_read(config: Config, file: Path | None) -> list[Path]:
    """The files that a reload reads: the config, and files that it names and that are not read with each attempt."""
    named = (file, config.ingest.token_file, config.delivery.proxy_credentials_file, config.delivery.ca_file)
    return [path for path in named if path is not None]


def merge(running: Config, wanted: Config) -> tuple[Config, list[str]]:
    """The wanted config, with the running value of each key that needs a restart. Returns those keys too."""
    merged, left = wanted, []
    for key in NEEDS_RESTART:
        section, _, name = key.partition(".")
        old, new = getattr(getattr(running, section), name), getattr(getattr(wanted, section), name)
        if old != new:
            left.append(key)
            merged = _replaced(merged, section, name, old)
    return merged, left


def changed(running: Config, wanted: Config) -> list[str]:
    """The keys whose values differ. Routes are compared by name."""
    found = []
    for section in fields(Config):
        old, new = getattr(running, section.name), getattr(wanted, section.name)
        if section.name == "routes":
            found += [f"routes.{name}" for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
        else:
            names = [each.name for each in fields(old)]
            found += [f"{section.name}.{name}" for name in names if getattr(old, name) != getattr(new, name)]
    return found


def _replaced(config: Config, section: str, name: str, value: Any) -> Config:
    inner = replace(getattr(config, section), **{name: value})
    return replace(config, **{section: inner})


LOOK_EVERY = 2.0

Look = tuple[int, ...]


class Watch:
    """`files` returns the files to watch, as the running config names them."""

    def __init__(self, files: Callable[[], Sequence[Path]]) -> None:
        self._files = files
        self._known: dict[Path, bytes] = {}
        self._settled = self._before = self._looks()

    def remember(self) -> None:
        """Call when a reload reads the files, whatever started it."""
        self._known = self._contents()

    async def run(self, take_over: Callable[[], Awaitable[None]]) -> None:
        """Watch until cancelled. `take_over` calls `remember`, also for a config that it refuses."""
        while True:
            await trio.sleep(LOOK_EVERY)
            if self.look():
                await take_over()

    def look(self) -> bool:
        """Whether there is a change to apply: the files differ, and have not changed since the last look."""
        before, self._before = self._before, self._looks()
        if not self._before == before != self._settled:
            return False
        self._settled = before
        return self._has_changed()

    def _has_changed(self) -> bool:
        """A file that a reload has just named is not a change: the reload has read it."""
        before, self._known = self._known, self._contents()
        return any(before.get(path, content) != content for path, content in self._known.items())

    def _looks(self) -> list[Look]:
        return [_look(path) for path in self._files()]

    def _contents(self) -> dict[Path, bytes]:
        return {path: _digest(path) for path in self._files()}


def _look(path: Path) -> Look:
    try:
        status = path.stat()
    except OSError as error:
        return (error.errno or 0,)
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)


def _digest(path: Path) -> bytes:
    try:
        return blake2b(read_regular(path), digest_size=16).digest()
    except OSError:
        return b""
