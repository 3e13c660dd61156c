"""What a new config may change while the gateway runs, and what only a restart can."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import trio

from holdfast.config import Config, read_regular
from holdfast.config.keys import NEEDS_RESTART


def files_read(config: Config, file: Path | None) -> list[Path]:
    """What a reload reads: the config's file, and those it names that are not looked at with every attempt."""
    named = (file, config.ingest.token_file, config.delivery.proxy_credentials_file, config.delivery.ca_file)
    return [path for path in named if path is not None]


def merge(running: Config, wanted: Config) -> tuple[Config, list[str]]:
    """The wanted config with what needs a restart left as it runs, and the keys that were."""
    merged, left = wanted, []
    for key in NEEDS_RESTART:
        section, _, name = key.partition(".")
        old, new = getattr(getattr(running, section), name), getattr(getattr(wanted, section), name)
        if old != new:
            left.append(key)
            merged = _replaced(merged, section, name, old)
    return merged, left


def changed(running: Config, wanted: Config) -> list[str]:
    """The keys whose values differ, routes by their names."""
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
    """`files` gives the files to watch, as the config that runs names them."""

    def __init__(self, files: Callable[[], Sequence[Path]]) -> None:
        self._files = files
        self._known: dict[Path, bytes] = {}
        self._settled = self._before = self._looks()

    def remember(self) -> None:
        """The files as they are now are being taken over, by whoever asked for it."""
        self._known = self._contents()

    async def run(self, take_over: Callable[[], Awaitable[None]]) -> None:
        """Watch until cancelled. `take_over` remembers what it reads, also what it refuses."""
        while True:
            await trio.sleep(LOOK_EVERY)
            if self.look():
                await take_over()

    def look(self) -> bool:
        """Whether there is something to take over: other than before, and at rest since the last look."""
        before, self._before = self._before, self._looks()
        if not self._before == before != self._settled:
            return False
        self._settled = before
        return self._has_news()

    def _has_news(self) -> bool:
        """Files that a reload has just named are no news: it has read them."""
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
