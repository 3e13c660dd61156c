"""The lock files as data: versions and hashes."""

import re
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.dockerfile import REPOSITORY

RUNTIME, BUILD, DEVELOPMENT, TOOLS = (
    REPOSITORY / f"requirements{kind}.lock" for kind in ("", "-build", "-dev", "-tools")
)


def lines(lock: Path) -> list[str]:
    joined = lock.read_text().replace("\\\n", " ")
    return [line for line in joined.splitlines() if not line.lstrip().startswith("#")]


def pins(lock: Path) -> dict[str, Requirement]:
    found = (Requirement(line.partition("--hash")[0]) for line in lines(lock))
    return {canonicalize_name(each.name): each for each in found}


def version(pin: Requirement) -> str:
    (only,) = pin.specifier
    return only.version


def hashes(lock: Path) -> dict[str, list[str]]:
    found = re.compile(r"--hash=sha256:(\w+)")
    return {canonicalize_name(line.partition("==")[0]): found.findall(line) for line in lines(lock)}


def applies(pin: Requirement) -> bool:
    """Whether the Python that runs the tests needs it."""
    return pin.marker is None or pin.marker.evaluate()
