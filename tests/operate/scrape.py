"""A scrape parsed with the client library, and a gateway that fails to start."""

import subprocess
from pathlib import Path

import httpx
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.support import fork_server
from tests.support.harness import PLAIN, Gateway, settings


class Scrape:
    def __init__(self, text: str) -> None:
        self.text = text
        self.families: dict[str, Metric] = {}
        for family in text_string_to_metric_families(text):
            # The parser gives counters their OpenMetrics names.
            self.families[family.name + ("_total" if family.type == "counter" else "")] = family

    def value(self, sample: str, **labels: str) -> float:
        (found,) = [each.value for each in self.samples(sample) if each.labels == labels]
        return float(found)

    def samples(self, name: str) -> list[Sample]:
        return [sample for family in self.families.values() for sample in family.samples if sample.name == name]

    def labels(self, name: str, label: str) -> list[str]:
        return [sample.labels[label] for sample in self.samples(name)]


def scrape(gateway: Gateway, address: str | None = None) -> Scrape:
    answer = httpx.get(f"http://{address or gateway.status}/metrics", **PLAIN)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Scrape(answer.text)


def run_in_vain(store: Path, **keys: object) -> "subprocess.CompletedProcess[str]":
    """Start a gateway that is expected to exit by itself."""
    return fork_server.run("run", env=settings(store, **keys))
