"""The Dockerfile as data: stages of instructions, so that tests execute it instead of repeating it."""

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCKERFILE = REPOSITORY / "Dockerfile"

_FROM = re.compile(r"(?P<image>\S+)(?: AS (?P<name>\S+))?")


@dataclass
class Stage:
    image: str
    name: str | None
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, word: str) -> list[str]:
        return [rest for each, rest in self.instructions if each == word]

    def one(self, word: str) -> str:
        (rest,) = self.all(word)
        return rest

    def words(self, word: str) -> list[str]:
        """An instruction in exec form."""
        return [str(each) for each in json.loads(self.one(word))]

    @property
    def environment(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for text in self.all("ENV") for pair in shlex.split(text))

    @property
    def labels(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for text in self.all("LABEL") for pair in shlex.split(text))

    @property
    def user(self) -> tuple[int, int]:
        user, group = self.one("USER").split(":")
        return int(user), int(group)

    @property
    def health(self) -> list[str]:
        return [str(each) for each in json.loads(self.one("HEALTHCHECK").partition("CMD ")[2])]


def stages(text: str | None = None) -> list[Stage]:
    lines = (text if text is not None else DOCKERFILE.read_text()).splitlines()
    joined = "\n".join(line for line in lines if not line.lstrip().startswith("#")).replace("\\\n", " ")
    found: list[Stage] = []
    for line in filter(None, map(str.strip, joined.splitlines())):
        word, rest = line.split(None, 1)
        if word == "FROM":
            named = _FROM.fullmatch(rest)
            assert named is not None, rest
            found.append(Stage(named["image"], named["name"]))
        else:
            found[-1].instructions.append((word, re.sub(r"\s+", " ", rest)))
    return found
