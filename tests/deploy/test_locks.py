"""What is installed is what the locks name, file by file: each requirement has its version and hashes, none is missing,
and every installer requires the hashes.
"""

import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.dockerfile import REPOSITORY, stages
from tests.deploy.locks import BUILD, DEVELOPMENT, RUNTIME, TOOLS, applies, lines, pins, version
from tests.deploy.tools import run

LOCKS = (RUNTIME, BUILD, DEVELOPMENT, TOOLS)
EXTRAS = ("fast", "ed25519", "postgres")
LINE = re.compile(r"[\w.-]+==[\w.]+(?: ; [^#-]+?)?(?:\s+--hash=sha256:[0-9a-f]{64})+")
COMPOSE = ("deploy/compose/compose.yaml", "deploy/compose/fleet.yaml")


def project() -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def asked(*extras: str) -> Iterator[Requirement]:
    about = project()["project"]
    for text in (*about["dependencies"], *(each for name in extras for each in about["optional-dependencies"][name])):
        requirement = Requirement(text)
        yield from asked(*requirement.extras) if requirement.name == about["name"] else (requirement,)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_each_line_is_one_version_with_hashes(lock: Path) -> None:
    for line in lines(lock):
        assert LINE.fullmatch(line), line


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_no_lock_says_where_packages_come_from(lock: Path) -> None:
    assert not re.search(r"://|--(extra-)?index|--find-links|--trusted|-[if] ", lock.read_text())


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        (RUNTIME, list(asked(*EXTRAS))),
        (DEVELOPMENT, list(asked("dev"))),
        (BUILD, [Requirement(each) for each in project()["dependency-groups"]["build"]]),
        (BUILD, [Requirement(each) for each in project()["build-system"]["requires"]]),
        (TOOLS, [Requirement(each) for each in project()["dependency-groups"]["tools"]]),
    ],
    ids=["run", "develop", "build", "build-system", "tools"],
)
def test_what_the_project_asks_for_is_locked(lock: Path, wanted: list[Requirement]) -> None:
    locked = pins(lock)
    for each in wanted:
        assert each.specifier.contains(version(locked[canonicalize_name(each.name)]), prereleases=True), each
        assert locked[canonicalize_name(each.name)].url is None


def needed(by: Requirement, seen: set[str]) -> set[str]:
    """This package and all that it asks for, by the metadata of what is installed."""
    seen.add(canonicalize_name(by.name))
    for each in map(Requirement, metadata.distribution(by.name).requires or ()):
        wanted = each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *by.extras))
        if wanted and canonicalize_name(each.name) not in seen:
            needed(each, seen)
    return seen


def test_what_runs_is_locked_with_all_that_it_needs_and_no_more() -> None:
    wanted: set[str] = set()
    for each in asked(*EXTRAS):
        needed(each, wanted)
    assert {name for name, pin in pins(RUNTIME).items() if applies(pin)} == wanted


def test_locks_agree_where_they_meet() -> None:
    development = pins(DEVELOPMENT)
    for name, pin in (pins(RUNTIME) | pins(BUILD)).items():
        assert version(development[name]) == version(pin)


def test_what_is_installed_is_what_is_locked() -> None:
    for name, pin in pins(DEVELOPMENT).items():
        if applies(pin):
            assert metadata.version(name) == version(pin)


def test_another_file_of_the_same_name_and_version_is_refused(tmp_path: Path) -> None:
    """As from an index that was tampered with: pip takes it by its name, and then finds another hash."""
    locked = next(line for line in lines(RUNTIME) if line.startswith("sniffio=="))
    locked_version = version(pins(RUNTIME)["sniffio"])
    about = f"sniffio-{locked_version}.dist-info"
    with zipfile.ZipFile(tmp_path / f"sniffio-{locked_version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: sniffio\nVersion: {locked_version}\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    lock = tmp_path / "requirements.lock"
    lock.write_text(locked)
    words = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", f"--find-links={tmp_path}"]
    done = run(*words, f"--target={tmp_path / 'installed'}", "--disable-pip-version-check", f"--requirement={lock}")
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr
    assert done.returncode != 0
    assert not (tmp_path / "installed").exists()


def test_the_makefile_installs_only_by_hash_or_from_here() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "tools"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    installs = [line for line in done.stdout.splitlines() if "pip install" in line]
    assert len(installs) == 4
    own = "--no-deps --no-build-isolation --editable ."
    for line in installs:
        assert line.endswith(own) or re.search(r" --require-hashes .*-r requirements[\w-]*\.lock$", line), line


def test_the_image_installs_only_by_hash_or_what_it_built() -> None:
    build, _ = stages()
    steps = [step.strip() for step in build.one("RUN").split("&&")]
    installs = [step for step in steps if " install " in step]
    assert [" ".join(step.split()[-2:]) for step in installs[:2]] == [
        "-r requirements-build.lock",
        "-r requirements.lock",
    ]
    assert all("--require-hashes" in step and "--only-binary :all:" in step for step in installs[:2])
    assert installs[2].endswith("--no-index --no-deps dist/holdfast-*.whl")
    assert len(installs) == 3


def foreign_images(folder: Path = REPOSITORY) -> list[str]:
    found = [stage.image for stage in stages((folder / "Dockerfile").read_text())]
    for file in COMPOSE:
        services = yaml.safe_load((folder / file).read_text())["services"]
        found += [each["image"] for each in services.values() if "image" in each]
    return [image for image in found if not image.startswith("holdfast:")]


def test_images_that_are_not_ours_are_named_by_digest() -> None:
    assert len(foreign_images()) == 5
    for image in foreign_images():
        assert re.fullmatch(r"[a-z]+:\d[\w.-]+@sha256:[0-9a-f]{64}", image), image


def test_make_digests_writes_what_the_registry_says(tmp_path: Path) -> None:
    for name in ("Makefile", "Dockerfile", *COMPOSE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((REPOSITORY / name).read_text())
    # In place of a container engine that reaches a registry: a digest that can be told from the tag.
    engine = tmp_path / "docker"
    engine.write_text('#!/bin/sh\necho "sha256:$(printf "%s" "$6" | sha256sum | cut -d" " -f1)"\n')
    engine.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(["make", "digests"], cwd=tmp_path, env=environment, capture_output=True, check=True)
    tags = [image.partition("@")[0] for image in foreign_images()]
    assert foreign_images(tmp_path) == [f"{tag}@sha256:{hashlib.sha256(tag.encode()).hexdigest()}" for tag in tags]
