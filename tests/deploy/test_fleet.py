"""A fleet's manifests: replicas without persistent state, and parts that fit each other, with and without roles."""

import re
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from holdfast.cli.commands import COMMANDS
from tests.deploy.dockerfile import REPOSITORY
from tests.deploy.manifests import (
    BY_ROLE,
    FLEET,
    GATEWAY,
    KUBERNETES,
    MIGRATE,
    REPLICAS,
    SCRAPER,
    Object,
    Overlay,
    from_the_docs,
    overlay,
    own_overlay,
)
from tests.support import fork_server

RULES = REPOSITORY / "deploy" / "prometheus" / "fleet.yml"
FOLDERS = (FLEET, BY_ROLE)
INGEST, DELIVER = {"all", "ingest"}, {"all", "deliver"}
A_CORE = 1000


@pytest.fixture(params=REPLICAS)
def replicas(request: pytest.FixtureRequest) -> Overlay:
    return overlay(request.param)


def role(each: Overlay) -> str:
    command, flag, value = each.holdfast["args"]
    assert (command, flag) == ("run", "--role")
    return str(value)


def selects(selector: dict[str, str], each: Overlay) -> bool:
    return selector.items() <= each.labels.items()


def policies(each: Overlay) -> list[Object]:
    """Of the NetworkPolicies, what those say that hold for these pods."""
    found = [policy["spec"] for policy in each.all("NetworkPolicy")]
    return [policy for policy in found if selects(policy["podSelector"]["matchLabels"], each)]


def ports(rules: list[Object]) -> set[int]:
    return {port["port"] for rule in rules for port in rule["ports"]}


def of_the_same_name(kind: str, each: Overlay) -> Object:
    return each.named(kind, each.workload["metadata"]["name"])["spec"]  # type: ignore[no-any-return]


def test_every_role_is_there() -> None:
    assert [[role(overlay(name)) for name in REPLICAS if name.startswith(f"{folder}:")] for folder in FOLDERS] == [
        ["all"],
        ["ingest", "deliver"],
    ]


def test_a_replica_has_no_persistent_volume(replicas: Overlay) -> None:
    assert replicas.workload["kind"] == "Deployment"
    assert {key for volume in replicas.pod["volumes"] for key in volume} == {
        "name",
        "configMap",
        "projected",
        "emptyDir",
    }
    assert not replicas.all("PersistentVolumeClaim")


@pytest.mark.parametrize("name", [*REPLICAS, MIGRATE])
def test_the_url_comes_from_the_secret(name: str) -> None:
    wanted = {"name": "holdfast-fleet-database", "key": "url"}
    assert overlay(name).secret_environment == {"HOLDFAST_STORE__URL": wanted}
    assert list(overlay(FLEET).named("Secret", wanted["name"])["data"]) == [wanted["key"]]


def test_a_replica_without_its_url_does_not_take_webhooks_into_its_pod(replicas: Overlay, tmp_path: Path) -> None:
    done = fork_server.run(
        *replicas.holdfast["args"],
        env={"HOME": str(tmp_path), "HOLDFAST_STORE__PATH": str(tmp_path / "store"), "HOLDFAST_STORE__URL": ""},
    )
    assert (done.returncode, "store.url" in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "store").exists()


