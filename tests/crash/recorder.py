"""Builds recorder.c, loads it into a gateway, and reads its log: every write and sync of the data file, in order."""

import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import ClassVar, NamedTuple

import pytest

SOURCE = Path(__file__).with_name("recorder.c")
_HEAD = struct.Struct("<BBHIQQ")
_ID = re.compile(rb'"id":\s*"(msg_[0-9a-f]{32})"')


class Kind(Enum):
    WRITE = ord("W")
    WRITTEN = ord("D")
    """A write through a descriptor that is O_DSYNC is over: its own bytes are on disk, and no others by it."""
    SIZE = ord("T")
    SYNC_BEGAN = ord("B")
    SYNCED = ord("S")
    FAILED = ord("F")
    RENAMED = ord("R")
    FOLDER_SYNCED = ord("G")
    ACKNOWLEDGED = ord("A")


class Place(Enum):
    ELSEWHERE = 0
    DATA = 1
    BESIDE = 2
    """A file beside the store's, which may take its place."""
    FOLDER = 3


class Record(NamedTuple):
    kind: Kind
    place: Place
    error: int
    offset: int
    length: int
    data: bytes

    @property
    def acknowledged(self) -> list[str]:
        return [id.decode() for id in _ID.findall(self.data)]


class Recorder:
    """The built library. `loaded` is for one start of a gateway; its log is appended to from start to start."""

    _library: ClassVar[Path | None] = None
    """Built by the first test that needs it, in its folder, which outlives the others."""

    def __init__(self, folder: Path) -> None:
        Recorder._library = Recorder._library or _build(folder)
        self._log = folder / "recorder.log"
        self.armed = folder / "armed"

    @contextmanager
    def loaded(self, store: Path, **how: str) -> Iterator[None]:
        """Whatever is started inside records; `how` is recorder.c's settings, in small letters."""
        variables = {"LD_PRELOAD": str(self._library), "RECORDER_LOG": str(self._log), "RECORDER_FOLDER": str(store)}
        variables |= {f"RECORDER_{name.upper()}": value for name, value in how.items()}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            yield

    def records(self) -> list[Record]:
        return list(_records(self._log.read_bytes()))


def _build(folder: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the recorder of writes and syncs needs a C compiler called cc")
    library = folder / "recorder.so"
    command = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    subprocess.run([*command, "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


def _records(log: bytes) -> Iterator[Record]:
    place = 0
    while place < len(log):
        kind, where, error, size, offset, length = _HEAD.unpack_from(log, place)
        place += _HEAD.size
        yield Record(Kind(kind), Place(where), error, offset, length, log[place : place + size])
        place += size
