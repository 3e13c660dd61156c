"""Notices that the config has changed on disk, or a file that it names, and has it taken over (`process.watch_config`).

By looking every few seconds: the standard library has nothing that tells. `stat` follows links, so a Kubernetes
ConfigMap, where one link far above the file is swapped, is seen like a file that was replaced or written anew. A file
that is still being written changes from look to look and is left until it rests, since half a config may be a valid
one. Each content is tried once: a bad one is told once, however long it stays.
"""

from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from pathlib import Path

import trio

from holdfast.config import read_regular

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
