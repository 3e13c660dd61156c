"""What is wrong with a config: one Fault a finding, one ConfigError for all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One finding. `allowed` is empty where the problem itself says what to do."""

    key: str
    problem: str
    allowed: str = ""

    def __str__(self) -> str:
        # Keys come from outside too, and a fault is one line.
        key = self.key if self.key.isprintable() else show(self.key)
        line = f"{key}: {self.problem}"
        return f"{line}; allowed: {self.allowed}" if self.allowed else line


class ConfigError(Exception):
    """Every fault of a config at once; as text, one line each."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__(faults)
        self.faults = tuple(faults)

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.faults)


class BadValue(ValueError):
    """A value that its reader refuses, for one reason or more: each a (problem, allowed) pair."""

    def __init__(self, *reasons: tuple[str, str]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


def show(value: object) -> str:
    """Spell a value as TOML would, on one line and short, whatever characters it holds."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        short = value if len(value) <= 80 else value[:77] + "..."
        return '"' + "".join(_visible(character) for character in short) + '"'
    if isinstance(value, int | float):
        # Python refuses to spell integers of thousands of digits.
        return str(value) if isinstance(value, float) or abs(value) < 10**20 else "a huge number"
    if isinstance(value, list):
        return "a list"
    return "a table" if isinstance(value, dict) else "a date or time"


def _visible(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
