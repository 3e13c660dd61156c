"""What a repair takes out of the tables, kept in a file beside the data: one JSON line a row, its bytes in hex.

A row is in the file, and the file on disk, before the commit that removes it.
"""

import json
import os
from pathlib import Path

from holdfast.core.message import rfc3339
from holdfast.store.embedded.folder import SET_ASIDE
from holdfast.store.embedded.tables import Table
from holdfast.store.files import open_private, sync_folder


class SetAside:
    """A file that comes to be with its first row."""

    def __init__(self, folder: Path, now: int) -> None:
        moment = rfc3339(now).replace("-", "").replace(":", "")
        self.path = folder / f"{SET_ASIDE}{moment}.jsonl"
        self.count = 0
        self._lines: list[bytes] = []

    def add(self, table: Table, key: bytes, value: bytes, why: str) -> None:
        row = {"table": table.name.lower(), "key": key.hex(), "value": value.hex(), "why": why}
        self._lines.append(json.dumps(row).encode() + b"\n")

    def flush(self) -> None:
        """Everything so far is on disk."""
        if not self._lines:
            return
        with open_private(self.path, "ab" if self.count else "xb") as file:
            file.writelines(self._lines)
            file.flush()
            os.fsync(file.fileno())
        if not self.count:
            sync_folder(self.path.parent)
        self.count += len(self._lines)
        self._lines = []