def test_a_database_that_is_away_makes_a_replica_unready_and_does_not_end_it(replicas: Overlay) -> None:
    asked = {
        probe: replicas.holdfast[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "liveness", "readiness")
    }
    assert asked == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    assert of_the_same_name("PodDisruptionBudget", replicas)["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_a_terminating_replica_accepts_until_the_service_removes_it(replicas: Overlay, tmp_path: Path) -> None:
    drain = replicas.config(tmp_path).drain
    assert 0 < drain.linger < drain.timeout


def test_budget_spread_and_scaling_are_for_these_pods_alone(replicas: Overlay) -> None:
    budget = of_the_same_name("PodDisruptionBudget", replicas)
    spread = [each["labelSelector"] for each in replicas.pod["topologySpreadConstraints"]]
    for selector in (replicas.workload["spec"]["selector"], budget["selector"], *spread):
        assert selector == {"matchLabels": replicas.labels}
    scaler = of_the_same_name("HorizontalPodAutoscaler", replicas)
    assert (scaler["scaleTargetRef"]["kind"], scaler["scaleTargetRef"]["name"]) == ("Deployment", replicas.name)
    assert "replicas" not in replicas.workload["spec"]
    assert budget["maxUnavailable"] < scaler["minReplicas"]


def test_pods_of_the_two_roles_have_different_labels() -> None:
    ingest, deliver = (overlay(name) for name in REPLICAS if name.startswith(f"{BY_ROLE}:"))
    assert not selects(ingest.labels, deliver)
    assert not selects(deliver.labels, ingest)


def test_replicas_are_added_before_their_one_core_is_used_up(replicas: Overlay) -> None:
    (metric,) = of_the_same_name("HorizontalPodAutoscaler", replicas)["metrics"]
    target = metric["resource"]["target"]
    asked = int(target["averageValue"].removesuffix("m"))
    requested = int(replicas.holdfast["resources"]["requests"]["cpu"].removesuffix("m"))
    assert (metric["type"], metric["resource"]["name"], target["type"]) == ("Resource", "cpu", "AverageValue")
    assert requested <= asked < A_CORE


def test_only_those_that_ingest_are_in_the_service(replicas: Overlay, tmp_path: Path) -> None:
    service = replicas.named("Service", "holdfast-fleet")["spec"]
    listen = replicas.config(tmp_path).listen.ingest.port
    containers = {each["name"]: each["containerPort"] for each in replicas.holdfast["ports"]}
    assert selects(service["selector"], replicas) is ("ingest" in containers) is (role(replicas) in INGEST)
    assert [(each["port"], each["targetPort"]) for each in service["ports"]] == [(listen, "ingest")]
    assert containers.get("ingest", listen) == listen


def test_each_role_reaches_and_is_reached_by_what_it_needs(replicas: Overlay, tmp_path: Path) -> None:
    config = replicas.config(tmp_path)
    assert config.ingest.token_file is not None
    assert config.listen.probe is not None
    incoming = [rule for policy in policies(replicas) for rule in policy.get("ingress", [])]
    outgoing = [rule for policy in policies(replicas) for rule in policy.get("egress", [])]
    scrapers = [rule for rule in incoming if rule["from"] == SCRAPER]
    clients = [rule for rule in incoming if rule not in scrapers]
    assert ports(scrapers) == {config.listen.probe.port}
    assert ports(clients) == ({config.listen.ingest.port} if role(replicas) in INGEST else set())
    assert all(rule["from"] == [{"podSelector": {"matchLabels": {"holdfast-client": "true"}}}] for rule in clients)
    assert ports(outgoing) == {53, 5432} | ({80, 443} if role(replicas) in DELIVER else set())
    kinds = {kind for policy in policies(replicas) for kind in policy["policyTypes"]}
    assert kinds == {"Ingress", "Egress"}


def test_the_fleet_may_dial_the_same_ports_as_the_gateway() -> None:
    def internet(name: str, policy: str) -> list[Any]:
        rules = overlay(name).named("NetworkPolicy", policy)["spec"]["egress"]
        return [rule for rule in rules if ports([rule]) == {80, 443}]

    assert internet(FLEET, "holdfast-fleet-deliver") == internet(GATEWAY, "holdfast-gateway") != []


def test_the_database_s_certificate_is_mounted_where_the_comment_says(replicas: Overlay) -> None:
    said = re.search(r"sslrootcert=(\S+)", (KUBERNETES / "fleet/replicas/replica.yaml").read_text())
    assert said is not None
    path = PurePosixPath(said[1])
    (projected,) = [
        each["secret"] for each in replicas.volume_at(path)["projected"]["sources"] if "items" in each["secret"]
    ]
    mounted = overlay(MIGRATE).volume_at(path)["secret"]
    assert projected["name"] == mounted["secretName"] == "holdfast-fleet-database"
    assert projected["optional"] is mounted["optional"] is True
    assert projected["items"] == mounted["items"] == [{"key": "ca.crt", "path": path.name}]


def test_the_job_migrates_and_gets_no_webhooks() -> None:
    job, fleet = overlay(MIGRATE), overlay(FLEET)
    (command,) = job.holdfast["args"]
    assert command in COMMANDS
    assert not selects(fleet.named("Service", "holdfast-fleet")["spec"]["selector"], job)
    assert job.pod["restartPolicy"] == "Never"
    assert "ttlSecondsAfterFinished" in job.workload["spec"]


@pytest.mark.parametrize(("folder", "untouched"), [("fleet", 0), ("fleet-by-role", 1)])
def test_the_autoscaler_divides_the_backlog_by_the_replicas(folder: str, untouched: int, tmp_path: Path) -> None:
    shown = from_the_docs("fleet.md", "by-backlog.yaml").replace("overlays/fleet\n", f"overlays/{folder}\n")
    own = own_overlay(tmp_path, kustomization_yaml=shown)
    scalers = {each["metadata"]["name"]: each["spec"]["metrics"] for each in own.all("HorizontalPodAutoscaler")}
    external = {name: each[1]["external"] for name, each in scalers.items() if len(each) == 2}
    assert len(scalers) - len(external) == untouched
    (recorded,) = [rule["record"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    for name, each in external.items():
        assert not name.endswith("-ingest")
        assert each["metric"] == {"name": recorded}
        assert each["target"]["type"] == "AverageValue"
