"""The error that ends a command, and lines on stderr. Imports nothing heavy: `holdfast health` uses it."""

import sys

REFUSED = 1
"""The gateway refuses, or cannot be reached."""

MISUSED = 2
"""Wrong usage, or an invalid config."""

UNUSABLE = 3
"""The store cannot be used: it is missing, locked by a process, not accessible, or of another version."""


class CommandError(Exception):
    """Ends the command: `main` prints each line to stderr and exits with `status`."""

    def __init__(self, *lines: str, status: int = REFUSED) -> None:
        super().__init__(*lines)
        self.lines = lines
        self.status = status


def warn(line: str) -> None:
    print(f"holdfast: {clean(line)}", file=sys.stderr)


def clean(text: str) -> str:
    """Escapes everything that a terminal would act on, line ends included."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
