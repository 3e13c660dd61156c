"""Headless Chromium for tests, driven through chromedriver by plain W3C WebDriver calls."""

import base64
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.harness import PATIENCE, until

FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--no-proxy-server", "--lang=en-GB",
]  # fmt: skip
STARTED = re.compile(r"started successfully on port (\d+)")


def missing() -> str | None:
    """Why there is no browser; None if there is one."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(absent)} not installed (Debian: chromium chromium-driver)" if absent else None


class Browser:
    def __init__(self, session: str, client: httpx.Client) -> None:
        self._session = session
        self._client = client

    def _call(self, method: str, path: str, document: object = None) -> Any:
        answer = self._client.request(method, f"{self._session}{path}", json=document)
        value = answer.json()["value"]
        assert answer.is_success, value
        return value

    def open(self, url: str) -> None:
        self._call("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        """The result of a script. WebDriver's scripts are exempt from the page's policy."""
        return self._call("POST", "/execute/sync", {"script": script, "args": arguments})

    def text(self, selector: str) -> str:
        """The visible text of an element; empty if there is none."""
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def texts(self, selector: str) -> list[str]:
        return list(self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)", selector))

    def count(self, selector: str) -> int:
        return int(self.run("return document.querySelectorAll(arguments[0]).length", selector))

    def until_text(self, selector: str, wanted: str) -> str:
        """Wait until an element shows `wanted`. Returns all of its text."""
        try:
            return str(until(lambda: wanted in (text := self.text(selector)) and text))
        except AssertionError:
            raise AssertionError(f"{selector} never showed {wanted!r} but {self.text(selector)!r}") from None

    def click(self, selector: str) -> None:
        self._call("POST", f"/element/{self._element(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        self._call("POST", f"/element/{self._element(selector)}/value", {"text": text})

    def _element(self, selector: str) -> str:
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        return str(next(iter(found.values())))

    def devtools(self, command: str, **parameters: object) -> Any:
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def console(self) -> list[str]:
        """The console's entries since the last call."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def look(self, *, dark: bool = False, width: int = 1280, motion: bool = False) -> None:
        """Set the screen and the user's preferences."""
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "no-preference" if motion else "reduce"},
        ]
        self.devtools("Emulation.setEmulatedMedia", features=features)
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )

    def screenshot(self, path: Path) -> None:
        """A screenshot of the whole page."""
        height = int(self.run("return document.documentElement.scrollHeight"))
        width = int(self.run("return innerWidth"))
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.devtools("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser with its own profile. It ends with the block."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert chromium is not None
    assert driver is not None
    process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        port = next(found[1] for line in process.stdout if (found := STARTED.search(line)))
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=2 * PATIENCE) as client:
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": {"binary": chromium, "args": [*FLAGS, f"--user-data-dir={profile}"]},
                "goog:loggingPrefs": {"browser": "ALL"},
            }
            answer = client.post("/session", json={"capabilities": {"alwaysMatch": wanted}})
            assert answer.is_success, answer.text
            session = f"/session/{answer.json()['value']['sessionId']}"
            try:
                yield Browser(session, client)
            finally:
                client.delete(session)
    finally:
        process.terminate()
        process.wait(PATIENCE)
        process.stdout.close()
