import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.scripted import Script, documents, status, tcp_script, unix_script
from tests.support import fork_server

EXECUTABLE = str(Path(sys.executable).with_name("holdfast"))

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Script]:
    """Plays the control socket on its default path."""
    with unix_script(tmp_path / "control.sock") as script:
        script.answers["GET /v1/status"] = documents(status())
        yield script


@pytest.fixture
def ingest() -> Iterator[Script]:
    with tcp_script() as script:
        yield script


@pytest.fixture
def holdfast() -> Run:
    """Runs a command in its own process."""
    return fork_server.run
