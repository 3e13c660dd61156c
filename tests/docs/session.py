"""A reader's environment: a clone, a gateway by `make run`, the example receiver, and a shell, on free ports."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.docs.snippets import REPOSITORY, Command, shows
from tests.support.harness import PATIENCE, PLAIN, READY, until
from tests.support.ports import refusing_port

MAKE_RUN = "make run"
MAKE_RECEIVER = "python3 deploy/example/receiver.py 9000"
SERVICES = (MAKE_RUN, MAKE_RECEIVER)

NEVER_END = ("holdfast tail", "holdfast status --watch")
"""Run until they have said something, then ended as by Ctrl-C."""

OF_A_STOPPED_STORE = ("holdfast fsck", "holdfast export", "holdfast import", "holdfast compact")

LOOKING = ("holdfast status", "holdfast circuits", "holdfast messages list", "holdfast messages show", "holdfast why")
"""Repeated until they show what the page shows: deliveries go on meanwhile."""

OWN = {".git", ".venv", "var", "dist"}
"""What a clone does not share with others."""

RECEIVING = re.compile(r"receiving on http://(\S+)/")
MESSAGE = re.compile(r"msg_[0-9a-f]{32}")


class Session:
    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        for entry in REPOSITORY.iterdir():
            if entry.name not in OWN:
                (folder / entry.name).symlink_to(entry)
        (folder / ".venv").symlink_to(sys.prefix)
        self._environ = _environ(folder) | settings
        self._exports: list[str] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._last_id = ""
        self._spellings = {"receiver.py 9000": "receiver.py 0", MAKE_RUN: "make -o .venv/.ready run"}
        self._gateway: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._receiver_log, found = self._serve(MAKE_RECEIVER, RECEIVING)
        self.host = found[1]
        self._environ["HOLDFAST_ROUTES__EXAMPLE__URL"] = f"http://{self.host}/hook"
        self._spellings |= {"127.0.0.1:9000": self.host, "api.example.com": self.host}
        self._start_gateway()

    def run(self, command: Command) -> None:
        """As the page has it; it has to succeed, and to show what the page shows."""
        text = command.text
        if text.split("  #")[0].strip() in SERVICES:
            log = self._gateway_log if text.startswith(MAKE_RUN) else self._receiver_log
            assert shows(log.read_text(), command), log.read_text()
        elif text.startswith("export "):
            self._exports.append(text)
        elif text.startswith(NEVER_END):
            self._run_for_a_while(text)
        elif text.startswith(LOOKING) and command.shown:
            until(lambda: shows(self._output_of(text), command))
        else:
            output = self._output_of(text)
            assert shows(output, command), f"{text}\n{output}"

    def run_sample(self, words: list[str], name: str, text: str) -> None:
        """A program from a page; everything that it sends has to arrive."""
        (self.folder / name).write_text(self._spelled(text))
        before = self._arrived()
        printed = self._finish(subprocess.list2cmdline([*words, name]), 10 * PATIENCE)
        ids = set(MESSAGE.findall(printed))
        assert len(ids) == 4, printed
        until(lambda: ids <= self._arrived() - before)

    def trip(self) -> None:
        """Make the receiver fail until its circuit is disabled, and leave some messages waiting."""
        httpx.get(f"http://{self.host}/answer/503", **PLAIN)
        until(lambda: self._post() and self.circuit()["state"] == "disabled")
        for _ in range(3):
            self._post()

    def circuit(self) -> dict[str, Any]:
        answer = httpx.get(f"http://{self.status}/circuits/{self.host}", **PLAIN)
        return dict(answer.json()) if answer.is_success else {"state": "unknown"}

    def totals(self) -> dict[str, Any]:
        return dict(httpx.get(f"http://{self.status}/status", **PLAIN).json()["totals"])

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(PATIENCE)

    def _start_gateway(self) -> None:
        self._gateway_log, found = self._serve(MAKE_RUN, READY)
        self._gateway = self._processes[-1]
        ingest, self.status = found[1], found[2]
        self._environ |= {"HOLDFAST_LISTEN__INGEST": ingest, "HOLDFAST_LISTEN__STATUS": self.status}
        self._spellings |= {"127.0.0.1:8800": ingest, "127.0.0.1:8801": self.status}

    def _stop_gateway(self) -> None:
        assert self._gateway is not None
        os.kill(int(httpx.get(f"http://{self.status}/status", **PLAIN).json()["pid"]), signal.SIGTERM)
        assert self._gateway.wait(PATIENCE) == 0
        self._gateway = None

    def _serve(self, text: str, ready: re.Pattern[str]) -> tuple[Path, re.Match[str]]:
        log = self.folder / f"service-{len(self._processes)}.log"
        process = self._start(text, log)

        def said() -> re.Match[str] | None:
            found = ready.search(log.read_text())
            assert found or process.poll() is None, log.read_text()
            return found

        return log, until(said)

    def _start(self, text: str, log: Path) -> "subprocess.Popen[bytes]":
        with log.open("w") as output:
            process = subprocess.Popen(
                self._shell(text),
                cwd=self.folder,
                env=self._environ,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def _run_for_a_while(self, text: str) -> None:
        log = self.folder / "live.log"
        process = self._start(f"exec {text}", log)
        until(lambda: self._post() and log.read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) in (0, 130), log.read_text()

    def _output_of(self, text: str) -> str:
        offline = text.startswith(OF_A_STOPPED_STORE)
        if offline and self._gateway is not None:
            self._stop_gateway()
        if not offline and self._gateway is None:
            self._start_gateway()
        return self._finish(text, 2 * PATIENCE)

    def _finish(self, text: str, patience: float) -> str:
        """What a command prints; it has to end well."""
        done = subprocess.run(
            self._shell(text),
            cwd=self.folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=patience,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        self._last_id = next(reversed(MESSAGE.findall(done.stdout)), self._last_id)
        return done.stdout

    def _shell(self, text: str) -> list[str]:
        return ["bash", "-c", "\n".join([*self._exports, self._spelled(text)])]

    def _spelled(self, text: str) -> str:
        for ours, here in (self._spellings | {"msg_...": self._last_id}).items():
            text = text.replace(ours, here)
        return text

    def _post(self) -> bool:
        answer = httpx.post(f"http://{self._spellings['127.0.0.1:8800']}/to/example", content=b"{}", **PLAIN)
        return answer.is_success

    def _arrived(self) -> set[str]:
        return set(MESSAGE.findall(self._receiver_log.read_text()))


@contextmanager
def reading(folder: Path, **settings: str) -> Iterator[Session]:
    session = Session(folder, **settings)
    try:
        session.start()
        yield session
    finally:
        session.close()


def _environ(folder: Path) -> dict[str, str]:
    """Nothing of whoever runs the tests, but where their tools and Go's compiled packages are."""
    environ = {
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder / "state"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LANG": "C.UTF-8",
        "HOLDFAST_CONFIG": "config/dev.toml",
        "HOLDFAST_LISTEN__INGEST": f"127.0.0.1:{refusing_port()}",
        "HOLDFAST_LISTEN__STATUS": f"127.0.0.1:{refusing_port()}",
        "HOLDFAST_DRAIN__TIMEOUT": "5s",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
    }
    if shutil.which("go"):
        asked = subprocess.run(["go", "env", "GOCACHE"], capture_output=True, text=True, timeout=PATIENCE, check=True)
        environ["GOCACHE"] = asked.stdout.strip()
    return environ
