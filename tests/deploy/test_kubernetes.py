"""The manifests match the schemas of Kubernetes, the config, the image and each other."""

import base64
import itertools
import re
import subprocess
from pathlib import Path, PurePosixPath

import pytest
import yaml

from holdfast.config import load
from tests.deploy.dockerfile import stages
from tests.deploy.manifests import (
    CONFIGURED,
    EVERY,
    FLEET,
    GATEWAY,
    KUBERNETES,
    MIGRATE,
    ORPHAN,
    REPLICAS,
    SCRAPER,
    SIDECARS,
    Overlay,
    from_the_docs,
    overlay,
    own_overlay,
    rendered,
    size,
)
from tests.deploy.tools import run, tool
from tests.support import fork_server

FIRST_WITH_SIDECARS, NEWEST = "1.29", "1.37"
SHARE = 0.8
"""The part of a volume that store.max_size may be: above it are the map's reserve and the file's own slack."""
AFTER_THE_DRAIN = 5


@pytest.fixture(params=[*CONFIGURED, MIGRATE])
def every(request: pytest.FixtureRequest) -> Overlay:
    return overlay(request.param)


@pytest.fixture(params=CONFIGURED)
def configured(request: pytest.FixtureRequest) -> Overlay:
    return overlay(request.param)


@pytest.fixture(params=[*SIDECARS, GATEWAY, *REPLICAS])
def running(request: pytest.FixtureRequest) -> Overlay:
    return overlay(request.param)


@pytest.fixture(params=SIDECARS)
def sidecar(request: pytest.FixtureRequest) -> Overlay:
    return overlay(request.param)


@pytest.mark.parametrize("version", [FIRST_WITH_SIDECARS, NEWEST])
def test_the_manifests_match_the_schemas_of_kubernetes(version: str, tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name.replace('/', '-')}.yaml" for name in EVERY}
    for name, file in files.items():
        file.write_text(rendered(KUBERNETES / name))
    # All in one run, since a start of the program takes 2 s.
    done = run(tool("kubernetes-validate"), "--strict", "--kubernetes-version", version, *files.values())
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert output.count(f"against version {version}") == sum(len(overlay(name).objects) for name in EVERY)


def test_a_native_sidecar_starts_before_the_app_and_never_makes_the_pod_unready(sidecar: Overlay) -> None:
    (holdfast,) = sidecar.pod["initContainers"]
    assert holdfast["restartPolicy"] == "Always"
    assert holdfast["startupProbe"]["httpGet"]["path"] == "/readyz"
    assert "readinessProbe" not in holdfast


