"""Every command and sample of README and docs works as the page says, on a real gateway."""

import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.commands import COMMANDS
from holdfast.config import build
from tests.docs.session import Session, reading
from tests.docs.snippets import CONSOLE, DATA, PAGES, REPOSITORY, SHELL, Block, Command, blocks, commands
from tests.support.harness import until
from tests.support.repetitions import cases

NOT_RUN = {
    "make test": "this test is a part of it",
    "make lint": "CI runs it beside the tests",
    "make format": "rewrites the sources; `make lint` looks for the same",
    "make docs": "writes into the clone; tests/docs/test_generated.py writes elsewhere",
    "make sim": "goes on until it is stopped; tests/sim runs some of its worlds",
    "make fuzz": "goes on until it is stopped; tests/http/test_codec_fuzz.py runs a round of it",
    "make bench": "takes many minutes of a machine to itself; tests/bench/test_bench.py runs a short one",
    "make lock": "asks the package index what is new",
    "make digests": "asks an image registry; tests/deploy/test_locks.py has a stand-in",
    "make wheel": "writes into the clone; tests/test_package.py builds elsewhere",
    "make sbom": "writes into the clone; tests/deploy/test_sbom.py writes elsewhere",
    ".venv/bin/python -m pytest": "is a part of `make test`",
    "docker ": "needs a container engine",
    "kubectl ": "needs a cluster",
    "systemctl ": "needs a machine that runs systemd",
}
"""Commands, by how they begin, that no test can run as they are, and why."""

BLOCKS = [block for page in PAGES for block in blocks(page)]
EXAMPLES = REPOSITORY / "deploy" / "example"
SAMPLES = {
    "sample.py": (["python3"], "".join(block.text for block in BLOCKS if block.language == "python")),
    "send.mjs": (["node"], (EXAMPLES / "send.mjs").read_text()),
    "send.go": (["go", "run"], (EXAMPLES / "send.go").read_text()),
    "Send.java": (["java"], (EXAMPLES / "Send.java").read_text()),
}
"""Programs of `docs/sending.md`. Each sends one webhook in each of the four ways, and prints the ids."""

OPERATING, SENDING = REPOSITORY / "docs" / "operating.md", REPOSITORY / "docs" / "sending.md"


def to_run(page: Path) -> list[Command]:
    found = [command for block in blocks(page) if block.language in SHELL for command in commands(block)]
    return [command for command in found if not command.text.startswith(tuple(NOT_RUN))]


def named(value: object) -> str:
    return value.name if isinstance(value, Block | Path) else str(value)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with reading(tmp_path_factory.mktemp("samples")) as session:
        yield session


@pytest.mark.parametrize("page", [page for page in PAGES if to_run(page)], ids=named)
def test_the_commands_of_a_page_work(page: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    # Messages that die at once, for the page that says what to do then.
    settings = {"HOLDFAST_RETRY__MAX_RETRIES": "0"} if page == OPERATING else {}
    with reading(tmp_path_factory.mktemp("page"), **settings) as session:
        if page == OPERATING:
            session.trip()
        for command in to_run(page):
            session.run(command)
        assert session.totals()["refused"] == {}
        if page == SENDING:
            until(lambda: session.totals()["delivered"] == session.totals()["accepted"])


@pytest.mark.parametrize("name", cases(["sample.py", "send.mjs"], ["send.go", "Send.java"]))
def test_a_sample_delivers_in_each_of_the_four_ways(name: str, session: Session) -> None:
    command, text = SAMPLES[name]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    session.run_sample(command, name, text)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "toml"], ids=named)
def test_the_settings_of_a_page_are_valid(block: Block) -> None:
    build(tomllib.loads(block.text))


def test_every_runnable_block_of_a_page_is_run() -> None:
    for block in BLOCKS:
        assert block.language in {"toml", "python", *SHELL, *DATA}, block.name
        if block.language == CONSOLE:
            assert block.text.startswith("$ "), block.name
        elif block.language in DATA:
            assert not re.search(r"^\s*\$ ", block.text, re.MULTILINE), block.name


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_named_in_a_page_exist(page: Path) -> None:
    text = page.read_text()
    makefile = (REPOSITORY / "Makefile").read_text()
    for word in re.findall(r"`holdfast ([a-z]+)\b[^`]*`", text):
        assert word in COMMANDS, word
    for target in re.findall(r"`make ([a-z-]+)[^`]*`", text):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_operating_explains_every_alert() -> None:
    alerts = re.findall(r"- alert: (\w+)", (REPOSITORY / "deploy/prometheus/alerts.yml").read_text())
    assert sorted(re.findall(r"\bHoldfast[A-Z]\w+", OPERATING.read_text())) == sorted(alerts)
