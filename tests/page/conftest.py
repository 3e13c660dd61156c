import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.scripted import Script, tcp_script
from tests.page.browser import Browser, browsing, missing

Picture = Callable[[str], None]


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with browsing(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """The browser in its initial state: a wide light screen, an empty page and an empty console."""
    chromium.look()
    chromium.open("about:blank")
    chromium.console()
    yield chromium
    chromium.open("about:blank")


@pytest.fixture
def script() -> Iterator[Script]:
    with tcp_script() as script:
        yield script


@pytest.fixture
def picture(browser: Browser, tmp_path: Path) -> Picture:
    """Keep a screenshot, also in the folder HOLDFAST_SCREENSHOTS if it is set."""

    def take(name: str) -> None:
        path = tmp_path / f"{name}.png"
        browser.screenshot(path)
        assert path.read_bytes().startswith(b"\x89PNG")
        folder = os.environ.get("HOLDFAST_SCREENSHOTS")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder)

    return take
