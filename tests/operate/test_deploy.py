"""The alerts and the dashboard in deploy/, checked against the metrics of a real gateway."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.operate.scrape import scrape
from tests.support.harness import PATIENCE, Gateway, Receiver, until

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus/alerts.yml"
FLEET = DEPLOY / "prometheus/fleet.yml"
DASHBOARD = DEPLOY / "grafana/holdfast.json"
OF_PROMETHEUS = {"up", "ALERTS"}
SUFFIXES = ("_bucket", "_count", "_sum")


def run(*words: str, **more: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False, **more)  # type: ignore[call-overload,no-any-return]


def expressions(text: str) -> list[str]:
    """PromQL of the alerts, folded ones included: everything between `expr:` and the next key."""
    return re.findall(r"expr: (.*?)\n +(?:for|labels):", text, re.DOTALL)


def queries(document: object) -> list[str]:
    if isinstance(document, list):
        return [found for each in document for found in queries(each)]
    if not isinstance(document, dict):
        return []
    own = [document[key] for key in ("expr", "definition") if key in document]
    return own + [found for each in document.values() for found in queries(each)]


def metrics_in(expression: str) -> set[str]:
    without_labels = re.sub(r"\{[^}]*\}", "", expression)
    return set(re.findall(r"\b(?:holdfast|process)_[a-z_]+\b|\bup\b", without_labels))


def known_metrics(gateway: Gateway) -> set[str]:
    families = scrape(gateway).families
    histograms = {
        name + suffix for name, family in families.items() if family.type == "histogram" for suffix in SUFFIXES
    }
    return {*families, *histograms, *OF_PROMETHEUS}


def test_promtool_accepts_a_real_scrape(gateway: Gateway, receiver: Receiver, promtool: str) -> None:
    gateway.post("")
    gateway.post(f"{receiver.url}/x")
    until(lambda: scrape(gateway).value("holdfast_delivered_total") == 1)
    gateway.call("POST", "/v1/circuits/a.example:443/freeze")
    done = run(promtool, "check", "metrics", input=scrape(gateway).text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("rules", [ALERTS, FLEET], ids=lambda rules: rules.name)
def test_promtool_accepts_the_rules(rules: Path, promtool: str) -> None:
    done = run(promtool, "check", "rules", str(rules))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rules", [ALERTS, FLEET], ids=lambda rules: rules.name)
def test_the_alerts_fire_as_intended(rules: Path, promtool: str, tmp_path: Path) -> None:
    cases = Path(__file__).with_name(f"{rules.stem}_test.yml")
    shutil.copy(rules, tmp_path)
    shutil.copy(cases, tmp_path)
    done = run(promtool, "test", "rules", cases.name, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_alerts_use_only_existing_metrics(gateway: Gateway) -> None:
    text = ALERTS.read_text()
    found = expressions(text)
    assert len(found) == text.count("- alert:") == text.count("summary:") == text.count("severity:")
    assert all(metrics_in(expression) for expression in found)
    assert set().union(*map(metrics_in, found)) <= known_metrics(gateway)


def test_the_fleets_scaling_uses_only_existing_metrics(gateway: Gateway) -> None:
    (rule,) = queries(yaml.safe_load(FLEET.read_text()))
    assert {"holdfast_waiting_messages"} < metrics_in(rule) <= known_metrics(gateway)


def test_the_dashboard_uses_only_existing_metrics(gateway: Gateway) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    found = queries(dashboard)
    assert len(found) > 30
    assert all(metrics_in(query) for query in found)
    assert set().union(*map(metrics_in, found)) <= known_metrics(gateway)


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert taken.isdisjoint(cells), panel["title"]
        taken |= cells
