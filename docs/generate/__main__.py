"""Writes the docs and the example config that come from the code: `python docs/generate [FOLDER]`, or `make docs`."""

import sys
from pathlib import Path

import circuit
import config_page
import retries

PAGES = {
    "docs/circuit.svg": circuit.draw,
    "docs/retries.svg": retries.draw,
    "docs/config.md": config_page.page,
    "config/holdfast.toml": config_page.example,
}


def main(folder: Path) -> None:
    for name, make in PAGES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(make())


main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2])