def test_the_gateway_is_no_sidecar_and_gets_webhooks_only_when_ready() -> None:
    gateway = overlay(GATEWAY)
    assert "initContainers" not in gateway.pod
    assert gateway.pod["containers"] == [gateway.holdfast]
    assert "restartPolicy" not in gateway.holdfast
    assert gateway.holdfast["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "probe"}
    assert gateway.workload["spec"]["replicas"] == 1


def test_probes_and_scrapers_come_to_the_probe_listener(running: Overlay, tmp_path: Path) -> None:
    probe = running.config(tmp_path).listen.probe
    assert probe is not None
    ports = {each["name"]: each["containerPort"] for each in running.holdfast["ports"]}
    assert (probe.host, probe.port) == ("0.0.0.0", ports["probe"])
    asked = [running.holdfast[each]["httpGet"]["port"] for each in ("startupProbe", "livenessProbe")]
    assert asked == ["probe", "probe"]
    assert running.holdfast["livenessProbe"]["httpGet"]["path"] == "/healthz"
    annotations = running.workload["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(probe.port)


def test_a_pod_has_time_to_drain(configured: Overlay, tmp_path: Path) -> None:
    drain = configured.config(tmp_path).drain.timeout / 1000
    assert configured.pod["terminationGracePeriodSeconds"] >= drain + AFTER_THE_DRAIN


@pytest.mark.parametrize("name", [*SIDECARS, GATEWAY])
def test_the_store_is_full_before_its_volume_is(name: str, tmp_path: Path) -> None:
    embedded = overlay(name)
    store = embedded.config(tmp_path).store
    volume = embedded.volume_at(PurePosixPath(store.path))
    room = (
        volume["emptyDir"]["sizeLimit"] if "emptyDir" in volume else volume["spec"]["resources"]["requests"]["storage"]
    )
    assert store.max_size <= SHARE * size(room)


def test_each_overlay_keeps_its_store_where_it_says() -> None:
    ephemeral, durable, gateway = map(overlay, (*SIDECARS, GATEWAY))
    assert ephemeral.workload["kind"] == "Deployment"
    assert "emptyDir" in ephemeral.volume_at(PurePosixPath("/var/lib/holdfast"))
    for each in (durable, gateway):
        assert each.workload["kind"] == "StatefulSet"
        assert each.volume_at(PurePosixPath("/var/lib/holdfast"))["spec"]["accessModes"] == ["ReadWriteOnce"]
        assert set(each.workload["spec"]["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}
        assert each.workload["spec"]["serviceName"] == each.one("Service")["metadata"]["name"]


def test_the_store_is_a_folder_that_holdfast_makes_itself(configured: Overlay, tmp_path: Path) -> None:
    """A volume's own folder belongs to root, and can't be closed to others."""
    mounts = [each["mountPath"] for each in configured.holdfast["volumeMounts"]]
    assert str(configured.config(tmp_path).store.path.parent) in mounts


def test_every_container_is_locked_down(every: Overlay) -> None:
    for container in every.containers:
        context = container["securityContext"]
        assert context["runAsNonRoot"] is context["readOnlyRootFilesystem"] is True
        assert context["privileged"] is context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["runAsUser"] > 0
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert "memory" in container["resources"]["limits"]
    pod = every.pod
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["enableServiceLinks"] is pod["automountServiceAccountToken"] is False
    assert not any(pod.get(name) for name in ("hostNetwork", "hostPID", "hostIPC"))


def test_user_image_and_volume_are_those_of_the_dockerfile(every: Overlay) -> None:
    image = stages()[-1]
    context = every.holdfast["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == image.user
    assert every.pod["securityContext"]["fsGroup"] == image.user[1]
    assert every.holdfast["image"] == f"holdfast:{image.labels['org.opencontainers.image.version']}"
    assert image.one("VOLUME") in [each["mountPath"] for each in every.holdfast["volumeMounts"]]


def test_the_control_socket_lies_in_a_folder_that_the_app_has_too(sidecar: Overlay, tmp_path: Path) -> None:
    listen = sidecar.config(tmp_path).listen
    folder = PurePosixPath(listen.control.parent)
    (app,) = sidecar.pod["containers"]
    assert sidecar.volume_at(folder) == sidecar.volume_at(folder, app)
    assert "emptyDir" in sidecar.volume_at(folder)
    assert listen.control_group == str(sidecar.pod["securityContext"]["fsGroup"])


def check(each: Overlay, folder: Path, secrets: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """`holdfast check` of the config, with these secrets where it looks for them."""
    given = {name: secrets[key["key"]] for name, key in each.secret_environment.items()}
    text = each.toml.replace("/run/secrets/holdfast", str(folder))
    (folder / "holdfast.toml").write_text(text)
    for name, value in secrets.items():
        (folder / name).write_text(value)
    return fork_server.run("check", str(folder / "holdfast.toml"), env={"HOME": str(folder), **given})


def test_holdfast_accepts_the_config(configured: Overlay, tmp_path: Path) -> None:
    secrets = {
        "billing": "whsec_" + base64.b64encode(bytes(32)).decode(),
        "token": "of-the-gateway",
        "url": "postgresql://holdfast:secret@db-1,db-2/holdfast",
    }
    done = check(configured, tmp_path, secrets)
    assert done.returncode == 0, done.stdout + done.stderr


def test_holdfast_does_not_start_with_the_secrets_as_they_are_shipped(running: Overlay, tmp_path: Path) -> None:
    shipped = {
        name: base64.b64decode(value).decode()
        for secret in running.all("Secret")
        for name, value in secret["data"].items()
    }
    done = check(running, tmp_path, shipped)
    assert done.returncode == 2
    wanted = {"billing": "routes.billing.sign: there is no secret", "token": "ingest.token_file: "}
    # An empty url means none, which the role does not bear: tests/deploy/test_fleet.py.
    assert all(wanted[name] in done.stderr for name in shipped if name != "url")


def test_secrets_are_mounted_where_the_config_looks_for_them(running: Overlay) -> None:
    sources = running.volume_at(PurePosixPath("/run/secrets/holdfast"))["projected"]["sources"]
    named = {each["secret"]["name"]: each["secret"].get("optional", False) for each in sources}
    shipped = {each["metadata"]["name"] for each in running.all("Secret")}
    assert shipped >= {name for name, optional in named.items() if not optional}
    assert shipped <= set(named)


def test_the_gateway_is_reached_by_its_clients_alone(tmp_path: Path) -> None:
    gateway = overlay(GATEWAY)
    listen, labels = gateway.config(tmp_path).listen, gateway.workload["spec"]["template"]["metadata"]["labels"]
    assert gateway.config(tmp_path).ingest.token_file is not None
    service, policy = gateway.one("Service")["spec"], gateway.one("NetworkPolicy")["spec"]
    ports = {each["name"]: each["containerPort"] for each in gateway.holdfast["ports"]}
    assert service["selector"] == policy["podSelector"]["matchLabels"] == labels
    assert [(each["port"], ports[each["targetPort"]]) for each in service["ports"]] == [(listen.ingest.port,) * 2]
    clients, scrapers = policy["ingress"]
    assert clients["from"] == [{"podSelector": {"matchLabels": {"holdfast-client": "true"}}}]
    assert [each["port"] for each in clients["ports"]] == [listen.ingest.port]
    assert scrapers["from"] == SCRAPER
    assert [each["port"] for each in scrapers["ports"]] == [listen.probe.port]  # type: ignore[union-attr]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}


@pytest.mark.parametrize("name", ["overlays/gateway/network-policy.yaml", "fleet/shared/network-policies.yaml"])
def test_the_rule_for_nodes_is_there_to_be_filled_in(name: str) -> None:
    text = (KUBERNETES / name).read_text()
    filled_in = re.sub(r"^    # (?=(- from:|  ))", "    ", text, flags=re.MULTILINE)
    before, after = (next(yaml.safe_load_all(each))["spec"]["ingress"] for each in (text, filled_in))
    (scrapers,) = [rule for rule in before if rule["from"] == SCRAPER]
    (nodes,) = [rule for rule in after if rule not in before]
    assert nodes["ports"] == scrapers["ports"]
    assert [list(each) for each in nodes["from"]] == [["ipBlock"]]


def test_overlays_of_one_namespace_do_not_overwrite_each_other() -> None:
    def names(name: str) -> set[tuple[str, str]]:
        return {(each["kind"], each["metadata"]["name"]) for each in overlay(name).objects}

    # The sidecars are each other's alternatives, as are both kinds of a fleet.
    for one, other in itertools.combinations((GATEWAY, ORPHAN, FLEET, MIGRATE), 2):
        assert names(one).isdisjoint(names(other))
    for sidecar, other in itertools.product(SIDECARS, (GATEWAY, ORPHAN, FLEET, MIGRATE)):
        assert names(sidecar).isdisjoint(names(other))


def test_the_overlay_of_the_docs_puts_in_ones_own_image_config_and_keys(tmp_path: Path) -> None:
    own = own_overlay(
        tmp_path,
        kustomization_yaml=from_the_docs("kubernetes.md", "kustomization.yaml"),
        holdfast_toml="[drain]\ntimeout = '7s'\n",
        billing="whsec_own",
    )
    assert own.holdfast["image"] == "registry.example/holdfast:0.1.0"
    assert own.config(tmp_path).drain.timeout == 7000
    keys = own.one("Secret")
    assert base64.b64decode(keys["data"]["billing"]) == b"whsec_own"
    mounted = own.volume_at(PurePosixPath("/run/secrets/holdfast"))["projected"]["sources"]
    assert keys["metadata"]["name"] == mounted[0]["secret"]["name"]


def test_the_component_hands_over_to_the_gateway(tmp_path: Path) -> None:
    own, gateway = (
        own_overlay(tmp_path, kustomization_yaml=from_the_docs("kubernetes.md", "with-handoff.yaml")),
        overlay(GATEWAY),
    )
    (tmp_path / "holdfast.toml").write_text(own.toml)
    config = load(str(tmp_path / "holdfast.toml"), own.environment, {})
    service = gateway.one("Service")
    assert str(config.drain.handoff) == f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert config.ingest.token_file == gateway.config(tmp_path).ingest.token_file
    (clients, _) = gateway.one("NetworkPolicy")["spec"]["ingress"]
    (client,) = clients["from"]
    labels = own.workload["spec"]["template"]["metadata"]["labels"]
    assert labels.items() >= client["podSelector"]["matchLabels"].items()
    (app,) = own.pod["containers"]
    (shown,) = [each["valueFrom"]["secretKeyRef"] for each in app["env"] if "valueFrom" in each]
    assert shown == {"name": gateway.named("Secret", "holdfast-token")["metadata"]["name"], "key": "token"}


def test_a_change_of_the_config_is_applied(running: Overlay, tmp_path: Path) -> None:
    assert running.config(tmp_path).process.watch_config


def test_the_patch_of_the_docs_makes_a_classic_sidecar(tmp_path: Path) -> None:
    kustomization = {
        "resources": [f"holdfast/deploy/kubernetes/{SIDECARS[0]}"],
        "patches": [{"target": {"kind": "Deployment"}, "path": "classic.yaml"}],
    }
    own = own_overlay(
        tmp_path,
        kustomization_yaml=yaml.safe_dump(kustomization),
        classic_yaml=from_the_docs("kubernetes.md", "classic.yaml"),
    )
    assert [each["name"] for each in own.pod["containers"]] == ["app", "holdfast"]
    assert "initContainers" not in own.pod
    assert "restartPolicy" not in own.holdfast
