"""What is installed elsewhere: a wheel and an sdist that are whole, and that run with what they declare and no more.

The dependencies are linked from this environment into an empty one: those that the wheel asks for, and those that these
ask for. That needs no network, and an import of something undeclared fails.
"""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement

from holdfast import __version__
from tests.support.harness import PATIENCE, PLAIN, READY, Receiver, settings

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "src" / "holdfast"
LONG = 4 * PATIENCE


def run(*words: str | Path, cwd: Path = REPOSITORY) -> str:
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, capture_output=True, text=True, timeout=LONG, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def package_files(root: Path) -> set[str]:
    found = (path.relative_to(root.parent) for path in root.rglob("*") if path.is_file())
    return {str(path) for path in found if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the commands of an environment that has the wheel, and what it needs, without its extras."""
    home = tmp_path_factory.mktemp("empty")
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", "--quiet", wheel)
    packages = next(home.glob("lib/python*/site-packages"))
    for distribution in needed(metadata.Distribution.at(next(packages.glob("holdfast-*.dist-info"))), set()):
        for name in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            (packages / name).symlink_to(Path(str(distribution.locate_file(name))))
    return home / "bin"


def needed(distribution: metadata.Distribution, seen: set[str]) -> Iterator[metadata.Distribution]:
    for requirement in map(Requirement, distribution.requires or ()):
        if requirement.name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(requirement.name)
        found = metadata.distribution(requirement.name)
        assert requirement.specifier.contains(found.version, prereleases=True), requirement
        yield found
        yield from needed(found, seen)


def test_the_wheel_holds_the_whole_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if ".dist-info/" not in name}
    assert names == package_files(PACKAGE)
    assert {"holdfast/py.typed", "holdfast/operate/page.html"} <= names


def test_the_sdist_gives_the_same_wheel_and_itself_byte_for_byte(built: Path, wheel: Path, tmp_path: Path) -> None:
    """In another folder, and with other dates, permissions, umask, time zone and locale."""
    sdist = next(built.glob("*.tar.gz"))
    with tarfile.open(sdist) as file:
        file.extractall(tmp_path, filter="data")
    source = tmp_path / f"holdfast-{__version__}"
    assert package_files(source / "src" / "holdfast") == package_files(PACKAGE)
    assert all((source / name).exists() for name in ("README.md", "CHANGELOG.md", "config/holdfast.toml", "tests"))
    assert not any((source / name).exists() for name in (".git", ".venv", "dist", "var"))
    (source / "PKG-INFO").unlink()  # the sdist's own: a clone has none
    for path in source.rglob("*"):
        path.chmod(path.stat().st_mode & 0o700)
        os.utime(path, (1, 1))
    elsewhere = ("env", "TZ=Asia/Tokyo", "LC_ALL=POSIX", "PYTHONUTF8=0", "sh", "-c", 'umask 077; exec "$@"', "sh")
    run(*elsewhere, sys.executable, "-m", "hatchling", "build", "-d", tmp_path / "again", cwd=source)
    for first in (sdist, wheel):
        assert (tmp_path / "again" / first.name).read_bytes() == first.read_bytes()


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        text = file.read(f"holdfast-{__version__}.dist-info/METADATA").decode()
    about = metadata.PathDistribution(zipfile.Path(wheel, f"holdfast-{__version__}.dist-info/")).metadata
    assert about["Version"] == __version__
    assert about["Description-Content-Type"] == "text/markdown"
    assert "Typing :: Typed" in (about.get_all("Classifier") or ())
    assert "# holdfast" in text


def test_installed_it_tells_its_version(installed: Path) -> None:
    assert run(installed / "holdfast", "--version", cwd=installed) == f"holdfast {__version__}\n"


def test_installed_it_delivers_and_shows_its_page(installed: Path, receiver: Receiver, tmp_path: Path) -> None:
    command = [str(installed / "holdfast"), "run"]
    with subprocess.Popen(command, env=settings(tmp_path / "store"), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = READY.search(process.stdout.readline())
            assert found is not None
            assert httpx.post(f"http://{found[1]}/{receiver.url}/hook", content=b"{}", **PLAIN).status_code == 202
            assert receiver.wait_for_one().path == "/hook"
            assert httpx.get(f"http://{found[2]}/", **PLAIN).headers["content-type"].startswith("text/html")
        finally:
            process.terminate()
        assert process.wait(PATIENCE) == 0
