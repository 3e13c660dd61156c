"""Programs that check deploy/: from `make tools`, or installed on this machine."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.dockerfile import REPOSITORY

OWN = REPOSITORY / ".venv" / "tools" / "bin"
PATIENCE = 120.0


def tool(*names: str) -> str:
    """The first of these programs that is here; without any the test is skipped."""
    for name in names:
        found = shutil.which(name, path=f"{OWN}:{os.environ.get('PATH', '')}")
        if found is not None:
            return found
    pytest.skip(f"{' or '.join(names)} is not here; `make tools` or .ci/run installs it where it can be had")


def run(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
