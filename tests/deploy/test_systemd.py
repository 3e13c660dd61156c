"""The unit: systemd's tools accept it and rate it as confined, and the gateway works inside the confinement."""

import base64
import ctypes.util
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import httpx
import pytest

from holdfast.config import load
from tests.deploy.dockerfile import REPOSITORY
from tests.deploy.tools import run, tool
from tests.support.harness import HOLDFAST, PATIENCE, PLAIN, READY, Receiver, settings

UNIT = REPOSITORY / "deploy/systemd/holdfast.service"
HIGHEST_EXPOSURE = 2.0


@pytest.fixture(scope="module")
def analyze() -> str:
    return tool("systemd-analyze")


def service() -> dict[str, list[str]]:
    """Settings of the unit, each as often as it is there."""
    settings: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if re.match(r"\w+=", line):
            name, value = line.split("=", 1)
            settings.setdefault(name, []).append(value)
    return settings


def seconds(span: str) -> int:
    found = re.fullmatch(r"(\d+)(s|min)", span)
    assert found is not None, span
    return int(found[1]) * {"s": 1, "min": 60}[found[2]]


def test_systemd_accepts_the_unit(analyze: str, tmp_path: Path) -> None:
    installed = tmp_path / UNIT.name
    installed.write_text(UNIT.read_text().replace("/opt/holdfast/bin/holdfast", HOLDFAST))
    done = run(analyze, "verify", "--man=no", installed)
    assert done.returncode == 0, done.stderr
    # Of other units that this machine has, it may say what it likes.
    assert not [line for line in (done.stdout + done.stderr).splitlines() if UNIT.stem in line]


def test_systemd_rates_the_unit_as_confined(analyze: str) -> None:
    done = run(analyze, "security", "--offline=true", "--no-pager", UNIT)
    found = re.search(r"Overall exposure level for holdfast.service: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) < HIGHEST_EXPOSURE


def test_the_time_limits_of_the_unit_fit_the_defaults() -> None:
    unit, drain = service(), load(None, {"HOME": "/"}, {}).drain
    assert unit["Type"] == ["notify"]
    assert seconds(unit["TimeoutStopSec"][0]) >= drain.timeout / 1000 + 5
    assert unit["RestartPreventExitStatus"] == ["2"]


def allowed_calls(analyze: str) -> list[str]:
    """The unit's SystemCallFilter, in full."""

    @cache
    def members(name: str) -> set[str]:
        if not name.startswith("@"):
            return {name}
        listed = re.sub(r"#.*", "", run(analyze, "syscall-filter", "--no-pager", name).stdout).split()
        return set().union(*map(members, listed[1:]))

    calls: set[str] = set()
    for line in service()["SystemCallFilter"]:
        named = set().union(*(members(name) for name in line.lstrip("~").split()))
        calls = calls - named if line.startswith("~") else calls | named
    return sorted(calls)


def test_the_gateway_works_inside_the_confinement(analyze: str, tmp_path: Path, receiver: Receiver) -> None:
    if ctypes.util.find_library("seccomp") is None:
        pytest.skip("libseccomp is not here; it comes with systemd")
    secret = tmp_path / "secret"
    secret.write_text("whsk_" + base64.b64encode(bytes(range(32))).decode())
    config = tmp_path / "holdfast.toml"
    config.write_text(
        f'[routes.signed]\nurl = "{receiver.url}/in"\n'
        f'sign = {{ scheme = "standard-webhooks", secret_file = "{secret}" }}\n'
    )
    calls, (families,) = allowed_calls(analyze), service()["RestrictAddressFamilies"]
    confined = [sys.executable, Path(__file__).with_name("confined.py"), ",".join(calls), families.replace(" ", ",")]
    environment = settings(tmp_path / "store", config=config, listen__probe="0.0.0.0:0")
    environment |= {
        "HOLDFAST_LISTEN__CONTROL": str(tmp_path / "control"),
        "HOLDFAST_LISTEN__CONTROL_GROUP": str(os.getgid()),
    }
    process = subprocess.Popen(
        [*confined, HOLDFAST, "run"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        ready = READY.search(process.stdout.readline())
        assert ready is not None, process.communicate(timeout=PATIENCE)
        assert httpx.post(f"http://{ready[1]}/to/signed", content=b"1", **PLAIN).status_code == 202
        assert receiver.wait_for_one().headers["webhook-signature"].startswith("v1a,")
        assert "process_start_time_seconds" in httpx.get(f"http://{ready[2]}/metrics", **PLAIN).text
        reload = subprocess.run(
            [*confined, HOLDFAST, "reload"], env=environment, capture_output=True, timeout=PATIENCE, check=False
        )
        assert reload.returncode == 0, reload.stderr
        process.terminate()
        _, log = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, log
        assert '"level":"error"' not in log
        assert "Operation not permitted" not in log
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=PATIENCE)


def test_the_confinement_confines(analyze: str) -> None:
    if ctypes.util.find_library("seccomp") is None:
        pytest.skip("libseccomp is not here; it comes with systemd")
    script = "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)"
    confined = [sys.executable, Path(__file__).with_name("confined.py"), ",".join(allowed_calls(analyze)), "AF_INET"]
    done = run(*confined, sys.executable, "-c", script)
    assert "Operation not permitted" in done.stderr
    done = run(*confined, sys.executable, "-c", "import os; os.sched_setaffinity(0, {0})")
    assert "Operation not permitted" in done.stderr
