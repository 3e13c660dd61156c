"""A wall clock that tests set, under a real process: a few lines of C, built here and preloaded."""

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")


class WallClock:
    """Whatever is started with its `environment` lives by this clock, also when it is set later."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler here to build a preloaded wall clock with")
        library = folder / "wall_clock.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)], check=True)
        self._shift = folder / "shift"
        self.set(0)
        self.environment = {"LD_PRELOAD": str(library), "WALL_CLOCK_SHIFT": str(self._shift)}

    def set(self, seconds: int) -> None:
        """In place: a process that runs has the file mapped."""
        with self._shift.open("r+b" if self._shift.exists() else "wb") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))
