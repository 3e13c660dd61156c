"""The docs match the code: the circuit's table, named files, links."""

import re
from pathlib import Path

import pytest

from holdfast.core.circuit import TRANSITIONS

REPOSITORY = Path(__file__).parents[2]
PAGES = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md"), *(REPOSITORY / "deploy").glob("*.md")]
PAGE = REPOSITORY / "docs" / "architecture.md"
PACKAGES = {path.name for path in (REPOSITORY / "src" / "holdfast").iterdir() if path.is_dir()}


def test_the_circuit_table_of_the_docs_matches_the_code():
    drawn = set(re.findall(r"^\| (\w+) \| (\w+) \| (\w+) \| (\w*) ?\|$", PAGE.read_text(), re.MULTILINE))
    table = {
        (str(before), str(event), str(after), str(reason or ""))
        for before, events in TRANSITIONS.items()
        for event, (after, reason) in events.items()
    }
    assert drawn - {("from", "event", "to", "reason")} == table


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_by_a_page_exist(page: Path) -> None:
    for name in re.findall(r"`([\w*./-]+/[\w*.-]*)`", page.read_text()):
        if name.split("/")[0] == "tests":
            assert list(REPOSITORY.glob(name)), name
        elif name.split("/")[0] in PACKAGES:
            # `config` is a package, and the folder of the example files.
            assert [*(REPOSITORY / "src" / "holdfast").glob(name), *REPOSITORY.glob(name)], name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
