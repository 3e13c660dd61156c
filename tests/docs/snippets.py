"""Code blocks of the pages: commands with their output, samples in other languages, settings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted(
    [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("deploy/**/*.md")],
    key=lambda page: page.relative_to(REPOSITORY),
)

CONSOLE = "console"
SCRIPTS = {"sh", "bash"}
SHELL = {CONSOLE, *SCRIPTS}
DATA = {"", "text", "json", "yaml"}
"""Fences in these languages hold nothing to run."""

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: Path
    language: str
    line: int
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(REPOSITORY)}:{self.line}"


@dataclass(frozen=True)
class Command:
    text: str
    shown: tuple[str, ...]
    """The lines of output that the page shows; `...` stands for anything."""


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in FENCE.finditer(text):
        yield Block(page, found[1], text.count("\n", 0, found.start()) + 2, found[2])


def commands(block: Block) -> Iterator[Command]:
    """The lines after a `$`, with those that go on after a backslash, and what follows up to the next `$`.

    A script has no `$`, and shows no output.
    """
    text = re.sub(r"^(?:#.*)?\n", "", block.text, flags=re.MULTILINE) if block.language in SCRIPTS else block.text
    start = r"(?<!\\\n)^" if block.language in SCRIPTS else r"^\$ "
    for part in re.split(start, text.rstrip("\n"), flags=re.MULTILINE)[1:]:
        lines = part.removesuffix("\n").split("\n")
        last = next(index for index, line in enumerate(lines) if not line.endswith("\\"))
        yield Command("\n".join(lines[: last + 1]), tuple(lines[last + 1 :]))


def shows(output: str, command: Command) -> bool:
    """Whether every line that the page shows is in the output, but for numbers, ids and times."""
    printed = [_shape(line) for line in output.splitlines()]
    wanted = [_pattern(line) for line in command.shown if line.strip() not in ("", "...")]
    return all(any(pattern.fullmatch(line) for line in printed) for pattern in wanted)


def _pattern(line: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(_shape(part, ends=False)) for part in line.split("...")))


def _shape(line: str, *, ends: bool = True) -> str:
    line = re.sub(r"msg_[0-9a-f]{32}", "msg_0", line)
    line = re.sub(r"\bnow\b", "0s ago", line)
    line = re.sub(r"\d+(?:[.,]\d+)*", "0", line)
    line = re.sub(r"\b0[smhd]\b", "0s", line)
    line = re.sub(r"\s+", " ", line)
    return line.strip() if ends else line
