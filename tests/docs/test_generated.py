"""The generated docs are up to date and complete."""

import subprocess
import sys
from pathlib import Path

from holdfast.config.keys import ROUTE, SECTIONS
from tests.docs.snippets import REPOSITORY
from tests.support.harness import PATIENCE

DOCS = REPOSITORY / "docs"


def test_the_generated_pages_are_up_to_date(tmp_path: Path) -> None:
    command = [sys.executable, str(DOCS / "generate"), str(tmp_path)]
    subprocess.run(command, timeout=2 * PATIENCE, check=True)
    made = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*.*")}
    assert set(made) == {"docs/circuit.svg", "docs/retries.svg", "docs/config.md", "config/holdfast.toml"}
    for name, text in made.items():
        assert (REPOSITORY / name).read_text() == text, f"{name} is out of date: make docs"


def test_every_key_is_explained() -> None:
    rows = [line.split(" | ") for line in (DOCS / "config.md").read_text().splitlines() if line.startswith("| ")]
    explained = {cells[0].removeprefix("| ") for cells in rows if all(cell.strip(" |") for cell in cells)}
    assert {name for keys in (*(each.keys for each in SECTIONS.values()), ROUTE) for name in keys} <= explained
