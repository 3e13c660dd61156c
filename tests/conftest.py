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
