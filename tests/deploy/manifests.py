"""The Kubernetes manifests as rendered by kustomize, with accessors for tests."""

import re
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from holdfast.config import Config, load
from tests.deploy.dockerfile import REPOSITORY
from tests.deploy.tools import run, tool

KUBERNETES = REPOSITORY / "deploy" / "kubernetes"
SIDECARS = ("overlays/ephemeral", "overlays/durable")
GATEWAY, ORPHAN = "overlays/gateway", "orphan-drain"
FLEET, BY_ROLE, MIGRATE = "overlays/fleet", "overlays/fleet-by-role", "migrate"
EVERY = (*SIDECARS, GATEWAY, ORPHAN, FLEET, BY_ROLE, MIGRATE)
REPLICAS = (f"{FLEET}:holdfast-fleet", f"{BY_ROLE}:holdfast-fleet-ingest", f"{BY_ROLE}:holdfast-fleet-deliver")
"""Where a folder has several workloads, the name of the one that is meant stands behind it."""
CONFIGURED = (*SIDECARS, GATEWAY, ORPHAN, *REPLICAS)
SCRAPER = [
    {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
    }
]
"""Who may come to the probe listener besides the kubelet, until somebody names another."""
UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}

Object = dict[str, Any]


@cache
def rendered(folder: Path) -> str:
    kustomize = tool("kustomize", "kubectl")
    done = run(kustomize, "kustomize" if Path(kustomize).name == "kubectl" else "build", folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def size(text: str) -> int:
    found = re.fullmatch(r"(\d+)(Mi|Gi)", text)
    assert found is not None, text
    return int(found[1]) * UNITS[found[2]]


@dataclass
class Overlay:
    """All that a folder renders to, and one of its workloads, by name if there are several."""

    objects: list[Object]
    name: str | None = None

    def all(self, kind: str) -> list[Object]:
        return [each for each in self.objects if each["kind"] == kind]

    def one(self, kind: str) -> Object:
        (found,) = self.all(kind)
        return found

    def named(self, kind: str, name: str) -> Object:
        (found,) = [each for each in self.all(kind) if each["metadata"]["name"] == name]
        return found

    @property
    def workload(self) -> Object:
        workloads = [each for each in self.objects if "template" in each.get("spec", {})]
        (found,) = [each for each in workloads if self.name in (None, each["metadata"]["name"])]
        return found

    @property
    def labels(self) -> dict[str, str]:
        """Of its pods."""
        return dict(self.workload["spec"]["template"]["metadata"]["labels"])

    @property
    def pod(self) -> Object:
        return self.workload["spec"]["template"]["spec"]  # type: ignore[no-any-return]

    @property
    def containers(self) -> list[Object]:
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]

    @property
    def holdfast(self) -> Object:
        (found,) = [each for each in self.containers if each["name"] == "holdfast"]
        return found

    @property
    def toml(self) -> str:
        """The config in the ConfigMap that is mounted where HOLDFAST_CONFIG points."""
        file = PurePosixPath(self.environment["HOLDFAST_CONFIG"])
        config = self.named("ConfigMap", self.volume_at(file.parent)["configMap"]["name"])
        return str(config["data"][file.name])

    @property
    def environment(self) -> dict[str, str]:
        """What of it is not from a Secret."""
        return {each["name"]: each["value"] for each in self.holdfast["env"] if "value" in each}

    @property
    def secret_environment(self) -> dict[str, Object]:
        given = [each for each in self.holdfast["env"] if "valueFrom" in each]
        return {each["name"]: each["valueFrom"]["secretKeyRef"] for each in given}

    def config(self, folder: Path) -> Config:
        """As `holdfast run` would build it in the container."""
        file = folder / "holdfast.toml"
        file.write_text(self.toml)
        return load(str(file), {}, {})

    def volume_at(self, path: PurePosixPath, container: Object | None = None) -> Object:
        """The volume that this container has at a path."""
        mounts = {each["mountPath"]: each["name"] for each in (container or self.holdfast)["volumeMounts"]}
        name = next(mounts[str(each)] for each in (path, *path.parents) if str(each) in mounts)
        claims = {each["metadata"]["name"]: each for each in self.workload["spec"].get("volumeClaimTemplates", [])}
        return {each["name"]: each for each in self.pod["volumes"]}.get(name) or claims[name]


def overlay(name: str) -> Overlay:
    folder, _, workload = name.partition(":")
    return Overlay([each for each in yaml.safe_load_all(rendered(KUBERNETES / folder)) if each], workload or None)


def from_the_docs(page: str, name: str) -> str:
    """A file that a page shows."""
    text = (REPOSITORY / "docs" / page).read_text()
    return text.partition(f"```yaml\n# {name}\n")[2].partition("```")[0]


def own_overlay(folder: Path, **files: str) -> Overlay:
    """One beside a copy of the manifests, as the docs have it: kustomize takes no absolute paths."""
    shutil.copytree(KUBERNETES, folder / "holdfast/deploy/kubernetes")
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return Overlay([each for each in yaml.safe_load_all(rendered(folder)) if each])
