"""The circuit's table in the docs is the one that runs."""

import re
from pathlib import Path

from holdfast.core.circuit import TRANSITIONS

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def test_the_circuit_in_the_docs_is_the_table():
    drawn = set(re.findall(r"^\| (\w+) \| (\w+) \| (\w+) \| (\w*) ?\|$", PAGE.read_text(), re.MULTILINE))
    table = {
        (str(before), str(event), str(after), str(reason or ""))
        for before, events in TRANSITIONS.items()
        for event, (after, reason) in events.items()
    }
    assert drawn - {("from", "event", "to", "reason")} == table
