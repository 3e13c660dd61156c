"""`make sbom`: a bill of what runs, with the lock's hashes, reproducible byte for byte."""

import json
import os
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

from holdfast import __version__
from tests.deploy.dockerfile import REPOSITORY
from tests.deploy.locks import RUNTIME, applies, hashes, pins, version
from tests.deploy.tools import OWN, PATIENCE, tool
from tests.support.repetitions import LONG

SCRIPT = REPOSITORY / "deploy" / "sbom.py"


def make(file: Path, **environment: str) -> bytes:
    tool("cyclonedx-py")
    # What is installed counts, however old: a test installs nothing.
    words = ["make", "--assume-old=.venv/tools/.ready", "sbom", f"SBOM={file}"]
    given = os.environ | {"SOURCE_DATE_EPOCH": "1700000000"} | environment
    done = subprocess.run(
        words, cwd=REPOSITORY, env=given, umask=0o077, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return file.read_bytes()


@pytest.fixture(scope="module")
def bill(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return dict(json.loads(make(tmp_path_factory.mktemp("sbom") / "bill.json")))


def test_the_bill_names_what_runs_and_nothing_else(bill: dict[str, Any]) -> None:
    locked = {name: version(pin) for name, pin in pins(RUNTIME).items() if applies(pin)}
    assert {each["purl"] for each in bill["components"]} == {f"pkg:pypi/{name}@{locked[name]}" for name in locked}
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/holdfast@{__version__}"
    refs = {each["bom-ref"] for each in (bill["metadata"]["component"], *bill["components"])}
    assert {each["ref"] for each in bill["dependencies"]} == refs
    assert {to for each in bill["dependencies"] for to in each.get("dependsOn", ())} <= refs


def test_each_package_has_its_licence_and_the_hashes_of_the_lock(bill: dict[str, Any]) -> None:
    locked = hashes(RUNTIME)
    for each in bill["components"]:
        assert each["licenses"]
        (files,) = (one for one in each["externalReferences"] if one["url"] == each["purl"])
        name = each["purl"].partition("/")[2].partition("@")[0]
        assert files["hashes"] == [{"alg": "SHA-256", "content": content} for content in locked[name]]


def test_the_bill_does_not_say_when_and_where_it_was_made(bill: dict[str, Any]) -> None:
    assert bill["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    assert uuid.UUID(bill["serialNumber"]).version == 5
    assert str(REPOSITORY) not in json.dumps(bill)


@pytest.mark.skipif(not LONG, reason="makes the bill a second time: only in make test-long")
def test_the_bill_is_reproducible_byte_for_byte(bill: dict[str, Any], tmp_path: Path) -> None:
    again = make(tmp_path / "again.json", TZ="Asia/Tokyo", LC_ALL="POSIX", PYTHONHASHSEED="7")
    assert again.decode() == json.dumps(bill, indent=2, sort_keys=True) + "\n"


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"type": "nonsense"}, "this is not CycloneDX 1.6"), ({"version": "0"}, "the environment does not hold")],
    ids=["against the schema", "against the lock"],
)
def test_a_wrong_bill_is_not_written(bill: dict[str, Any], tmp_path: Path, changed: dict[str, str], said: str) -> None:
    first, *others = bill["components"]
    given = json.dumps(bill | {"components": [first | changed, *others]})
    words = [OWN / "python", SCRIPT, RUNTIME, tmp_path / "bill.json"]
    done = subprocess.run(words, input=given, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1
    assert said in done.stderr
    assert not (tmp_path / "bill.json").exists()
