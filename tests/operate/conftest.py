"""A gateway and a receiver for each test, and what a scrape of the gateway says."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Gateway, Receiver, running


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with running(tmp_path / "store") as gateway:
        yield gateway


@pytest.fixture(scope="session")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not here; it comes with Prometheus (apt-get install prometheus)")
    return found
