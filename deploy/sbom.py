"""The software bill of materials of what runs (`make sbom`): python deploy/sbom.py LOCK FILE < BOM

cyclonedx-py describes everything that the environment holds. Of that the lock's packages are kept, with the hashes of
the files that may be installed. The same input gives the same bytes: even the serial number is made from the content.
"""

import json
import re
import sys
import uuid
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
MODULE = Path(__file__).parents[1] / "src" / "holdfast" / "__init__.py"


def locked(text: str) -> dict[str, tuple[Requirement, list[str]]]:
    """Each package's requirement and hashes, by name, of those that this Python needs."""
    found = {}
    for line in re.sub(r"\\\n", "", text).splitlines():
        if line and not line.lstrip().startswith("#"):
            words, *hashes = line.split("--hash=sha256:")
            requirement = Requirement(words)
            if requirement.marker is None or requirement.marker.evaluate():
                found[canonicalize_name(requirement.name)] = (requirement, [each.strip() for each in hashes])
    return found


def described(component: dict[str, Any], hashes: list[str]) -> dict[str, Any]:
    """A version is several files. Where they come from is a matter of the machine, so their place is the purl."""
    files = {
        "type": "distribution",
        "url": component["purl"],
        "comment": "the files of this version that may be installed",
        "hashes": [{"alg": "SHA-256", "content": each} for each in hashes],
    }
    return component | {"externalReferences": [*component.get("externalReferences", []), files]}


def bill(bom: dict[str, Any], lock: dict[str, tuple[Requirement, list[str]]], version: str) -> dict[str, Any]:
    installed = {canonicalize_name(each["name"]): each for each in bom["components"]}
    for name, (requirement, _) in lock.items():
        if name not in installed or not requirement.specifier.contains(installed[name]["version"]):
            sys.exit(f"the environment does not hold what the lock says: {requirement.name}{requirement.specifier}")
    components = [described(installed[name], hashes) for name, (_, hashes) in lock.items()]
    itself = bom["metadata"]["component"]
    itself |= {"version": version, "purl": f"pkg:pypi/{itself['name']}@{version}"}
    kept = {itself["bom-ref"], *(each["bom-ref"] for each in components)}
    dependencies = []
    for each in bom["dependencies"]:
        if each["ref"] in kept:
            needed = sorted(kept.intersection(each.get("dependsOn", [])))
            dependencies.append({"ref": each["ref"]} | ({"dependsOn": needed} if needed else {}))
    made = bom | {"components": components, "dependencies": dependencies}
    return made | {"serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(made, sort_keys=True)).urn}


def main() -> None:
    lock, file = map(Path, sys.argv[1:])
    version = VERSION.search(MODULE.read_text())
    assert version is not None
    made = bill(json.load(sys.stdin), locked(lock.read_text()), version[1])
    text = json.dumps(made, indent=2, sort_keys=True) + "\n"
    fault = JsonStrictValidator(SchemaVersion.from_version(made["specVersion"])).validate_str(text)
    if fault is not None:
        sys.exit(f"this is not CycloneDX {made['specVersion']}: {fault}")
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    print(f"{file}: {len(made['components'])} packages, valid CycloneDX {made['specVersion']}")


if __name__ == "__main__":
    main()
