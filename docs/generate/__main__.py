"""Writes what the docs take from the code: `python docs/generate [FOLDER]`, or `make docs`."""

import sys
from pathlib import Path

import circuit
import config_page
import retries

PAGES = {"circuit.svg": circuit.draw, "retries.svg": retries.draw, "config.md": config_page.page}


def main(folder: Path) -> None:
    for name, make in PAGES.items():
        (folder / name).write_text(make())


main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])
