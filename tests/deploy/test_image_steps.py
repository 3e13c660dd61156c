"""Executes the Dockerfile's steps without a container engine: its RUN line makes the environment, and the gateway is
started and stopped by its user, volume, entry point, health check and stop signal.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import httpx
import pytest
from packaging.utils import canonicalize_name

from holdfast import __version__
from tests.deploy.dockerfile import REPOSITORY, stages
from tests.deploy.locks import RUNTIME, applies, pins, version
from tests.deploy.sandbox import as_user, need_root
from tests.support.harness import PATIENCE, PLAIN, READY, Receiver
from tests.support.ports import refusing_port
from tests.support.repetitions import LONG

pytestmark = pytest.mark.skipif(not LONG, reason="installs all of the image anew: only in make test-long")

INSTALLED = "/opt/holdfast"
BUILD, IMAGE = stages()
OFFLINE = re.compile("NewConnectionError|Temporary failure in name resolution|ProxyError")


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """What would be / in the image. Not pytest's own folder, which is closed to other users."""
    with tempfile.TemporaryDirectory(prefix="holdfast-image-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def installed(root: Path) -> Path:
    """The environment that the build stage leaves."""
    base, here = root / "base", root / BUILD.one("WORKDIR").strip("/")
    subprocess.run([sys.executable, "-m", "venv", base], check=True, timeout=120)
    here.mkdir()
    for sources in BUILD.all("COPY"):
        *names, target = sources.split()
        for name in names:
            copy(REPOSITORY / name, here / target)
    environment = {"PATH": f"{base}/bin:/usr/bin:/bin", **index_settings()}
    done = subprocess.run(
        ["sh", "-c", in_root(BUILD.one("RUN"), root)],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if OFFLINE.search(done.stderr):
        pytest.skip("the package index can't be reached")
    assert done.returncode == 0, done.stdout + done.stderr
    return root / INSTALLED.strip("/")


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target / source.name if target.is_dir() else target)


def index_settings() -> dict[str, str]:
    """How this machine reaches the package index is none of the image's business, and has to be kept."""
    kept = ("HOME", "PIP_", "SSL_CERT", "REQUESTS_CA", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")
    return {name: value for name, value in os.environ.items() if name.startswith(kept)}


def in_root(text: str, root: Path) -> str:
    return text.replace(INSTALLED, f"{root}{INSTALLED}")


def image_environment(root: Path) -> dict[str, str]:
    given = {name: in_root(value, root) for name, value in IMAGE.environment.items()}
    return given | {"PATH": given["PATH"].replace("$PATH", "/usr/local/bin:/usr/bin:/bin")}


def test_the_final_stage_takes_only_the_environment_and_nothing_that_builds() -> None:
    assert IMAGE.one("COPY") == f"--from={BUILD.name} {INSTALLED} {INSTALLED}"
    prepared = IMAGE.one("RUN")
    assert re.search(r"pip uninstall --yes .*\bsetuptools wheel pip\b", prepared)
    assert "ensurepip" in prepared
    assert not re.search(r"apt-get|pip install|curl|wget", prepared)


def test_versions_are_pinned() -> None:
    """What is installed, test_locks.py says."""
    assert BUILD.image == IMAGE.image
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}", IMAGE.image)
    assert all("--no-build-isolation" in step for step in BUILD.one("RUN").split("&&") if "pip wheel" in step)
    assert IMAGE.labels["org.opencontainers.image.version"] == __version__


def test_the_user_is_made_with_the_number_that_runs_and_owns_the_volume() -> None:
    user, group = IMAGE.user
    prepared = IMAGE.one("RUN")
    assert user == group > 0
    assert f"groupadd --gid {group} holdfast" in prepared
    assert f"useradd --uid {user} --gid {group} " in prepared
    volume = IMAGE.one("VOLUME")
    assert re.search(rf"install --directory --owner=holdfast --group=holdfast --mode=0700 {volume}$", prepared)
    assert IMAGE.environment["STATE_DIRECTORY"] == volume


def test_the_environment_has_all_extras_and_no_pip(installed: Path) -> None:
    there = {canonicalize_name(each.name): each.version for each in metadata.distributions(path=packages(installed))}
    locked = {name: version(pin) for name, pin in pins(RUNTIME).items() if applies(pin)}
    assert there == locked | {"holdfast": __version__}
    assert {"httptools", "cryptography", "psycopg", "psycopg-binary", "trio"} <= there.keys()
    assert not list((installed / "bin").glob("pip*"))


def packages(installed: Path) -> list[str]:
    return [str(each) for each in installed.glob("lib/python*/site-packages")]


def make_volume(root: Path) -> Path:
    """Empty, and the image's user's own."""
    folder = Path(tempfile.mkdtemp(prefix="volume-", dir=root))
    os.chown(folder, *IMAGE.user)
    return folder


@contextmanager
def started(words: list[str], environment: dict[str, str], log: Path) -> Iterator["subprocess.Popen[str]"]:
    with log.open("w") as stderr:
        process = subprocess.Popen(words, env=environment, cwd="/", stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout is not None
    with process.stdout:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait(PATIENCE)


def test_it_runs_as_its_user_with_a_read_only_install(installed: Path, root: Path, receiver: Receiver) -> None:
    need_root()
    volume = make_volume(root)
    subprocess.run(["chmod", "--recursive", "a-w", installed], check=True, timeout=60)
    before = as_user(*IMAGE.user, volume)
    if subprocess.run([*before, installed / "bin" / "python", "-c", ""], timeout=PATIENCE, check=False).returncode:
        pytest.skip("the Python that runs the tests lies where no other user can reach it")
    environment = image_environment(root) | {
        "STATE_DIRECTORY": str(volume),
        "HOLDFAST_LISTEN__INGEST": "127.0.0.1:0",
        "HOLDFAST_LISTEN__STATUS": f"127.0.0.1:{refusing_port()}",
        "HOLDFAST_EGRESS__ALLOW_LOOPBACK": "true",
        "HOLDFAST_EGRESS__ALLOW_PORTS": "*",
    }
    # As an engine finds it: by the image's own PATH.
    program = shutil.which(IMAGE.words("ENTRYPOINT")[0], path=environment["PATH"])
    assert program == str(installed / "bin" / "holdfast")
    command = [*before, program, *IMAGE.words("ENTRYPOINT")[1:], *IMAGE.words("CMD")]
    with started(command, environment, root / "log") as process:
        ready = READY.search(process.stdout.readline())  # type: ignore[union-attr]
        assert ready is not None, (root / "log").read_text()
        assert ready[4] == str(volume)
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert re.search(rf"^Uid:(\t{IMAGE.user[0]}){{4}}$", status, re.MULTILINE)
        assert httpx.post(f"http://{ready[1]}/{receiver.url}/x", content=b"1", **PLAIN).status_code == 202
        assert receiver.wait_for_one().body == b"1"
        asked = subprocess.run([*before, *IMAGE.health], env=environment, timeout=PATIENCE, check=False)
        assert asked.returncode == 0
        process.send_signal(signal.Signals[IMAGE.one("STOPSIGNAL")])
        assert process.wait(PATIENCE) == 0


def test_nothing_but_the_volume_can_be_written(root: Path) -> None:
    need_root()
    volume = make_volume(root)
    before = as_user(*IMAGE.user, volume)
    places = [volume, root, Path("/"), *([Path("/tmp")] if before[0] == "unshare" else [])]
    tried = [subprocess.run([*before, "test", "-w", place], timeout=PATIENCE, check=False) for place in places]
    assert [each.returncode for each in tried] == [0, *[1] * (len(places) - 1)]


def test_instructions_are_read_as_an_engine_reads_them() -> None:
    first, second = stages("FROM a:1 AS build\nRUN one \\\n  && two\n# note\nFROM a:1\nUSER 5:6\n")
    assert (first.name, first.one("RUN"), second.user) == ("build", "one && two", (5, 6))
