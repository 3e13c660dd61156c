"""The faults of a config: a ConfigFault each, and one ConfigError for all of them.

A fault names the key and what is allowed. It shows the value only if it was understood and can't be a secret: a number,
a duration, a network. Text that was not understood may be a secret under the wrong key.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ConfigFault:
    """`allowed` is empty if the problem says what to do."""

    key: str
    problem: str
    allowed: str = ""

    def __str__(self) -> str:
        # The key is input too, and a fault is one line.
        key = self.key if self.key.isprintable() else quoted(self.key)
        line = f"{key}: {self.problem}"
        return f"{line}; allowed: {self.allowed}" if self.allowed else line


class ConfigError(Exception):
    """Every fault of a config at once; as text, one line each."""

    def __init__(self, faults: Sequence[ConfigFault]) -> None:
        super().__init__(faults)
        self.faults = tuple(faults)

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.faults)


class BadValue(ValueError):
    """A reader refuses a value, for one or more reasons: pairs of problem and allowed."""

    def __init__(self, *reasons: tuple[str, str]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


def unreadable(path: Path, error: OSError) -> str:
    """Why a file that a config names can't be read. Only the part of the path that exists is shown: the rest may be the
    secret itself, written in place of its file.
    """
    reason = f"can't be read: {error.strerror or error}"
    there = next((each for each in (path, *path.parents) if os.path.lexists(each)), None)
    return f"{path} {reason}" if there == path else f"the file {reason}; of its path there is {there}"


def quoted(name: str) -> str:
    """A name in quotes as in TOML, on one line and short, whatever characters it holds."""
    short = name if len(name) <= 80 else name[:77] + "..."
    return '"' + "".join(_visible(character) for character in short) + '"'


def show(value: object) -> str:
    """A value as it may be shown: numbers as they are, otherwise only the type."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "this text"
    if isinstance(value, int | float):
        # Python refuses to convert integers of thousands of digits.
        return str(value) if isinstance(value, float) or abs(value) < 10**20 else "a huge number"
    if isinstance(value, list):
        return "a list"
    return "a table" if isinstance(value, dict) else "a date or time"


def _visible(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
